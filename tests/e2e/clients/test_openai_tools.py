"""The unmodified ``openai`` package: tools and reasoning, whole and streamed."""

import json

import openai
import pytest
from served import CALL, KEY, run, serving

FIELDS = {"model": "tiny", "max_tokens": 400, "messages": [{"role": "user", "content": "Hello"}]}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "add"}}
ARGUMENTS = {"a": 1, "b": [2]}


def client_of(server):
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0)


async def ask(text: str, **fields):
    """The choice of a whole answer, and of the same answer put together from its chunks."""
    async with serving(text) as server, client_of(server) as client:
        whole = (await client.chat.completions.create(**FIELDS, **fields)).choices[0]
        async with client.chat.completions.stream(**FIELDS, **fields) as stream:
            async for _ in stream:
                pass
            streamed = (await stream.get_final_completion()).choices[0]
        return whole, streamed


def calls_of(choice):
    return [
        (call.type, call.function.name, json.loads(call.function.arguments))
        for call in choice.message.tool_calls or ()
    ]


def test_a_call_is_the_same_whole_and_streamed():
    async def scenario():
        for choice in await ask(f"<think>Hm.</think>I add.{CALL}\n{CALL}", tools=[ADD]):
            assert calls_of(choice) == [("function", "add", ARGUMENTS)] * 2
            assert len({call.id for call in choice.message.tool_calls}) == 2
            assert choice.message.content == "I add."
            assert choice.message.model_extra["reasoning_content"] == "Hm."
            assert choice.finish_reason == "tool_calls"

    run(scenario())


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (NAMED, '{"a": 1}'),
        ("required", '[{"name": "add", "arguments": {"a": 1}}]'),
    ],
)
def test_a_forced_call_is_nothing_but_a_call(choice, text):
    async def scenario():
        thoughts = "<think>I must.</think>"
        for answer in await ask(thoughts + text, tools=[ADD], tool_choice=choice):
            assert calls_of(answer) == [("function", "add", {"a": 1})]
            assert not answer.message.content
            assert answer.finish_reason == "tool_calls"

    run(scenario())


def test_a_conversation_with_calls_and_results_is_accepted():
    async def scenario():
        async with serving("It is 3.") as server, client_of(server) as client:
            first = await client.chat.completions.create(**FIELDS, tools=[ADD])
            call = {
                "id": "call_1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a": 1}'},
            }
            history = [
                *FIELDS["messages"],
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "3"},
            ]
            fields = {**FIELDS, "messages": history}
            answer = await client.chat.completions.create(**fields, tools=[ADD])
            assert answer.choices[0].message.content == first.choices[0].message.content
            assert answer.choices[0].message.tool_calls is None
            assert server.engine.prompts[-1].endswith("[tool]3[assistant]")

    run(scenario())


def test_a_tool_that_does_not_exist_is_refused():
    async def scenario():
        async with serving("") as server, client_of(server) as client:
            with pytest.raises(openai.BadRequestError, match="not among tools") as caught:
                other = {"type": "function", "function": {"name": "sub"}}
                await client.chat.completions.create(**FIELDS, tools=[ADD], tool_choice=other)
            assert caught.value.param == "tool_choice"

    run(scenario())
