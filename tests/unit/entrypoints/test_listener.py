"""Accepting connections: many at once, none lost, none after the end."""

import asyncio
import contextlib
import errno
import socket
import time
from typing import Any

import pytest
import uvloop
from fake_stack import FakeStack, Running, until

from xllm.entrypoints.http import listener as listener_module
from xllm.entrypoints.http.listener import Listener


class Greets(asyncio.Protocol):
    num_made = 0

    def connection_made(self, transport: Any) -> None:
        Greets.num_made += 1
        transport.write(b"hello")


def connected(address: Any, count: int) -> list[socket.socket]:
    clients = []
    for _ in range(count):
        client = socket.socket()
        client.connect(address)  # the kernel answers: nobody has accepted yet
        clients.append(client)
    return clients


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_connections_that_come_together_are_open_within_a_few_turns(runner: Any) -> None:
    async def scenario() -> None:
        Greets.num_made = 0
        with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
            clients = connected(sock.getsockname(), 64)
            listener = Listener(sock, Greets)
            turns = 0
            while Greets.num_made < 64:
                await asyncio.sleep(0)
                turns += 1
                assert turns < 64  # one a turn, and some for each on its way
            assert turns > 64 / listener_module._OPENED_PER_TURN / 2  # not all in one
            listener.close()
            for client in clients:
                client.settimeout(1)
                assert client.recv(5) == b"hello"
                client.close()

    runner(scenario())


def test_without_descriptors_it_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_RETRY_SECONDS", 0.05)

    class Exhausted(socket.socket):
        tries = 0

        def accept(self) -> Any:
            self.tries += 1
            if self.tries < 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def scenario() -> None:
        Greets.num_made = 0
        with Exhausted() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(8)
            (client,) = connected(sock.getsockname(), 1)
            listener = Listener(sock, Greets)
            await until(lambda: Greets.num_made == 1)
            assert sock.tries < 6  # no busy loop
            listener.close()
            client.close()

    uvloop.run(scenario())
    assert caplog.text.count("no connection can be accepted now") == 2


def test_what_is_not_open_at_the_end_is_closed() -> None:
    async def scenario() -> None:
        Greets.num_made = 0
        with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
            clients = connected(sock.getsockname(), 64)
            listener = Listener(sock, Greets)
            listener._accept()
            listener.close()
            await asyncio.sleep(0.05)
            opened = Greets.num_made
            assert opened <= listener_module._OPENED_PER_TURN
            got = []
            for client in clients:
                client.settimeout(1)
                try:
                    got.append(client.recv(5))
                except ConnectionResetError:
                    got.append(b"")
                client.close()
            assert got.count(b"hello") == opened
            assert got.count(b"") == 64 - opened

    uvloop.run(scenario())


@pytest.mark.parametrize("turns", range(6))
def test_a_server_that_stops_closes_connections_that_are_being_opened(turns: int) -> None:
    async def scenario() -> None:
        server = Running(FakeStack())
        await server.__aenter__()
        clients = connected(("127.0.0.1", server.port), 24)
        for _ in range(turns):
            await asyncio.sleep(0)
        begin = time.monotonic()
        await server.__aexit__()
        assert time.monotonic() - begin < 0.9  # did not wait for one that nobody closes
        for client in clients:
            client.settimeout(1)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
            client.close()

    uvloop.run(scenario())
