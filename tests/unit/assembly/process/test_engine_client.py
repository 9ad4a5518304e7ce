"""The engine as its server sees it: when it takes requests, and what its end means."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from xllm.assembly.process import engine_client
from xllm.assembly.process.control_link import Pong
from xllm.assembly.process.engine_client import EngineFailed, ProcessEngineClient
from xllm.core.config import SchedulerConfig, ServerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.engine import AbortRequests, AddRequests, Hello, Profile
from xllm.core.messages.server import EngineDead, EngineReady, EngineStats, Profiled
from xllm.core.observability.metrics import ServerMetrics
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.protocol.errors import RequestError

FILES = ModelFiles(name="m", folder="/m", config={}, format="dummy")
READY = EngineReady("m", 512, 100, 4096, 8.0)


class FakeProcess:
    """A process that lives while ``pong`` is set."""

    def __init__(self, on_exit: Callable[[str], None], *_: Any) -> None:
        self.exit = on_exit
        self.pong: Pong | None = Pong(0.0)
        self.launched: list[Any] = []
        self.killed = self.closed = False

    async def start(self) -> None:
        pass

    def launch(self, launch: Any) -> None:
        self.launched.append(launch)

    async def ping(self, timeout_seconds: float) -> Pong | None:
        return self.pong

    async def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.killed = True


class FakeChannel:
    """Keeps what is sent; ``deliver`` plays the engine; ``unread`` is what a drain finds."""

    def __init__(self, address: str, peer_id: bytes, message_type: Any, deliver: Any) -> None:
        self.deliver = deliver
        self.sent: list[Any] = []
        self.unread: list[Any] = []

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def drain(self) -> None:
        messages, self.unread = self.unread, []
        if messages:
            self.deliver(messages)


class Sink:
    """Notes failures."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def deliver(self, batch: Any) -> None:
        pass

    def fail(self, message: str) -> None:
        self.failures.append(message)


class Rig:
    """A client between a fake process and a fake channel."""

    def __init__(self, **scheduler: Any) -> None:
        config = XllmConfig(
            scheduler=SchedulerConfig(**scheduler), server=ServerConfig(api_key=["secret"])
        )
        self.deaths = 0
        self.metrics = ServerMetrics()
        self.client = ProcessEngineClient(config, self.metrics, lambda message: None, self._died)
        self.process: Any = self.client._process
        self.channel: Any = self.client._channel
        self.sink = Sink()
        self.client.connect(self.sink)

    def _died(self) -> None:
        self.deaths += 1

    async def loaded(self) -> "Rig":
        await self.client.spawn()
        loading = asyncio.create_task(self.client.load(FILES))
        await asyncio.sleep(0)
        self.channel.deliver([READY])
        assert await loading == READY
        return self


def request(handle: int, n: int = 1) -> Request:
    return Request(
        handle=handle,
        request_id=str(handle),
        prompt_token_ids=np.zeros(3, np.int32),
        params=SamplingParams(n=n),
        max_tokens=4,
    )


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "EngineProcess", FakeProcess)
    monkeypatch.setattr(engine_client, "ClientChannel", FakeChannel)
    monkeypatch.setattr(engine_client, "_WATCH_SECONDS", 0.01)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def status_of(client: ProcessEngineClient, *requests: Request) -> int:
    with pytest.raises(RequestError) as raised:
        client.add(requests)
    return raised.value.status


def test_requests_are_refused_until_ready_and_once_the_open_ones_have_been_failed() -> None:
    async def scenario() -> None:
        rig = Rig()
        assert status_of(rig.client, request(1)) == 503
        await rig.loaded()
        rig.client.add([request(1)])
        rig.client.fail_open("the time is over")
        assert rig.sink.failures == ["the time is over"] and not rig.client.healthy
        assert status_of(rig.client, request(2)) == 503
        assert [type(m) for m in rig.channel.sent] == [Hello, AddRequests]
        await rig.client.close()

    run(scenario)


def test_the_engine_process_never_sees_the_api_keys() -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()
        (launch,) = rig.process.launched
        assert launch.config.server.api_key == []
        assert "secret" not in repr(launch)

    run(scenario)


