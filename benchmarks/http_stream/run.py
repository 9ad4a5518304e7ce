"""What one streamed token costs the server process: detokenize, chunk, encode, write.

A null engine hands every open stream one token per step, as fast as the event loop takes them;
readers live in a process of their own. No torch, no model, one core for the server.

    python benchmarks/http_stream/run.py [--streams 1,16,64,256] [--tokens 200]

Prints processor microseconds of the server per token: with sockets (every token of every stream is
a system call that wakes its reader, which the machine prices) and without (detokenize, dispatch,
encode, ASGI: what is ours). Goal of the latter: 12, whatever the number of streams.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvloop
from starlette.types import ASGIApp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from xllm.assembly.families.llm import Services
from xllm.assembly.text import load_text
from xllm.core.config import ServerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.server import EngineReady, EngineStats, OutputBatch
from xllm.core.request.finish import FinishReason
from xllm.entrypoints.http.activity import Activity
from xllm.entrypoints.http.app import create_app
from xllm.entrypoints.http.connection import WRITE_BODY
from xllm.entrypoints.http.lifecycle import WebServer
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.services import (
    BeamService,
    ChatService,
    CompletionService,
    Conversations,
    OutputDispatcher,
)

READY = EngineReady("null", 1 << 16, 256, 1 << 20, 16.0)


class NullEngine:
    """An ``EngineClient`` whose every step gives every open request one token."""

    ready = READY
    stats = EngineStats()
    healthy = True

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        self._ticking = False

    def connect(self, sink: Any) -> None:
        self._sink = sink

    def add(self, requests: Any) -> None:
        self._left.update((r.handle, r.max_tokens) for r in requests)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(0.2, self._step)

    def abort(self, handles: Any, choices: Any, stopped: bool = False) -> None:
        for handle in handles:
            self._left.pop(handle, None)

    def _step(self) -> None:
        self._ticking = bool(self._left)
        if not self._left:
            return
        size = len(self._left)
        left = np.fromiter(self._left.values(), np.int64, size)
        batch = OutputBatch(
            handles=np.fromiter(self._left, np.int64, size),
            choices=np.zeros(size, np.int32),
            counts=np.ones(size, np.int32),
            token_ids=(left % 90 + 35).astype(np.int32),
            finish=np.where(left == 1, FinishReason.LENGTH, FinishReason.NONE).astype(np.int8),
            stop_tokens=np.full(size, -1, np.int32),
        )
        self._left = {handle: n - 1 for handle, n in self._left.items() if n > 1}
        self._sink.deliver(batch)
        # After the readers that this step woke have written, not before.
        asyncio.get_running_loop().call_later(0.0005, self._step)


def text_services(folder: Path) -> Services:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = XllmConfig()
    files = ModelFiles(
        name="null",
        folder=str(folder),
        config={},
        format="dummy",
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )
    text = load_text(config, files)
    factory = text.request_factory(config, READY)
    dispatcher = OutputDispatcher(NullEngine(), text.output_processor())
    served = ServedModels("null")
    beams = BeamService(factory, dispatcher, served)
    return SimpleNamespace(  # type: ignore[return-value]
        chat=ChatService(Conversations(factory, dispatcher, served), beams),
        completions=CompletionService(factory, dispatcher, served, beams),
    )


def request_body(path: str, tokens: int) -> bytes:
    body: dict[str, Any] = {"max_tokens": tokens, "stream": True, "ignore_eos": True}
    if path == "completions":
        body["prompt"] = "Once upon a time"
    else:
        body["messages"] = [{"role": "user", "content": "Once upon a time"}]
    return json.dumps(body).encode()


async def read_streams(port: int, path: str, streams: int, tokens: int) -> None:
    async def read(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 28)
        content = request_body(path, tokens)
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await reader.readuntil(b"[DONE]")
        writer.close()

    await asyncio.gather(*(read(i) for i in range(streams)))


def client(port: int, path: str, streams: int, tokens: int) -> None:
    """Body of the reader process."""
    uvloop.run(read_streams(port, path, streams, tokens))


async def measure(port: int, path: str, streams: int, tokens: int) -> float:
    """Processor microseconds of this process per token."""
    process = multiprocessing.get_context("spawn").Process(
        target=client, args=(port, path, streams, tokens)
    )
    process.start()
    used = time.process_time()
    await asyncio.to_thread(process.join)
    assert process.exitcode == 0
    return (time.process_time() - used) / (streams * tokens) * 1e6


async def measure_unsent(app: ASGIApp, path: str, streams: int, tokens: int) -> float:
    """The same with answers that are thrown away instead of sent."""

    async def ask() -> None:
        asked = False

        async def receive() -> Any:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": request_body(path, tokens)}

        async def send(message: Any) -> None:
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/v1/{path}",
            "headers": [],
            "query_string": b"",
            "client": None,
            "server": None,
            "scheme": "http",
            "http_version": "1.1",
            WRITE_BODY: lambda body: True,
        }
        await app(scope, receive, send)

    used = time.process_time()
    await asyncio.gather(*(ask() for _ in range(streams)))
    return (time.process_time() - used) / (streams * tokens) * 1e6


async def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as sock:
        stack = SimpleNamespace(services=text_services(Path(folder)), draining=False)
        app = create_app(stack, ServerConfig(), Activity())  # type: ignore[arg-type]
        web = WebServer(app)
        serving = asyncio.create_task(web.serve(sockets=[sock]))
        print(f"{'endpoint':18} {'streams':>8} {'us with send':>13} {'us own':>9}")
        for path in ("completions", "chat/completions"):
            for streams in map(int, args.streams.split(",")):
                tokens = max(args.tokens, args.total // streams)
                cost = await measure(sock.getsockname()[1], path, streams, tokens)
                own = await measure_unsent(app, path, streams, tokens)
                print(f"{path:18} {streams:8} {cost:13.1f} {own:9.1f}", flush=True)
        web.stop()
        await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,16,64,256")
    parser.add_argument("--tokens", type=int, default=200, help="of every stream, at least")
    parser.add_argument("--total", type=int, default=4000, help="of all streams, at least")
    uvloop.run(main(parser.parse_args()))
