"""The unmodified ``openai`` package against ``/v1/responses``."""

import asyncio
import time

import openai
import pydantic
import pytest
from served import CALL, KEY, run, serving

TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
ANSWER = "<think>Let me see.</think>I add." + CALL


def client_of(server, key=KEY):
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def shown(response):
    """What the model did, without ids."""
    items = [item.to_dict() for item in response.output]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def test_a_response_is_made_kept_and_forgotten():
    async def scenario():
        async with serving("Hi there.") as server, client_of(server) as client:
            made = await client.responses.create(
                model="tiny",
                input="Hello",
                instructions="Be kind.",
                metadata={"team": "a"},
                temperature=0,
                max_output_tokens=40,
            )
            assert (made.output_text, made.status, made.model) == ("Hi there.", "completed", "tiny")
            assert server.engine.prompts == ["[system]Be kind.[user]Hello[assistant]"]
            assert made.usage.input_tokens == len(server.engine.requests[0].prompt_token_ids)
            assert made.usage.output_tokens == len(server.stack.ids("Hi there.")) + 1
            assert (made.metadata, made.max_output_tokens) == ({"team": "a"}, 40)
            assert await client.responses.retrieve(made.id) == made
            items = await client.responses.input_items.list(made.id)
            assert items.data[0].content[0].text == "Hello"
            await client.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)
            fleeting = await client.responses.create(model="tiny", input="Hello", store=False)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(fleeting.id)

    run(scenario())


