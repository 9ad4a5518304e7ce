"""Requests made to cost much or to leave something behind."""

import asyncio
import gc
import logging
import threading
import time

import msgspec
import pytest

from tests.fakes.services import Stack
from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.responses import messages_of
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.adapters import LoadAdapterRequest
from xllm.frontend.protocol.chat import ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.decode import decode_request
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.responses import InputItem
from xllm.frontend.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from xllm.frontend.services.adapters import AdapterService
from xllm.frontend.services.answers.shared import off_loop


def test_many_calls_of_one_turn_take_linear_time() -> None:
    items = [InputItem(type="function_call", call_id="c", name="f")] * 50_000
    begin = time.process_time()
    (turn,) = messages_of(items)
    assert time.process_time() - begin < 2  # 10 s where every call copied those before it
    assert turn.tool_calls is not None and len(turn.tool_calls) == len(items)


@pytest.mark.parametrize("num_chars", [1, 1 << 20])
def test_a_value_too_deep_to_walk_through_is_the_clients_fault(num_chars: int) -> None:
    def walk() -> int:
        return 1 + walk()

    with pytest.raises(RequestError, match="nested too deeply") as caught:
        asyncio.run(off_loop(num_chars, walk))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "turn",
    [
        ChatMessage(role="assistant", reasoning_content="x" * 10_000),
        ChatMessage(role="assistant", tool_calls=[ToolCall(FunctionCall("f", "x" * 10_000))]),
    ],
)
def test_thoughts_and_calls_count_as_work(turn: ChatMessage) -> None:
    assert intake_chars(ChatCompletionRequest(messages=[turn])) >= 10_000


class _SlowEngine:
    """Loads when told to."""

    def __init__(self) -> None:
        self.loaded = asyncio.Event()

    error: RequestError | None = None

    async def load_adapter(self, name: str, folder: str) -> int:
        await self.loaded.wait()
        if self.error is not None:
            raise self.error
        return 7

    def unload_adapter(self, adapter: int) -> None:
        raise AssertionError(adapter)


async def _load_and_leave(engine: _SlowEngine, served: ServedModels) -> None:
    body = LoadAdapterRequest(lora_name="a", lora_path="/a")
    loading = asyncio.create_task(AdapterService(engine, served).load(body))
    for _ in range(2):
        await asyncio.sleep(0)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    engine.loaded.set()
    for _ in range(3):
        await asyncio.sleep(0)


def test_an_adapter_whose_client_went_away_is_served_all_the_same() -> None:
    served = ServedModels("base")
    asyncio.run(_load_and_leave(_SlowEngine(), served))
    assert served.adapter("a") == 7


def test_an_adapter_that_fails_after_its_client_went_away_is_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("xllm"), "propagate", True)
    engine = _SlowEngine()
    engine.error = RequestError(400, "lora_path: no such folder")
    asyncio.run(_load_and_leave(engine, ServedModels("base")))
    gc.collect()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "no such folder" in record.getMessage()


MANY = 1 << 20


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (b"[" + b",".join([b"[]"] * MANY) + b"]", "at most 131072 arrays and objects"),
        (b"[" + b",".join([b'{"a":1}'] * (MANY // 8)) + b",[],{}]", "at most 131072 arrays"),
        (b"[" + b",".join([b'""'] * MANY) + b"]", "at most 262144 texts"),
    ],
)
def test_a_body_of_countless_values_is_refused_before_it_is_decoded(prompt, told) -> None:
    begin = time.process_time()
    with pytest.raises(RequestError, match=told) as caught:
        decode_request(CompletionRequest, b'{"prompt":' + prompt + b"}")
    assert caught.value.status == 400
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_text_that_is_not_closed_is_looked_at_once(end: bytes) -> None:
    begin = time.process_time()
    with pytest.raises(RequestError, match="truncated"):
        decode_request(CompletionRequest, b'{"prompt":"' + b'\\"[' * 200_000 + end)
    assert time.process_time() - begin < 0.5  # minutes where every quote begins a search


def test_brackets_in_a_text_are_no_arrays() -> None:
    text = '{["[{\\\\' * MANY
    body = decode_request(CompletionRequest, msgspec.json.encode({"prompt": text}))
    assert body.prompt == text


def test_no_id_of_a_prompt_that_is_too_long_is_looked_at() -> None:
    class Ids(list):  # type: ignore[type-arg]
        def __iter__(self):  # type: ignore[no-untyped-def]
            raise AssertionError("looked at")

    stack = Stack()
    body = CompletionRequest(prompt=Ids([5] * 1000))
    assert intake_chars(body) == 1000
    with pytest.raises(RequestError, match="1000 tokens, which exceeds the context length"):
        stack.factory.from_completion(body)


def test_logprobs_that_would_fill_the_memory_are_refused_before_any_is_computed() -> None:
    factory = Stack(max_model_len=8192).factory
    prompts = [[5] * 8000] * 1000
    scored = CompletionRequest(prompt=prompts, max_tokens=0, echo=True, logprobs=1)
    assert len(factory.from_completion(scored)) == 1000
    scored.logprobs = 20
    shown = CompletionRequest(prompt=prompts, prompt_logprobs=5)
    for body in (scored, shown):
        with pytest.raises(RequestError, match=r"^logprobs of all tokens") as refused:
            factory.from_completion(body)
        assert refused.value.param == "logprobs"
    turn = [ChatMessage(role="user", content="Hi")]
    many = ChatCompletionRequest(messages=turn, n=128, max_tokens=8000, logprobs=True)
    factory.from_chat(many)
    many.top_logprobs = 20
    with pytest.raises(RequestError, match=r"^logprobs of all tokens"):
        factory.from_chat(many)
    many.stream = True  # what was sent is not kept
    factory.from_chat(many)
    many.stream, many.max_tokens = False, None  # the context is no promise
    factory.from_chat(many)


def test_more_ids_than_anyone_has_are_not_detokenized() -> None:
    with pytest.raises(RequestError, match="tokens must have at most 131072 entries"):
        asyncio.run(Stack().tokenize.detokenize(DetokenizeRequest(tokens=[5] * (1 << 18))))


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_a_text_longer_than_anyone_needs_is_not_tokenized(field: str) -> None:
    text = "x" * ((1 << 20) + 1)
    with pytest.raises(RequestError, match=f"{field} must have at most 1048576 characters"):
        asyncio.run(Stack().tokenize.tokenize(TokenizeRequest(**{field: text})))


def test_long_texts_do_not_keep_the_threads_of_others() -> None:
    """However many of them there are."""
    free = threading.Event()

    async def scenario() -> str:
        long = [asyncio.create_task(off_loop(1 << 22, lambda: free.wait(10))) for _ in range(200)]
        await asyncio.sleep(0.05)
        try:
            return await asyncio.wait_for(off_loop(5000, lambda: "done"), 5)
        finally:
            free.set()
            assert all(await asyncio.gather(*long))

    assert asyncio.run(scenario()) == "done"
