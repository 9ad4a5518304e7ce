"""The unmodified ``openai`` package: chats, completions, structured outputs, errors, models."""

import json

import openai
import pydantic
import pytest
from served import KEY, run, serving

HI = [{"role": "user", "content": "Hello"}]


class Pet(pydantic.BaseModel):
    name: str
    age: int


def client_of(server, key: str = KEY):
    return openai.AsyncOpenAI(api_key=key, base_url=f"{server.url}/v1", max_retries=0)


def test_a_stream_says_what_the_whole_answer_says() -> None:
    async def scenario() -> None:
        async with serving("Grüße, 🌍!") as server, client_of(server) as client:
            chat = client.chat.completions
            whole = await chat.create(model="tiny", messages=HI, max_tokens=99)
            stream = await chat.create(
                model="tiny",
                messages=HI,
                max_tokens=99,
                stream=True,
                stream_options={"include_usage": True},
            )
            *chunks, last = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert text == whole.choices[0].message.content == "Grüße, 🌍!"
            assert last.choices == [] and last.usage == whole.usage
            assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"

    run(scenario())


def test_structured_outputs_are_parsed_into_a_class() -> None:
    async def scenario() -> None:
        text = json.dumps({"name": "Rex", "age": 3})
        async with serving(text) as server, client_of(server) as client:
            answer = await client.chat.completions.parse(
                model="tiny", messages=HI, max_tokens=99, response_format=Pet
            )
            assert answer.choices[0].message.parsed == Pet(name="Rex", age=3)
            (request,) = server.engine.requests
            assert set(json.loads(request.structured_output.text)["required"]) == {"name", "age"}

    run(scenario())


def test_errors_arrive_as_the_package_s_own() -> None:
    async def scenario() -> None:
        async with serving("x") as server, client_of(server) as client:
            create = client.chat.completions.create
            with pytest.raises(openai.BadRequestError) as caught:
                await create(model="tiny", messages=HI, temperature=9999)
            assert caught.value.param == "temperature"
            with pytest.raises(openai.NotFoundError):
                await create(model="other", messages=HI)
            async with client_of(server, "wrong") as stranger:
                with pytest.raises(openai.AuthenticationError):
                    await stranger.models.list()

    run(scenario())


def test_models_and_completions() -> None:
    async def scenario() -> None:
        async with serving(" upon a time") as server, client_of(server) as client:
            assert [model.id async for model in client.models.list()] == ["tiny"]
            answer = await client.completions.create(model="tiny", prompt="Once", max_tokens=99)
            assert answer.choices[0].text == " upon a time"

    run(scenario())