def test_thoughts_text_and_calls_are_items_whole_and_streamed():
    async def scenario():
        fields = {"model": "tiny", "input": "Hello", "tools": TOOLS}
        async with serving(ANSWER) as server, client_of(server) as client:
            whole = await client.responses.create(**fields)
            events = [e async for e in await client.responses.create(stream=True, **fields)]
            async with client.responses.stream(**fields) as stream:
                async for _ in stream:
                    pass
                collected = await stream.get_final_response()
            final = events[-1].response
            assert await client.responses.retrieve(final.id) == final
        thought, message, call = whole.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Let me see.")
        assert (message.type, whole.output_text) == ("message", "I add.")
        assert (call.type, call.name, call.arguments) == (
            *("function_call", "add", '{"a": 1, "b": [2]}'),
        )
        assert call.call_id and whole.usage.output_tokens_details.reasoning_tokens > 3
        assert shown(final) == shown(whole)
        assert collected.output_text == whole.output_text
        assert collected.output[2].arguments == call.arguments
        assert [event.sequence_number for event in events] == list(range(len(events)))
        steps = [e.type.removeprefix("response.") for e in events if "delta" not in e.type]
        assert steps == [
            *("created", "in_progress"),
            *("output_item.added", "content_part.added", "reasoning_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "content_part.added", "output_text.done"),
            *("content_part.done", "output_item.done"),
            *("output_item.added", "function_call_arguments.done", "output_item.done"),
            "completed",
        ]
        for kind, text in (
            ("reasoning_text", "Let me see."),
            ("output_text", "I add."),
            ("function_call_arguments", '{"a": 1, "b": [2]}'),
        ):
            deltas = [e.delta for e in events if e.type == f"response.{kind}.delta"]
            assert "".join(deltas) == text and len(deltas) > 1
        added = [e.item for e in events if e.type == "response.output_item.added"]
        assert all(item.status == "in_progress" for item in added) and added[2].arguments == ""

    run(scenario())


def test_a_call_cut_at_any_token_is_the_same_whole_and_streamed():
    """TL-35: and what is cut says so, as an event and in the response."""

    async def scenario():
        text = "<think>Hm.</think>I add." + CALL
        async with serving(text) as server, client_of(server) as client:
            for cut in range(12, len(server.stack.ids(text)) + 2):
                fields = {"model": "tiny", "input": "Hi", "max_output_tokens": cut, "tools": TOOLS}
                whole = await client.responses.create(**fields)
                stream = await client.responses.create(**fields, stream=True)
                *_, last = events = [event async for event in stream]
                assert told(last.response) == told(whole)
                items = [e.item for e in events if e.type == "response.output_item.done"]
                assert [told_item(item) for item in items] == told(whole)[1]
            assert whole.status == "completed"

    run(scenario())


def told_item(item):
    """An item without what differs from answer to answer."""
    kept = {"type", "status", "name", "arguments", "content"}
    return {k: v for k, v in item.to_dict().items() if k in kept}


def told(response):
    return response.status, [told_item(item) for item in response.output]


def test_a_response_goes_on_from_another_or_from_its_items():
    async def scenario():
        async with serving(ANSWER) as server, client_of(server) as client:
            first = await client.responses.create(
                model="tiny", input="Hello", instructions="Once.", tools=TOOLS
            )
            result = {
                "type": "function_call_output",
                "call_id": first.output[2].call_id,
                "output": "3",
            }
            server.engine.text = "Three."
            by_id = await client.responses.create(
                model="tiny", previous_response_id=first.id, input=[result], tools=TOOLS
            )
            history = [{"role": "user", "content": "Hello"}, *first.output, result]
            by_items = await client.responses.create(model="tiny", input=history, tools=TOOLS)
            third = await client.responses.create(
                model="tiny", previous_response_id=by_id.id, input="Thanks"
            )
            assert by_id.output_text == by_items.output_text == third.output_text == "Three."
            expected = "[user]Hello[assistant]I add.[tool]3[assistant]"
            assert server.engine.prompts[1:3] == [expected, expected]
            assert server.engine.prompts[3] == f"{expected}Three.[user]Thanks[assistant]"
            with pytest.raises(openai.NotFoundError) as caught:
                await client.responses.create(
                    model="tiny", previous_response_id="resp_0", input="x"
                )
            assert caught.value.param == "previous_response_id"

    run(scenario())


def test_an_answer_that_is_cut_off_is_incomplete():
    async def scenario():
        async with serving("One, two, three.") as server, client_of(server) as client:
            cut = await client.responses.create(model="tiny", input="Hello", max_output_tokens=3)
            stream = await client.responses.create(
                model="tiny", input="Hello", max_output_tokens=3, stream=True
            )
            last = [event async for event in stream][-1]
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert cut.output[-1].status == "incomplete"
        assert (last.type, shown(last.response)) == ("response.incomplete", shown(cut))

    run(scenario())


def test_a_stream_that_fails_says_so_in_its_last_event():
    async def scenario():
        async with serving("One, two, three.") as server, client_of(server) as client:
            server.engine.dies_after = 3
            stream = await client.responses.create(model="tiny", input="Hello", stream=True)
            events = [event async for event in stream]
            assert events[-1].type == "response.failed"
            failed = events[-1].response
            assert (failed.status, failed.error.code) == ("failed", "server_error")
            assert await client.responses.retrieve(failed.id) == failed

    run(scenario())


def test_a_background_response_is_polled_or_cancelled():
    async def scenario():
        async with serving("Hi there.") as server, client_of(server) as client:
            server.engine.hold.clear()
            ask = {"model": "tiny", "input": "Hello", "background": True}
            first, second = [await client.responses.create(**ask) for _ in range(2)]
            assert (first.status, first.output) == ("in_progress", [])
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(**ask)
            cancelled = await client.responses.cancel(first.id)
            assert cancelled.status == "cancelled"
            assert (await client.responses.retrieve(first.id)).status == "cancelled"
            assert server.engine.aborted == [(server.engine.requests[0].handle, -1, False)]
            server.engine.hold.set()
            while (done := await client.responses.retrieve(second.id)).status == "in_progress":
                await asyncio.sleep(0.01)
            assert (done.status, done.output_text) == ("completed", "Hi there.")
            assert (await client.responses.cancel(second.id)).status == "completed"
            plain = await client.responses.create(model="tiny", input="Hello")
            with pytest.raises(openai.BadRequestError):
                await client.responses.cancel(plain.id)
            assert (await client.responses.create(**ask)).status == "in_progress"

    run(scenario())


def test_who_waits_for_the_end_leaves_clients_time_to_fetch(monkeypatch):
    async def scenario():
        async with serving("Hi there.") as server, client_of(server) as client:
            wait = server.stack.responses.wait_background

            async def waited(timeout_seconds: float) -> float:
                begin = time.monotonic()
                assert await wait(timeout_seconds)
                return time.monotonic() - begin

            ask = {"model": "tiny", "input": "Hello", "background": True}
            made = await client.responses.create(**ask)
            waiting = asyncio.create_task(waited(30.0))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            assert (await client.responses.retrieve(made.id)).status == "completed"
            assert await waiting < 3.0
            await client.responses.create(**ask)
            assert 0.3 <= await waited(0.3) < 3.0  # nobody comes: no longer than allowed
            monkeypatch.setattr("xllm.frontend.services.responses._FETCH_SECONDS", 0.2)
            await client.responses.create(**ask)
            assert 0.1 < await waited(30.0) < 3.0  # nor longer than clients take
            assert await waited(30.0) < 0.1

    run(scenario())


def test_an_answer_of_a_given_form_is_parsed():
    class Person(pydantic.BaseModel):
        name: str
        age: int

    async def scenario():
        async with serving('{"name": "Ada", "age": 36}') as server, client_of(server) as client:
            made = await client.responses.parse(model="tiny", input="Who?", text_format=Person)
            assert made.output_parsed == Person(name="Ada", age=36)
            assert server.engine.requests[0].structured_output is not None

    run(scenario())


def test_input_items_come_in_pages():
    async def scenario():
        given = [{"role": "user", "content": f"Message {i}"} for i in range(5)]
        async with serving("Hi.") as server, client_of(server) as client:
            made = await client.responses.create(model="tiny", input=given)
            pages = client.responses.input_items.list(made.id, limit=2, order="asc")
            texts = [item.content[0].text async for item in pages]
            assert texts == [f"Message {i}" for i in range(5)]
            for bad in ({"limit": 0}, {"limit": 101}, {"after": "item_x"}):
                with pytest.raises(openai.BadRequestError):
                    await client.responses.input_items.list(made.id, **bad)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call_output"}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "nothing"}}, "tool_choice"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "nothing"}],
                },
            },
            "tool_choice",
        ),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True, "stream": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
        ({"temperature": 1e9}, "temperature"),
        ({"extra_body": {"deadline_ms": -1}}, "deadline_ms"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"extra_body": {"max_tokens": 5}}, "max_tokens"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"response_format": {"type": "text"}}}, "response_format"),
        ({"extra_body": {"presence_penalty": 3}}, "presence_penalty"),
        ({"extra_body": {"truncate_prompt_tokens": 0}}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_not_served_is_refused_naming_the_field(fields, param):
    async def scenario():
        async with serving("x") as server, client_of(server) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(**{"model": "tiny", "input": "Hello", **fields})
            assert (caught.value.param or "").split(".")[0] == param
            assert server.engine.requests == []

    run(scenario())
