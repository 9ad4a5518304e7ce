"""The unmodified ``langchain-openai`` package: chats, streams, bound tools, structured output."""

import json

import pytest
from served import CALL, KEY, run, serving

langchain_openai = pytest.importorskip("langchain_openai")

SCHEMA = {
    "title": "Pet",
    "description": "A pet.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def model_of(server, **options):
    return langchain_openai.ChatOpenAI(
        model="tiny",
        base_url=f"{server.url}/v1",
        api_key=KEY,
        max_tokens=400,
        max_retries=0,
        stream_usage=True,
        **options,
    )


def test_a_chat_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with serving("Hello there, reader.") as server:
            model = model_of(server)
            whole = await model.ainvoke([("system", "Be brief."), ("human", "Hi")])
            chunks = [chunk async for chunk in model.astream("Hi")]
            assert whole.content == "Hello there, reader."
            assert "".join(chunk.content for chunk in chunks) == whole.content
            usage = whole.usage_metadata
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 2
            assert [c.usage_metadata for c in chunks if c.usage_metadata]

    run(scenario())


def test_bound_tools_are_called() -> None:
    async def scenario() -> None:
        async with serving(CALL) as server:
            tool = {"name": "add", "description": "Add.", "parameters": SCHEMA}
            model = model_of(server).bind_tools([{"type": "function", "function": tool}])
            (call,) = (await model.ainvoke("Add them")).tool_calls
            assert (call["name"], call["args"]) == ("add", {"a": 1, "b": [2]})
            total = None
            async for chunk in model.astream("Add them"):
                total = chunk if total is None else total + chunk
            assert total is not None and total.tool_calls[0]["args"] == call["args"]

    run(scenario())


def test_structured_output_is_asked_for_by_schema() -> None:
    async def scenario() -> None:
        async with serving(json.dumps({"name": "Rex", "age": 3})) as server:
            model = model_of(server).with_structured_output(SCHEMA, method="json_schema")
            assert await model.ainvoke("Which pet?") == {"name": "Rex", "age": 3}
            (request,) = server.engine.requests
            grammar = request.structured_output
            assert grammar.kind == "json_schema"
            assert json.loads(grammar.text)["required"] == SCHEMA["required"]

    run(scenario())


def test_text_completions() -> None:
    async def scenario() -> None:
        async with serving(" upon a time") as server:
            model = langchain_openai.OpenAI(
                model="tiny", base_url=f"{server.url}/v1", api_key=KEY, max_retries=0
            )
            assert await model.ainvoke("Once") == " upon a time"

    run(scenario())
