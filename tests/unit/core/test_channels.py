"""The link between server and engine carries messages, and only those of its peer."""

import asyncio
import contextlib
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import xllm
from xllm.core.channels import ClientChannel, ServerChannel, SocketFolder
from xllm.core.messages.engine import AbortRequests, AddRequests, Hello, ToEngine
from xllm.core.messages.server import EngineProgress, OutputBatch, ToServer
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams

PEER = b"0123456789abcdef"


@pytest.fixture
def server() -> Iterator[ServerChannel]:
    folder = SocketFolder()
    folder.create()
    channel = ServerChannel(folder.address, PEER, ToEngine)
    channel.open()
    channel.folder = folder  # type: ignore[attr-defined]
    yield channel
    channel.close()
    folder.remove()


def stranger(server: ServerChannel, peer_id: bytes, frames: list[bytes]) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, peer_id)
    socket.connect(server.folder.address)  # type: ignore[attr-defined]
    for frame in frames:
        socket.send(frame)
    socket.close(linger=1000)
    context.term()


def batch(num_rows: int) -> OutputBatch:
    return OutputBatch(
        handles=np.arange(num_rows, dtype=np.int64),
        choices=np.zeros(num_rows, np.int32),
        counts=np.ones(num_rows, np.int32),
        token_ids=np.arange(num_rows, dtype=np.int32),
        finish=np.zeros(num_rows, np.int8),
        stop_tokens=np.full(num_rows, -1, np.int32),
    )


async def connected(server: ServerChannel) -> tuple[ClientChannel, list[list[Any]]]:
    wakeups: list[list[Any]] = []
    client = ClientChannel(server.folder.address, PEER, ToServer, wakeups.append)  # type: ignore[attr-defined]
    client.open()
    client.send(Hello())
    await until(lambda: server.receive() == [Hello()])
    return client, wakeups


async def until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.005)


def test_requests_and_outputs_arrive_in_order_and_whole(server: ServerChannel) -> None:
    async def scenario() -> None:
        client, wakeups = await connected(server)
        request = Request(
            handle=7,
            request_id="r",
            prompt_token_ids=np.array([1, 2, 3], np.int32),
            params=SamplingParams(max_tokens=4),
            max_tokens=4,
        )
        client.send(AddRequests([request]))
        client.send(AbortRequests([7], [-1]))
        received: list[Any] = []
        await until(lambda: received.extend(server.receive()) or len(received) == 2)
        assert received[0].requests[0].prompt_token_ids.tolist() == [1, 2, 3]
        assert received[0].requests[0].params == request.params
        assert received[1] == AbortRequests([7], [-1])
        for size in (1, 300):
            server.send(batch(size))
        await until(lambda: sum(map(len, wakeups)) == 2)
        sizes = [len(m.token_ids) for messages in wakeups for m in messages]
        assert sizes == [1, 300]
        client.close()

    asyncio.run(scenario())


def test_messages_that_wait_together_arrive_in_one_wakeup(server: ServerChannel) -> None:
    async def scenario() -> None:
        client, wakeups = await connected(server)
        for _ in range(50):
            server.send(EngineProgress("load"))
        time.sleep(0.2)
        await until(lambda: wakeups)
        assert len(wakeups[0]) == 50
        client.close()

    asyncio.run(scenario())


def test_a_closed_channel_takes_what_comes_late(server: ServerChannel) -> None:
    async def scenario() -> None:
        client, _ = await connected(server)
        client.close()
        client.send(Hello())  # say, the abort of a stream that is closed after the engine
        client.drain()
        client.close()
        assert server.receive(0.05) == []

    asyncio.run(scenario())


def test_pickles_and_noise_are_dropped_with_a_log_line_and_nothing_else_breaks(
    server: ServerChannel, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    target = tmp_path / "owned"
    # Protocol 0: os.system("touch ...") when unpickled.
    pickled = b"cposix\nsystem\n(S'touch " + str(target).encode() + b"'\ntR."
    frames = [pickled, b"", b"\xff" * 100, b"\x82\xa4type", b"\x81\xa4type\xa3out"]
    stranger(server, PEER, frames)
    with contextlib.suppress(AssertionError):
        asyncio.run(until(lambda: server.receive() or len(caplog.records) == len(frames)))
    assert [r.levelname for r in caplog.records] == ["WARNING"] * len(frames)
    assert not target.exists()


def test_a_peer_that_does_not_know_the_secret_is_not_heard(
    server: ServerChannel, caplog: pytest.LogCaptureFixture
) -> None:
    stranger(server, b"wrong", [b"\x81\xa4type\xa5hello"])
    assert server.receive(2.0) == []
    assert "unknown peer" in caplog.text


def test_the_socket_lies_in_a_folder_of_this_user_alone(server: ServerChannel) -> None:
    folder = server.folder  # type: ignore[attr-defined]
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


def test_a_place_that_is_taken_is_not_used() -> None:
    folder = SocketFolder()
    folder.create()
    with pytest.raises(FileExistsError):
        SocketFolder(folder.path).create()
    folder.remove()


def test_waiting_for_messages_ends_at_once_when_one_comes(server: ServerChannel) -> None:
    begin = time.monotonic()
    assert server.receive(0.05) == []
    assert 0.04 < time.monotonic() - begin < 1.0
    stranger(server, PEER, [b"\x81\xa4type\xa5hello"])
    assert server.receive(None) == [Hello()]


def test_nothing_between_the_processes_can_unpickle() -> None:
    """OPS-24: by the text of every module that reads or writes the link."""
    root = Path(xllm.__file__).parent
    folders = ("core", "control", "assembly", "kv_cache", "frontend", "entrypoints")
    modules = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(modules) > 100
    forbidden = re.compile(
        r"^\s*(import|from)\s+(pickle|cloudpickle|dill|shelve|marshal|joblib|multiprocessing)\b"
        r"|allow_pickle\s*=\s*True|\b(recv|send)_pyobj\b|\b(eval|exec)\(",
        re.MULTILINE,
    )
    assert [str(path) for path in modules if forbidden.search(path.read_text())] == []
