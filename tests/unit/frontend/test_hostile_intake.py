"""Requests made to cost much or to leave something behind."""

import asyncio
import time

import pytest

from xllm.frontend.intake.cost import intake_chars
from xllm.frontend.intake.responses import messages_of
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.adapters import LoadAdapterRequest
from xllm.frontend.protocol.chat import ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.responses import InputItem
from xllm.frontend.services.adapters import AdapterService
from xllm.frontend.services.shared import off_loop


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

    async def load_adapter(self, name: str, folder: str) -> int:
        await self.loaded.wait()
        return 7

    def unload_adapter(self, adapter: int) -> None:
        raise AssertionError(adapter)


def test_an_adapter_whose_client_went_away_is_served_all_the_same() -> None:
    async def scenario() -> None:
        engine, served = _SlowEngine(), ServedModels("base")
        body = LoadAdapterRequest(lora_name="a", lora_path="/a")
        loading = asyncio.create_task(AdapterService(engine, served).load(body))
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        engine.loaded.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert served.adapter("a") == 7

    asyncio.run(scenario())
