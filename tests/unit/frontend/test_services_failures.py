"""Services over a scripted engine: refusal, cancellation, failure, slow readers, small routes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.fakes.engine_client import row
from tests.fakes.services import LENGTH, Stack, collect, joined, run
from xllm.core.messages.server import Failure
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol import (
    DetokenizeRequest,
    RequestError,
    TokenizeRequest,
    decode_request,
)
from xllm.frontend.protocol.messages import MessagesRequest
from xllm.frontend.protocol.responses import ResponsesRequest
from xllm.frontend.services import (
    ModelService,
)


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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a+"}, "regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ],
)
def test_a_grammar_that_fails_in_the_engine_blames_the_clients_field(fields, param):
    async def scenario():
        stack = Stack()
        task = stack.start("completion", **fields)
        handle = await stack.request()
        message = "structured_outputs cannot be followed further: too many expressions"
        stack.client.deliver(failures=[Failure(handle, -1, message, 400, "structured_outputs")])
        with pytest.raises(RequestError) as caught:
            await task
        return caught.value

    error = run(scenario())
    assert error.param == param and error.message.startswith(f"{param} cannot be followed")


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
    service = ModelService(ServedModels("org/tiny"), 256, "embed")
    listed = msgspec.to_builtins(service.list())
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == "org/tiny"
    assert listed["data"][0]["max_model_len"] == 256
    assert listed["data"][0]["task"] == "embed"
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


LONG = "word " * 500
NO_SCHEMA = {"type": "object", "properties": {"a": {"type": "no such type"}}}


@pytest.mark.parametrize(
    ("fields", "begins", "param"),
    [
        ({"input": LONG}, "input has ", "input"),
        ({"input": "a", "instructions": LONG}, "input has ", "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input: content[0]: ",
            "input",
        ),
        ({"input": "a", "max_output_tokens": 2**40}, "max_output_tokens ", "max_output_tokens"),
        ({"input": "a", "reasoning": {"effort": "x"}}, "reasoning.effort must ", "reasoning"),
        (
            {"input": "a", "tools": [{"type": "function", "name": "f f"}]},
            "tools[0].name must ",
            "tools",
        ),
        (
            {
                "input": "a",
                "text": {"format": {"type": "json_schema", "name": "x", "schema": NO_SCHEMA}},
            },
            "text.format was refused: ",
            "text",
        ),
        ({"input": "a", "model": "zz"}, "model 'zz' ", "model"),
    ],
)
def test_errors_name_the_fields_of_the_responses_api(fields, begins, param):
    async def scenario():
        with pytest.raises(RequestError) as caught:
            await Stack().responses.handle(decode_request(ResponsesRequest, _json(fields)))
        return caught.value

    error = run(scenario())
    assert error.message.startswith(begins) and error.param == param


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({"stop_sequences": [""]}, "stop_sequences must not "),
        ({"system": LONG}, "messages has "),
        ({"tools": [{"name": "f f", "input_schema": {}}]}, "tools[0].name must "),
        ({"output_config": {"effort": "x"}}, "output_config.effort must "),
    ],
)
def test_errors_name_the_fields_of_the_messages_api(fields, begins):
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}

    async def scenario():
        with pytest.raises(RequestError) as caught:
            await Stack().messages.handle(decode_request(MessagesRequest, _json(body | fields)))
        return caught.value

    assert run(scenario()).message.startswith(begins)


def _json(fields):
    return msgspec.json.encode(fields)
