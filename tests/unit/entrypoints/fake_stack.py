"""A serving stack without an engine: services are plain functions of the test."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from xllm.core.config import ServerConfig
from xllm.core.messages.server import EngineStats
from xllm.entrypoints.http.activity import Activity
from xllm.entrypoints.http.app import create_app
from xllm.entrypoints.http.lifecycle import WebServer

BODY_PATH = "/v1/completions"


async def echo(body: Any) -> Any:
    return {"echo": type(body).__name__}


class Asked:
    """The chunks of a generator, which relays none: they are to be asked for."""

    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks
        self.aclose = chunks.aclose

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def relay(self, write: Callable[[list[Any]], bool]) -> None:
        pass


class FakeStack:
    """Answers every service call with ``answer``; it may be a generator of chunks."""

    def __init__(self, answer: Callable[[Any], Awaitable[Any]] = echo) -> None:
        async def handle(body: Any) -> Any:
            answered = await answer(body)
            return Asked(answered) if isinstance(answered, AsyncGenerator) else answered

        self.services: Any = SimpleNamespace(
            chat=SimpleNamespace(handle=handle),
            completions=SimpleNamespace(handle=handle),
            messages=SimpleNamespace(handle=handle, count_tokens=handle),
            responses=SimpleNamespace(handle=handle),
            render=SimpleNamespace(chat=handle, completion=handle),
            tokenize=SimpleNamespace(tokenize=handle, detokenize=handle),
            models=SimpleNamespace(list=lambda: {"object": "list"}, get=lambda name: {"id": name}),
        )
        self.state = "ok"
        self.draining = False
        self.num_open = 0
        self.stats = EngineStats(num_running=2)
        self.resets = 0

    @property
    def accepting(self) -> bool:
        return self.state == "ok"

    async def health(self) -> str:
        return self.state

    def metrics_page(self) -> bytes:
        return b"# metrics\n"

    async def profile(self, start: bool) -> str:
        return "/traces/x.json"

    def reset_prefix_cache(self) -> None:
        self.resets += 1


def app_of(stack: FakeStack, **config: Any) -> Starlette:
    return create_app(stack, ServerConfig(**config), Activity())  # type: ignore[arg-type]


def client_of(app: Starlette, key: str | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://server",
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


def call(
    app: Starlette, method: str, path: str, key: str | None = None, **kw: Any
) -> httpx.Response:
    async def once() -> httpx.Response:
        async with client_of(app, key) as client:
            return await client.request(method, path, **kw)

    return asyncio.run(once())


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The envelope, checked for its four keys."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    return error


async def stream_of(
    *batches: list[Any], error: Exception | None = None
) -> AsyncIterator[list[Any]]:
    for batch in batches:
        yield batch
    if error is not None:
        raise error


class Running:
    """The application on a real socket."""

    def __init__(self, stack: FakeStack, **config: Any) -> None:
        self._app = app_of(stack, **config)

    async def __aenter__(self) -> "Running":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._web = WebServer(self._app)
        self._task = asyncio.create_task(self._web.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._web.stop()
        await self._task

    async def send(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer

    async def post(self, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        content = json.dumps(body).encode()
        head = f"POST {BODY_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        return await self.send(head.encode() + content)


async def until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("timed out")
