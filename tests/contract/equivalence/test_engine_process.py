"""An engine process behind a channel gives the tokens of an engine in this process."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.equivalence.tiny_engine import Tokens, Truth, collect, tiny_config
from xllm.assembly.process.engine_client import ProcessEngineClient
from xllm.core.messages.server import OutputBatch
from xllm.core.observability.metrics import ServerMetrics


class Sink:
    """Collects outputs until every sequence has ended."""

    def __init__(self, num_sequences: int) -> None:
        self.tokens: Tokens = {}
        self.ended = asyncio.get_running_loop().create_future()
        self._left = num_sequences

    def deliver(self, batch: OutputBatch) -> None:
        self._left -= collect(batch, self.tokens)
        if not self._left and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, message: str) -> None:
        self.ended.set_exception(RuntimeError(message))


async def _answers(truth: Truth, overlap: bool) -> Tokens:
    client = ProcessEngineClient(
        tiny_config(overlap=overlap), ServerMetrics(), lambda message: None, lambda: None
    )
    try:
        await client.spawn()
        await client.load(truth.files)
        sink = Sink(len(truth.requests))
        client.connect(sink)
        client.add(truth.requests)
        await asyncio.wait_for(sink.ended, 60)
        return sink.tokens
    finally:
        await client.close()


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_engine_process_equals_in_process(truth: Truth, overlap: bool):
    assert asyncio.run(_answers(truth, overlap)) == truth.tokens
