"""A real HTTP server over a scripted engine: what unmodified clients talk to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

from tests.fakes.engine_client import FakeEngineClient, row
from tests.fakes.services import EOS, LENGTH, STOP, Stack
from xllm.core.config import ServerConfig
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.entrypoints.http.activity import Activity
from xllm.entrypoints.http.app import create_app
from xllm.entrypoints.http.lifecycle import WebServer, bind
from xllm.frontend.parsers.answer import AnswerFormats
from xllm.frontend.parsers.catalogue import reasoning_format, tool_format

KEY = "sk-test"
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>'


class ScriptedClient(FakeEngineClient):
    """Answers every request with a text, two tokens a step, whatever it was asked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.prompts: list[str] = []
        self.dies_after: int | None = None  # steps of an answer
        self.hold = asyncio.Event()  # answers go on only while it is set
        self.hold.set()
        self.decode: Callable[[list[int]], str] = str
        self.encode: Callable[[str], list[int]] = list  # type: ignore[assignment]
        self._playing: set[asyncio.Task[None]] = set()

    def add(self, requests) -> None:
        super().add(requests)
        for request in requests:
            self.prompts.append(self.decode(request.prompt_token_ids.tolist()))
            task = asyncio.create_task(self._play(request))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)

    async def _play(self, request: Request) -> None:
        tokens = [*self.encode(self.text), EOS]
        finish = STOP if len(tokens) <= request.max_tokens else LENGTH
        tokens = tokens[: request.max_tokens]
        for i in range(0, len(tokens), 2):
            if i // 2 == self.dies_after:
                self.die("the engine is gone")
                return
            await self.hold.wait()
            last = i + 2 >= len(tokens)
            stop_token = EOS if last and finish == STOP else -1
            reason = finish if last else FinishReason.NONE
            self.deliver(row(request.handle, tokens[i : i + 2], reason, stop_token=stop_token))
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(text: str, **config) -> AsyncIterator[SimpleNamespace]:
    """A server whose model says ``text``: its ``url`` and its ``engine``.

    The model thinks as Qwen 3 does and calls as Hermes does.
    """
    client = ScriptedClient(text)
    stack = Stack(client, max_model_len=2048)
    client.encode = stack.ids
    client.decode = lambda ids: stack.tokenizer.decode(ids, skip_special_tokens=False)
    stack.factory.formats = AnswerFormats(
        stack.tokenizer, tool_format("hermes", "", ""), reasoning_format("qwen3", "", "")
    )
    server_config = ServerConfig(port=0, api_key=[KEY], **config)
    served = SimpleNamespace(services=stack, draining=False)
    app = create_app(served, server_config, Activity())
    with contextlib.closing(bind(server_config)) as listener:
        web = WebServer(app)
        running = asyncio.create_task(web.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{port}", engine=client, stack=stack)
        finally:
            web.stop()
            await running
    stack.dispatcher.check()


def run(scenario) -> None:
    """Run an async test, for ten seconds at most."""
    asyncio.run(asyncio.wait_for(scenario, 10))
