"""Services over a scripted engine: framing, alignment, choices, logprobs."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from tests.fakes import tokenizers as fakes
from tests.fakes.engine_client import row
from tests.fakes.services import EOS, LENGTH, Stack, answer, collect, joined, run
from xllm.core.messages.server import PromptLogprobs, Started


def test_a_chat_answer_has_the_apis_shape():
    result = run(answer("chat", "hello", model="tiny"))
    assert result["object"] == "chat.completion"
    assert result["id"].startswith("chatcmpl-")
    choice = result["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    usage = result["usage"]
    assert usage["completion_tokens"] == len(Stack().ids("hello")) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_chat_stream_is_framed_as_the_api_wants_it():
    events = run(answer("chat", "hello 😀", stream=True))
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert len({e["id"] for e in events}) == 1
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [c for e in events for c in e["choices"]]
    assert sum("role" in c["delta"] for c in choices) == 1
    assert {c["index"] for c in choices} == {0}
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert all("usage" not in e for e in events)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("per_step", [1, 3, 50])
@pytest.mark.parametrize("stop", [None, "wor"])
def test_streamed_text_joins_to_the_whole_answer(kind, per_step, stop):
    text = "hello 日本 😀 the world!"
    whole = run(answer(kind, text, stop=stop, max_tokens=99))
    events = run(answer(kind, text, stop=stop, max_tokens=99, stream=True, per_step=per_step))
    choice = whole["choices"][0]
    expected = choice["message"]["content"] if kind == "chat" else choice["text"]
    assert expected == (text if stop is None else "hello 日本 😀 the ")
    assert joined(events, kind) == expected
    assert "\ufffd" not in joined(events, kind)


def test_usage_comes_last_and_alone_when_asked_for():
    whole = run(answer("chat", "hello"))
    events = run(answer("chat", "hello", stream=True, stream_options={"include_usage": True}))
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert all(e["usage"] is None for e in events[:-1])


def test_running_usage_is_on_every_chunk_when_asked_for():
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = run(answer("completion", "hello", stream=True, stream_options=options))
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == sorted(counts)
    assert counts[-1] == len(Stack().ids("hello")) + 1


def test_chat_logprobs_streamed_equal_those_of_the_whole_answer():
    fields = {"logprobs": True, "top_logprobs": 2, "logprobs_columns": 2}
    whole = run(answer("chat", "a😀 hello", **fields))
    events = run(answer("chat", "a😀 hello", stream=True, **fields))
    entries = whole["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for e in events
        for c in e["choices"]
        for entry in (c["logprobs"] or {"content": []})["content"]
    ]
    strip = [{k: v for k, v in e.items() if k != "top_logprobs"} for e in entries]
    assert [{k: v for k, v in e.items() if k != "top_logprobs"} for e in streamed] == strip
    assert [len(e["top_logprobs"]) for e in entries] == [2] * len(entries)
    assert b"".join(bytes(e["bytes"]) for e in entries).decode() == "a😀 hello"
    assert entries[1]["token"] == "bytes:\\xf0"
    assert entries[1]["bytes"] == [0xF0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "pairs", "pieces"),
    [
        ("a😀b", [b"\xf0\x9f"], [[97], [240, 159], [152], [128], [98]]),
        ("a😀b", [b"\x9f\x98"], [[97], [240], [159, 152], [128], [98]]),
        ("日本", [b"\x97\xa5"], [[230], [151, 165], [230], [156], [172]]),
        ("ñ", [], [[195], [177]]),
    ],
)
def test_tokens_that_are_pieces_of_a_character_have_their_raw_bytes(stream, text, pairs, pieces):
    """STR-23."""

    async def scenario():
        stack = Stack(tokenizer=fakes.byte_level(pairs=pairs))
        task = stack.start("chat", logprobs=True, top_logprobs=1, stream=stream)
        playing = asyncio.ensure_future(stack.play(text, eos=False, logprobs=1))
        result = await task
        choices = (
            [c for e in await collect(result) for c in e["choices"]]
            if stream
            else msgspec.json.decode(msgspec.json.encode(result))["choices"]
        )
        await playing
        return [entry for c in choices for entry in (c["logprobs"] or {"content": []})["content"]]

    entries = run(scenario())
    assert [entry["bytes"] for entry in entries] == pieces
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == text
    for entry in entries:
        whole = len(bytes(entry["bytes"]).decode(errors="ignore")) == 1
        printed = "".join(f"\\x{byte:02x}" for byte in entry["bytes"])
        assert entry["token"] == (bytes(entry["bytes"]).decode() if whole else f"bytes:{printed}")


def test_completion_logprobs_are_parallel_and_point_into_the_text():
    result = run(answer("completion", "a😀 hello", logprobs=1, logprobs_columns=1))
    choice = result["choices"][0]
    logprobs = choice["logprobs"]
    assert len({len(v) for v in logprobs.values()}) == 1
    assert logprobs["text_offset"][:6] == [0, 1, 1, 1, 1, 2]
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == value


def test_two_choices_stream_under_their_own_index():
    async def scenario():
        stack = Stack()
        task = stack.start("chat", n=2, stream=True)
        handle = await stack.request()
        stack.client.deliver(
            row(handle, stack.ids("a"), choice=0), row(handle, stack.ids("b"), choice=1)
        )
        stream = await task
        stack.client.deliver(row(handle, (), LENGTH, choice=1))
        stack.client.deliver(row(handle, stack.ids("c"), LENGTH, choice=0))
        return await collect(stream)

    events = run(scenario())
    for index, text in ((0, "ac"), (1, "b")):
        choices = [c for e in events for c in e["choices"] if c["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in choices) == text
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
        assert choices[0]["delta"]["role"] == "assistant"


def test_batched_prompts_keep_their_order_and_share_one_usage():
    async def scenario():
        stack = Stack()
        task = stack.start("completion", prompt=["a", "b b", "c"], n=2)
        await stack.request(2)
        for request in reversed(stack.client.requests):
            for choice in (1, 0):
                text = f"{request.handle}.{choice}"
                stack.client.deliver(row(request.handle, stack.ids(text), LENGTH, choice=choice))
        handles = [r.handle for r in stack.client.requests]
        return await task, handles

    result, handles = run(scenario())
    assert [c.index for c in result.choices] == list(range(6))
    assert [c.text for c in result.choices] == [f"{h}.{c}" for h in handles for c in (0, 1)]
    assert result.usage.prompt_tokens == 5
    assert result.usage.completion_tokens == 18


def prompt_logprobs(handle, ids):
    rest = ids[1:]
    return PromptLogprobs(
        handle,
        1,
        np.array([[t, t + 1] for t in rest], np.int32),
        np.array([[-0.5, -0.25]] * len(rest), np.float32),
        np.full(len(rest), 2, np.int32),
    )


@pytest.mark.parametrize("stream", [False, True])
def test_scoring_echoes_the_prompt_with_one_logprob_per_token(stream):
    async def scenario():
        stack = Stack()
        fields = {"echo": True, "logprobs": 1, "max_tokens": 0, "stream": stream}
        task = stack.start("completion", prompt="hello the world", **fields)
        handle = await stack.request()
        ids = stack.ids("hello the world")
        stack.client.deliver(
            row(handle, (), LENGTH), prompt_logprobs=[prompt_logprobs(handle, ids)]
        )
        result = await task
        return len(ids), (await collect(result))[0] if stream else msgspec.to_builtins(result)

    n, result = run(scenario())
    choice = result["choices"][0]
    assert choice["text"] == "hello the world"
    assert choice["logprobs"]["token_logprobs"] == [None] + [-0.5] * (n - 1)
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"][0] == 0
    assert choice["finish_reason"] == "length"


def test_echoed_token_ids_are_decoded():
    async def scenario():
        stack = Stack()
        ids = stack.ids("hello")
        task = stack.start("completion", prompt=ids, echo=True)
        stack.client.deliver(row(await stack.request(), stack.ids("!"), LENGTH))
        return await task

    assert run(scenario()).choices[0].text == "hello!"


def test_prompt_logprobs_are_maps_of_candidates():
    async def scenario():
        stack = Stack()
        task = stack.start("chat", prompt_logprobs=1)
        handle = await stack.request()
        ids = stack.client.requests[0].prompt_token_ids.tolist()
        stack.client.deliver(
            row(handle, stack.ids("x"), LENGTH), prompt_logprobs=[prompt_logprobs(handle, ids)]
        )
        return ids, msgspec.to_builtins(await task)

    ids, result = run(scenario())
    entries = result["prompt_logprobs"]
    assert len(entries) == len(ids)
    assert entries[0] is None
    assert entries[1][str(ids[1])]["logprob"] == -0.5
    assert entries[1][str(ids[1])]["rank"] == 2
    assert entries[1][str(ids[1] + 1)]["rank"] == 1


def test_best_of_returns_the_likeliest_answers():
    async def scenario():
        stack = Stack()
        task = stack.start("completion", best_of=3, n=1)
        handle = await stack.request()
        for choice, token in enumerate((50, 10, 90)):  # logprob -token/1000
            stack.client.deliver(row(handle, [token], LENGTH, choice=choice), logprobs=0)
        return stack.tokenizer.decode([10]), await task

    best, result = run(scenario())
    assert [(c.index, c.text) for c in result.choices] == [(0, best)]
    assert result.choices[0].logprobs is None
    assert result.usage.completion_tokens == 3


def test_token_ids_are_returned_when_asked_for():
    whole = run(answer("chat", "hello", return_token_ids=True))
    assert whole["choices"][0]["token_ids"] == [*Stack().ids("hello"), EOS]
    assert whole["prompt_token_ids"] == Stack().ids("[user]Hi[assistant]")
    events = run(answer("completion", "hello", return_token_ids=True, stream=True))
    ids = [i for e in events for c in e["choices"] for i in c["token_ids"]]
    assert ids == [*Stack().ids("hello"), EOS]
    assert events[0]["choices"][0]["prompt_token_ids"] == Stack().ids("hello")


def test_cached_tokens_reach_the_usage():
    async def scenario():
        stack = Stack()
        task = stack.start("chat")
        handle = await stack.request()
        stack.client.deliver(row(handle, (), LENGTH), started=[Started(handle, 0, 3, 0.0)])
        return await task

    assert run(scenario()).usage.prompt_tokens_details.cached_tokens == 3
