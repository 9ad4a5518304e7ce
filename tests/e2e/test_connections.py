"""Connections that say nothing, say half, or do not listen cost the others nothing."""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Iterator

from harness import KEY, Server, wait

NUM_CONNECTIONS = 1000
STREAM = b'{"model":"tiny","prompt":"Once","max_tokens":400,"ignore_eos":true,"stream":true,"n":8}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"authorization: Bearer " + KEY.encode() + b"\r\n"
)


@contextlib.contextmanager
def connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            for _ in range(count)
        ]


def assert_quick(server: Server) -> None:
    begin = time.monotonic()
    assert server.complete(max_tokens=4).status_code == 200
    assert time.monotonic() - begin < 15


def test_a_thousand_silent_connections(server: Server) -> None:
    with connections(server, NUM_CONNECTIONS):
        assert_quick(server)


def test_half_a_request_on_many_connections(server: Server) -> None:
    with connections(server, 200) as sockets:
        for number, half_open in enumerate(sockets):
            half_open.sendall((HEAD + b"content-length: 9000\r\n\r\n{")[: 20 + number])
        assert_quick(server)
    wait(lambda: server.http.get("/load").json()["server_load"] == 0, 10)


def test_a_thousand_requests_at_once_are_all_answered(server: Server) -> None:
    body = b'{"model":"tiny","prompt":"Once","max_tokens":2,"temperature":0,"ignore_eos":true}'
    request = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def ask_all() -> list[bytes]:
        return await asyncio.gather(*(ask() for _ in range(NUM_CONNECTIONS)))

    answers = asyncio.run(asyncio.wait_for(ask_all(), 120))
    assert {answer[9:12] for answer in answers} == {b"200"}
    assert len({answer.partition(b'"text":')[2][:40] for answer in answers}) == 1


def test_a_reader_that_stalls_holds_nobody_up_and_is_let_go(server: Server) -> None:
    with connections(server, 8) as sockets:
        for stalled in sockets:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM)
        wait(lambda: server.http.get("/load").json()["server_load"] > 0, 10)
        assert_quick(server)
    # Gone readers are noticed: their rows and blocks come back.
    wait(lambda: server.http.get("/load").json()["num_running"] == 0, 20)
    wait(lambda: server.http.get("/load").json()["server_load"] == 0, 20)
