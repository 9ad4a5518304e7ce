import asyncio
from types import SimpleNamespace

import pytest

from tests.fakes.engine_client import FakeEngineClient, row
from tests.unit.offline.engine import TEXT, TOKENS, load_text
from xllm import AsyncLLM, SamplingParams
from xllm.assembly.process import launcher
from xllm.core.config import XllmConfig
from xllm.core.request.finish import FinishReason
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.services import OutputDispatcher

PARAMS = SamplingParams(temperature=0.0, max_tokens=len(TOKENS))


class FakeStack:
    def __init__(self):
        self.client = FakeEngineClient()
        text = load_text(None, None)
        self.services = SimpleNamespace(
            factory=text.request_factory(XllmConfig(), self.client.ready),
            dispatcher=OutputDispatcher(self.client, text.output_processor()),
        )
        self.closed = False

    async def start(self):
        pass

    async def close(self):
        self.closed = True


@pytest.fixture
def stack(monkeypatch):
    from xllm.assembly import registry

    made = FakeStack()
    monkeypatch.setattr(registry, "build", lambda config, on_progress: made)
    return made


async def until(fact):
    while not fact():
        await asyncio.sleep(0)


def test_a_stream_grows_to_the_whole_answer(stack):
    async def run():
        seen = []
        async with AsyncLLM("fake") as llm:
            stream = llm.stream("hello", PARAMS)
            reading = asyncio.ensure_future(anext(stream))
            await until(lambda: stack.client.requests)
            handle = stack.client.requests[0].handle
            for index, token in enumerate(TOKENS):
                last = index == len(TOKENS) - 1
                finish = FinishReason.LENGTH if last else FinishReason.NONE
                stack.client.deliver(row(handle, [token], finish))
                output = await reading
                seen.append((output.outputs[0].text, output.finished))
                reading = asyncio.ensure_future(anext(stream))
            with pytest.raises(StopAsyncIteration):
                await reading
        return seen

    seen = asyncio.run(run())
    assert seen[-1] == (TEXT, True)
    assert all(TEXT.startswith(text) and not finished for text, finished in seen[:-1])
    assert len({text for text, _ in seen}) == len(TOKENS)
    assert stack.closed


def test_leaving_a_stream_stops_the_engines_work(stack):
    async def run():
        async with AsyncLLM("fake") as llm:
            stream = llm.stream("hello", PARAMS)
            reading = asyncio.ensure_future(anext(stream))
            await until(lambda: stack.client.requests)
            stack.client.deliver(row(stack.client.requests[0].handle, TOKENS[:1]))
            await reading
            await stream.aclose()

    asyncio.run(run())
    assert stack.client.aborted == [(stack.client.requests[0].handle, -1, False)]


def test_errors_are_pythons_own(stack):
    async def first(prompt):
        async with AsyncLLM("fake") as llm:
            return await anext(llm.stream(prompt, PARAMS))

    with pytest.raises(ValueError, match="prompt"):
        asyncio.run(first([10**9]))
    stack.client.refusal = RequestError(503, "the engine is gone")
    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(first("hello"))


def test_a_dead_engine_ends_the_stream(stack):
    async def run():
        async with AsyncLLM("fake") as llm:
            reading = asyncio.ensure_future(anext(llm.stream("hello", PARAMS)))
            await until(lambda: stack.client.requests)
            stack.client.die("the engine died")
            await reading

    with pytest.raises(RuntimeError, match="died"):
        asyncio.run(run())


def test_a_model_that_cannot_be_loaded_leaves_no_process(monkeypatch):
    spawned = []
    spawn = launcher.spawn_engine
    monkeypatch.setattr(launcher, "spawn_engine", lambda d: spawned.append(spawn(d)) or spawned[0])

    async def run():
        llm = AsyncLLM("/no/such/model", device="cpu")
        await llm.close()  # not started: nothing to end
        with pytest.raises(ValueError, match="/no/such/model"):
            await llm.start()

    asyncio.run(run())
    assert spawned[0].process.poll() is not None
