"""Beam search over the API: what the engine is asked, what is answered, what is refused."""

import asyncio

import msgspec
import pytest

from tests.fakes.engine_client import row
from tests.fakes.services import EOS, LENGTH, STOP, Stack, run
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.parsers.catalogue import reasoning_format, tool_format
from xllm.frontend.protocol import RequestError

MESSAGES = [{"role": "user", "content": "Hi"}]


async def search(stack, kind, script=None, **fields):
    """The answer to a search in which every token is followed by its neighbours, or by a script."""

    async def play():
        answered = 0
        while True:
            await asyncio.sleep(0)
            for request in stack.client.requests[answered:]:
                prompt = request.prompt_token_ids
                token = int(prompt[-1]) + 1
                if script is not None:  # the likeliest successor is one above the token
                    token = script[len(prompt) - len(stack.client.requests[0].prompt_token_ids)] - 1
                columns = request.params.logprobs
                stack.client.deliver(row(request.handle, [token], LENGTH), logprobs=columns)
                answered += 1

    playing = asyncio.ensure_future(play())
    try:
        answer = await stack.start(kind, use_beam_search=True, **fields)
    finally:
        playing.cancel()
    stack.dispatcher.check()
    assert stack.dispatcher.num_open == 0
    return msgspec.to_builtins(answer)


def test_each_step_asks_for_one_token_of_every_beam():
    async def scenario():
        stack = Stack()
        fields = {"prompt": [50], "max_tokens": 3, "n": 2, "beam_width": 3, "priority": 7}
        answer = await search(stack, "completion", return_token_ids=True, **fields)
        return stack.client, answer

    client, answer = run(scenario())
    requests = client.requests
    lengths = [len(request.prompt_token_ids) for request in requests]
    assert lengths == [1, 2, 2, 2, 3, 3, 3]
    assert {request.priority for request in requests} == {7}
    assert {(r.max_tokens, r.params.logprobs, r.stop_token_ids) for r in requests} == {(1, 4, ())}
    # The likeliest successors of t are t+2, t+3, ... at the same probability.
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [3, 3]
    (whole,) = {request.part_of for request in requests}
    assert client.begun == [whole] and client.ended == [(whole, "length")]
    assert answer["choices"][0]["token_ids"] == [52, 54, 56]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6


def test_a_conversation_and_several_prompts_are_searched():
    async def scenario():
        chat = await search(Stack(), "chat", messages=MESSAGES, max_tokens=2, n=2)
        texts = await search(Stack(), "completion", prompt=["a", "b"], max_tokens=2, n=2)
        return chat, texts

    chat, texts = run(scenario())
    assert len({choice["message"]["content"] for choice in chat["choices"]}) == 2
    assert [choice["index"] for choice in texts["choices"]] == [0, 1, 2, 3]
    assert texts["choices"][0]["text"][0] > "a" and texts["choices"][2]["text"][0] > "b"


def test_an_end_token_ends_an_answer_and_is_not_text():
    async def scenario():
        fields = {
            "max_tokens": 3,
            "beam_width": 2,
            "stop_token_ids": [54],
            "return_token_ids": True,
        }
        return await search(Stack(), "completion", prompt=[50], n=2, **fields)

    answer = run(scenario())
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert ended and all(c["stop_reason"] == 54 and c["token_ids"][-1] == 54 for c in ended)
    assert all(len(c["text"]) == len(c["token_ids"]) - 1 for c in ended), "it has text"


@pytest.mark.parametrize("end", [EOS, None], ids=["whole", "cut"])
@pytest.mark.parametrize("include_reasoning", [True, False])
def test_the_answers_of_a_conversation_are_parsed_as_ordinary_ones_are(end, include_reasoning):
    call = '<tool_call>{"name": "ping", "arguments": {"host": "x"}}</tool_call>'
    text = f"<think>why</think>Sure. {call}"
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}

    def stack():
        made = Stack(max_model_len=1024)
        made.factory.formats = AnswerFormats(
            made.tokenizer, tool_format("hermes", "", ""), reasoning_format("qwen3", "", "")
        )
        return made

    async def scenario():
        tokens = stack().ids(text) if end else stack().ids(text)[:-20]
        fields = {"messages": MESSAGES, "tools": [tool], "max_tokens": len(tokens) + bool(end)}
        fields |= {"include_reasoning": include_reasoning, "return_token_ids": True}
        plain = stack()
        task = plain.start("chat", **fields)
        handle = await plain.request()
        finish, stop_token = (STOP, end) if end else (LENGTH, -1)
        sent = [*tokens, end] if end else tokens
        plain.client.deliver(row(handle, sent, finish, stop_token=stop_token))
        ordinary = msgspec.to_builtins(await task)
        found = await search(stack(), "chat", [*tokens, EOS], beam_width=1, **fields)
        return ordinary, found

    ordinary, found = run(scenario())
    assert found["choices"][0]["finish_reason"] == ("tool_calls" if end else "length")
    assert ("reasoning" in found["choices"][0]["message"]) is include_reasoning
    for whole in (ordinary, found):
        for made in whole["choices"][0]["message"]["tool_calls"]:
            assert made.pop("id").startswith("call_")
        del whole["id"], whole["created"]
    assert found == ordinary


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 17}, "n"),
        ({"beam_width": 17}, "beam_width"),
        ({"beam_width": 0}, "beam_width"),
        ({"n": 3, "beam_width": 2}, "n"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"stream": True}, "stream"),
        ({"stop": ["x"]}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": ["x"] * 500, "beam_width": 4}, "n"),
    ],
)
def test_what_a_search_cannot_respect_is_refused(fields, param):
    async def scenario():
        stack = Stack()
        with pytest.raises(RequestError) as caught:
            await stack.start("completion", use_beam_search=True, **fields)
        assert stack.client.requests == []
        return caught.value

    error = run(scenario())
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_cancelled_search_leaves_nothing_running(failing):
    async def scenario():
        stack = Stack()
        task = stack.start("completion", prompt=[50], use_beam_search=True, beam_width=2)
        for step in range(failing):
            handle = await stack.request(step)
            if step == 0:
                stack.client.deliver(row(handle, [51], LENGTH), logprobs=3)
        await stack.request(failing)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stack.dispatcher.num_open == 0
        assert [reason for _, reason in stack.client.ended] == ["abort"]
        stack.dispatcher.check()

    run(scenario())


def test_values_that_change_nothing_are_accepted():
    async def scenario():
        neutral = {"repetition_penalty": 1.0, "presence_penalty": 0, "echo": False}
        return await search(Stack(), "completion", prompt=[50], n=2, **neutral)

    assert len(run(scenario())["choices"]) == 2