def test_more_than_may_run_and_wait_is_429_and_room_returns_with_an_end() -> None:
    async def scenario() -> None:
        rig = await Rig(max_num_seqs=2, max_waiting=3).loaded()
        rig.client.add([request(1, n=4), request(2)])
        assert status_of(rig.client, request(3)) == 429
        # What an empty server has no room for either is no matter of time.
        assert status_of(rig.client, request(4, n=6)) == 400
        assert status_of(rig.client, *(request(i) for i in range(4, 8))) == 400
        rig.client.abort([1], [2])
        rig.client.add([request(3)])
        assert rig.channel.sent[-2] == AbortRequests([1], [2])
        await rig.client.close()

    run(scenario)


@pytest.mark.parametrize("how", ["exit", "message"])
def test_a_dead_engine_fails_what_is_open_once_and_refuses_the_rest(how: str) -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()
        rig.channel.deliver([EngineStats(num_running=1)])
        rig.client.add([request(1)])
        if how == "exit":
            rig.process.exit("killed by SIGKILL")
        else:
            rig.channel.deliver([EngineDead("killed by SIGKILL")])
        rig.process.exit("exit code 1")
        assert len(rig.sink.failures) == 1 and "killed by SIGKILL" in rig.sink.failures[0]
        assert rig.deaths == 1
        assert not rig.client.healthy and rig.client.num_open == 0
        assert status_of(rig.client, request(2)) == 503
        rig.client.abort([1], [-1])
        assert rig.metrics.running.value == rig.metrics.engine_up.value == 0
        assert rig.metrics.requests_finished.values["error"] == 1

    run(scenario)


def test_the_engines_own_last_words_say_why_loading_failed() -> None:
    async def scenario() -> None:
        rig = Rig()
        await rig.client.spawn()
        loading = asyncio.create_task(rig.client.load(FILES))
        await asyncio.sleep(0)
        rig.channel.unread = [EngineDead("max_model_len is too large")]
        rig.process.exit("exit code 1")
        with pytest.raises(EngineFailed, match="max_model_len is too large"):
            await loading

    run(scenario)


def test_closing_fails_what_is_open() -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()
        rig.client.add([request(1)])
        loading = asyncio.create_task(rig.client.load_adapter("a", "/a"))
        await asyncio.sleep(0)
        await rig.client.close()
        assert rig.sink.failures == ["the server is shutting down"]
        with pytest.raises(RequestError, match="shutting down"):
            await loading
        assert (rig.client.num_open, rig.deaths) == (0, 0)

    run(scenario)


@pytest.mark.parametrize("pong", [None, Pong(1e6)])
def test_an_engine_that_hangs_is_unhealthy_and_given_up_when_it_owes_answers(
    pong: Pong | None,
) -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()
        assert await rig.client.check_health()
        rig.process.pong = pong
        assert not await rig.client.check_health()
        assert rig.deaths == 0  # it may come back as long as nobody waits for it
        rig.client.add([request(1)])
        await asyncio.sleep(0.1)
        assert rig.deaths == 1 and rig.process.killed
        assert len(rig.sink.failures) == 1

    run(scenario)


def test_an_idle_client_asks_nothing() -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()
        rig.client.add([request(1)])
        rig.client.abort([1], [-1])
        await asyncio.sleep(0.05)
        rig.process.pong = None
        await asyncio.sleep(0.05)
        assert rig.deaths == 0

    run(scenario)


def test_a_profile_answers_with_its_trace_or_the_reason_and_dies_with_the_engine() -> None:
    async def scenario() -> None:
        rig = await Rig().loaded()

        async def ask(start: bool, *answer: Any) -> Any:
            asking = asyncio.create_task(rig.client.profile(start))
            await asyncio.sleep(0)
            assert rig.channel.sent[-1] == Profile(start)
            with pytest.raises(RequestError) as busy:
                await rig.client.profile(start)
            assert busy.value.status == 409
            rig.channel.deliver(list(answer))
            return await asking

        assert await ask(True, Profiled("/t/x.json")) == "/t/x.json"
        with pytest.raises(RequestError) as refused:
            await ask(True, Profiled("", "a profile is being taken"))
        assert refused.value.status == 400
        with pytest.raises(RequestError) as dead:
            await ask(False, EngineDead("out of memory"))
        assert dead.value.status == 503
        await rig.client.close()

    run(scenario)
