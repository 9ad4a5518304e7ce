"""One chat answer as typed news: what every conversation endpoint stands on."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from tests.fakes.engine_client import row
from tests.fakes.services import LENGTH, STOP, Stack, collect, run
from xllm.core.request.finish import FinishReason
from xllm.frontend.parsers import Parsed, TextDelta, ToolCallDelta

NONE = FinishReason.NONE


class CommaParser:
    """Text up to a comma is reasoning, up to a second one content, the rest one call's name."""

    def __init__(self) -> None:
        self._text = ""

    @property
    def called(self) -> bool:
        return self._text.count(",") == 2

    def feed(self, text: str) -> Parsed:
        self._text += text
        return Parsed()

    def finish(self) -> Parsed:
        reasoning, content, *name = self._text.split(",")
        calls = [ToolCallDelta(0, "call_1", name[0], "{}")] if name else []
        texts = [TextDelta("reasoning", reasoning), TextDelta("content", content)]
        return Parsed([*texts, *calls])


async def play(text: str, finish=STOP, **fields):
    stack = Stack()
    made = stack.factory.from_chat
    stack.factory.from_chat = lambda body: dataclasses.replace(made(body), new_parser=CommaParser)
    task = stack.start("chat", **fields)
    handle = await stack.request()
    stack.client.deliver(row(handle, stack.ids(text)))
    stack.client.deliver(row(handle, (), finish))
    result = await task
    if fields.get("stream"):
        return [c for e in await collect(result) for c in e["choices"]]
    return msgspec.to_builtins(result)["choices"][0]


def test_a_parser_sorts_the_text_of_a_whole_answer():
    choice = run(play("why,so,ping"))
    call = {"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    assert choice["message"] == {
        "role": "assistant",
        "content": "so",
        "refusal": None,
        "reasoning_content": "why",
        "reasoning": "why",
        "tool_calls": [call],
    }
    assert choice["finish_reason"] == "tool_calls"


def test_content_is_null_where_there_is_only_a_call():
    assert run(play(",,ping"))["message"]["content"] is None


def test_a_call_cut_by_the_limit_ends_with_length():
    assert run(play("why,so,ping", LENGTH))["finish_reason"] == "length"


def test_an_answer_without_calls_keeps_its_finish_reason():
    assert run(play("why,so"))["finish_reason"] == "stop"


def test_a_parser_sorts_the_text_of_a_stream():
    opening, last = run(play("why,so,ping", stream=True))
    assert opening["delta"] == {"role": "assistant", "content": ""}
    function = {"name": "ping", "arguments": "{}"}
    assert last["delta"] == {
        "content": "so",
        "reasoning_content": "why",
        "reasoning": "why",
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
    }
    assert last["finish_reason"] == "tool_calls"


class BrokenParser(CommaParser):
    def feed(self, text: str) -> Parsed:
        raise LookupError("a fault in the parser")


@pytest.mark.parametrize("stream", [False, True])
def test_a_parser_that_raises_fails_its_own_request_alone(stream):
    async def scenario():
        stack = Stack()
        made = stack.factory.from_chat
        stack.factory.from_chat = lambda b: dataclasses.replace(made(b), new_parser=BrokenParser)
        task = stack.start("chat", stream=stream)
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("text"), NONE if stream else STOP))
        with pytest.raises(LookupError):
            await collect(await task)
        assert stack.dispatcher.num_open == 0
        assert [a[0] for a in stack.client.aborted] == ([handle] if stream else [])
        stack.factory.from_chat = made
        task = stack.start("chat")
        stack.client.deliver(row(await stack.request(1), stack.ids("fine"), STOP))
        return await task

    assert run(scenario()).choices[0].message.content == "fine"
