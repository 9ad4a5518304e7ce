"""Services over a scripted engine: framing, alignment, cancellation, failure, slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from tests.fakes import tokenizers as fakes
from tests.fakes.engine_client import FakeEngineClient, row
from xllm.core.config.server import ServerConfig
from xllm.core.messages.server import Failure, PromptLogprobs, Started
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake import Limits, RequestFactory
from xllm.frontend.output import OutputProcessor
from xllm.frontend.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    RequestError,
    TokenizeRequest,
    decode_request,
)
from xllm.frontend.services import (
    ChatService,
    CompletionService,
    ModelService,
    OutputDispatcher,
    TokenizeService,
)
from xllm.frontend.text.chat_template import ChatTemplate

EOS = 1
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


class Stack:
    """The frontend around a fake engine."""

    def __init__(self) -> None:
        self.tokenizer = fakes.byte_level()
        self.client = FakeEngineClient()
        limits = Limits.from_config(ServerConfig(), 256, self.tokenizer.vocab_size)
        self.factory = RequestFactory(
            self.tokenizer,
            limits,
            chat_template=ChatTemplate(TEMPLATE),
            eos_token_ids=[EOS],
        )
        self.dispatcher = OutputDispatcher(self.client, OutputProcessor(self.tokenizer, [EOS]))
        self.chat = ChatService(self.factory, self.dispatcher, "tiny")
        self.completions = CompletionService(self.factory, self.dispatcher, "tiny")
        self.tokenize = TokenizeService(self.factory, "tiny")

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def start(self, kind: str, **fields):
        if kind == "chat":
            fields.setdefault("messages", [{"role": "user", "content": "Hi"}])
            body = decode_request(ChatCompletionRequest, msgspec.json.encode(fields))
            return asyncio.ensure_future(self.chat.handle(body))
        fields.setdefault("prompt", "hello")
        body = decode_request(CompletionRequest, msgspec.json.encode(fields))
        return asyncio.ensure_future(self.completions.handle(body))

    async def request(self, index: int = 0) -> int:
        """Handle of the index-th request, once the engine has it."""
        while len(self.client.requests) <= index:
            await asyncio.sleep(0)
        return self.client.requests[index].handle

    async def play(self, text: str, *, per_step: int = 1, logprobs=None, eos: bool = True):
        """Answer the first request with a text, then EOS."""
        handle = await self.request()
        tokens = [*self.ids(text), *([EOS] if eos else [])]
        for i in range(0, len(tokens), per_step):
            group = tokens[i : i + per_step]
            last = i + per_step >= len(tokens)
            finish = (STOP if eos else LENGTH) if last else FinishReason.NONE
            stop_token = EOS if last and eos else -1
            self.client.deliver(
                row(handle, group, finish, stop_token=stop_token), logprobs=logprobs
            )
            await asyncio.sleep(0)


async def collect(stream) -> list:
    events = []
    async for chunks in stream:
        assert chunks
        events += msgspec.json.decode(msgspec.json.encode(chunks))
    return events


async def answer(kind: str, text: str, **fields):
    """The decoded answer, or the events of a stream, to a request that the engine plays."""
    stack = Stack()
    options = {k: fields.pop(k) for k in ("per_step", "eos", "logprobs_columns") if k in fields}
    options["logprobs"] = options.pop("logprobs_columns", None)
    task = stack.start(kind, **fields)
    playing = asyncio.ensure_future(stack.play(text, **options))
    result = await task
    if fields.get("stream"):
        result = await collect(result)
    else:
        result = msgspec.json.decode(msgspec.json.encode(result))
    await playing
    stack.dispatcher.check()
    assert stack.dispatcher.num_open == 0
    return result


def joined(events: Sequence[dict], kind: str) -> str:
    choices = [c for e in events for c in e["choices"]]
    if kind == "chat":
        return "".join(c["delta"].get("content") or "" for c in choices)
    return "".join(c["text"] for c in choices)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


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


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_an_unknown_model_is_404(kind):
    async def scenario():
        with pytest.raises(RequestError) as caught:
            await Stack().start(kind, model="no-such-model-xyz")
        return caught.value

    error = run(scenario())
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream": True, "max_tokens": -2}, "max_tokens"),
    ],
)
def test_a_bad_streaming_request_is_refused_before_the_stream(fields, param):
    async def scenario():
        stack = Stack()
        with pytest.raises(RequestError) as caught:
            await stack.start("chat", **fields)
        assert stack.client.requests == []
        return caught.value

    error = run(scenario())
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_by_the_engine_keeps_its_status(stream):
    async def scenario():
        stack = Stack()
        task = stack.start("completion", prompt=["a", "b"], stream=stream)
        await stack.request(1)
        first, second = (r.handle for r in stack.client.requests)
        failure = Failure(first, -1, "prompt needs more KV cache than there is", 400, "prompt")
        stack.client.deliver(failures=[failure])
        with pytest.raises(RequestError) as caught:
            await task
        assert stack.dispatcher.num_open == 0
        assert (second, -1, False) in stack.client.aborted
        return caught.value

    assert run(scenario()).status == 400


def test_a_client_that_cannot_take_requests_leaves_nothing_behind():
    async def scenario():
        stack = Stack()
        stack.client.refusal = RequestError(503, "the model is loading")
        with pytest.raises(RequestError):
            await stack.start("completion", prompt=["a", "b"])
        stack.dispatcher.check()
        return stack.dispatcher.num_open

    assert run(scenario()) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_request_aborts_it_in_the_engine(stream):
    async def scenario():
        stack = Stack()
        task = stack.start("chat", stream=stream)
        handle = await stack.request()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stack.client.aborted == [(handle, -1, False)]
        stack.client.deliver(row(handle, stack.ids("late")))
        return stack.dispatcher.num_open

    assert run(scenario()) == 0


@pytest.mark.parametrize("read_first", [False, True])
def test_closing_a_stream_aborts_it_even_before_it_was_read(read_first):
    async def scenario():
        stack = Stack()
        task = stack.start("chat", stream=True)
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("a")))
        stream = await task
        if read_first:
            await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert [c async for c in stream] == []
        return stack.client.aborted, handle

    aborted, handle = run(scenario())
    assert aborted == [(handle, -1, False)]


def test_a_finished_stream_aborts_nothing():
    async def scenario():
        stack = Stack()
        task = stack.start("chat", stream=True)
        stack.client.deliver(row(await stack.request(), stack.ids("a"), LENGTH))
        stream = await task
        await collect(stream)
        await stream.aclose()
        return stack.client.aborted

    assert run(scenario()) == []


def test_a_stop_string_stops_the_engine_once():
    async def scenario():
        stack = Stack()
        task = stack.start("chat", stop=["he"])
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("a he")))
        result = await task
        return result, stack.client.aborted, handle

    result, aborted, handle = run(scenario())
    assert result.choices[0].message.content == "a "
    assert result.choices[0].stop_reason == "he"
    assert aborted == [(handle, 0, True)]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_raising_post_processor_is_a_500_and_ends_a_stream_with_the_error(kind, monkeypatch):
    async def scenario(stream):
        stack = Stack()
        task = stack.start(kind, stream=stream)
        handle = await stack.request()
        if stream:
            stack.client.deliver(row(handle, stack.ids("a")))
            answer = await task
            first = await anext(answer)
        monkeypatch.setattr(
            "xllm.frontend.output.choice.Detokenizer.push",
            lambda *args: 1 / 0,
        )
        stack.client.deliver(row(handle, stack.ids("b")))
        monkeypatch.undo()
        with pytest.raises(RequestError) as caught:
            if stream:
                await anext(answer)
            else:
                await task
        assert (handle, -1, False) in stack.client.aborted
        assert stack.dispatcher.num_open == 0
        return caught.value, first if stream else None

    for stream in (False, True):
        error, first = run(scenario(stream))
        assert error.status == 500
        assert error.body().error.type == "server_error"
        assert (first is not None) is stream


def test_the_engines_death_ends_open_requests_at_once():
    async def scenario():
        stack = Stack()
        whole = stack.start("chat")
        streamed = stack.start("chat", stream=True)
        await stack.request(1)
        handle = stack.client.requests[1].handle
        stack.client.deliver(row(handle, stack.ids("a")))
        stream = await streamed
        stack.client.die("the engine is dead: killed")
        with pytest.raises(RequestError) as first:
            await whole
        with pytest.raises(RequestError) as second:
            await collect(stream)
        return first.value.status, second.value.status, stack.dispatcher.num_open

    assert run(scenario()) == (503, 503, 0)


def test_a_stalled_reader_gets_one_merged_delta_and_holds_nobody_up():
    async def scenario():
        stack = Stack()
        tasks = [stack.start("completion", stream=True) for _ in range(2)]
        await stack.request(1)
        slow, quick = (r.handle for r in stack.client.requests)
        stack.client.deliver(row(slow, stack.ids("0")), row(quick, stack.ids("0")))
        stalled, reader = [await task for task in tasks]
        await anext(stalled)
        reading = asyncio.ensure_future(collect(reader))
        await asyncio.sleep(0)
        for i in range(1, 10):
            last = LENGTH if i == 9 else FinishReason.NONE
            token = stack.ids(str(i))
            stack.client.deliver(row(slow, token, last), row(quick, token, last))
            await asyncio.sleep(0)
        return await reading, await collect(stalled)

    quick, slow = run(scenario())
    assert joined(quick, "completion") == "0123456789"
    assert len(quick) == 10
    assert joined(slow, "completion") == "123456789"
    assert len(slow) == 1


def test_a_whole_answer_wakes_its_reader_once():
    async def scenario():
        stack = Stack()
        task = stack.start("chat")
        handle = await stack.request()
        for _ in range(5):
            stack.client.deliver(row(handle, stack.ids("a")))
            await asyncio.sleep(0)
        stream = stack.dispatcher._streams[handle]
        assert not stream._awake
        stack.client.deliver(row(handle, (), LENGTH))
        return await task

    assert run(scenario()).choices[0].message.content == "aaaaa"


def test_long_texts_are_prepared_off_the_event_loop(monkeypatch):
    import threading

    async def scenario(text):
        stack = Stack()
        threads = []
        make = stack.factory.from_completion
        stack.factory.from_completion = lambda body: (
            threads.append(threading.current_thread()) or make(body)
        )
        with pytest.raises(RequestError):
            await stack.start("completion", prompt=text, top_p=0)
        return threads[0] is threading.main_thread()

    assert run(scenario("short"))
    assert not run(scenario("long " * 1000))


def test_models_are_listed_and_found_by_name():
    service = ModelService("org/tiny", 256)
    listed = msgspec.to_builtins(service.list())
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == "org/tiny"
    assert listed["data"][0]["max_model_len"] == 256
    assert service.get("org/tiny").object == "model"
    with pytest.raises(RequestError) as caught:
        service.get("other")
    assert caught.value.status == 404


def test_texts_and_conversations_become_tokens_and_text_again():
    async def scenario():
        stack = Stack()
        text = await stack.tokenize.tokenize(
            TokenizeRequest(prompt="hello <end>", return_token_strs=True)
        )
        same = await stack.tokenize.tokenize(TokenizeRequest(content="hello <end>"))
        assert same.tokens == text.tokens == stack.ids("hello <end>")
        assert "".join(text.token_strs) == "hello <end>"
        assert (text.count, text.max_model_len) == (len(text.tokens), 256)
        back = await stack.tokenize.detokenize(DetokenizeRequest(tokens=text.tokens))
        assert back.prompt == "hello <end>"
        body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
        chat = await stack.tokenize.tokenize(decode_request(TokenizeRequest, body))
        assert chat.tokens == stack.ids("[user]Hi[assistant]")
        for bad in (TokenizeRequest(), TokenizeRequest(prompt="a", content="b")):
            with pytest.raises(RequestError, match="exactly one"):
                await stack.tokenize.tokenize(bad)
        with pytest.raises(RequestError, match="tokens must hold token ids"):
            await stack.tokenize.detokenize(DetokenizeRequest(tokens=[-1]))

    run(scenario())
