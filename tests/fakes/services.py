"""The frontend's services over a scripted engine, for tests of what clients see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from tests.fakes import tokenizers as fakes
from tests.fakes.engine_client import FakeEngineClient, row
from xllm.core.config.server import ServerConfig
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake import Limits, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output import OutputProcessor
from xllm.frontend.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    decode_request,
)
from xllm.frontend.services import (
    BeamService,
    ChatService,
    CompletionService,
    Conversations,
    MessageService,
    ModelService,
    OutputDispatcher,
    RenderService,
    ResponseService,
    ResponseStore,
    TokenizeService,
)
from xllm.frontend.text.chat_template import ChatTemplate
from xllm.frontend.text.tokenizer import Tokenizer

EOS = 1
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


class Stack:
    """The frontend around a fake engine."""

    def __init__(
        self,
        client: FakeEngineClient | None = None,
        *,
        max_model_len: int = 256,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.tokenizer = tokenizer or fakes.byte_level()
        self.client = client or FakeEngineClient()
        limits = Limits.from_config(ServerConfig(), max_model_len, self.tokenizer.vocab_size)
        self.factory = RequestFactory(
            self.tokenizer,
            limits,
            chat_template=ChatTemplate(TEMPLATE),
            eos_token_ids=[EOS],
        )
        self.served = ServedModels("tiny")
        self.dispatcher = OutputDispatcher(self.client, OutputProcessor(self.tokenizer, [EOS]))
        served = self.served
        beams = BeamService(self.factory, self.dispatcher, served)
        self.conversations = Conversations(self.factory, self.dispatcher, served)
        self.chat = ChatService(self.conversations, beams)
        self.completions = CompletionService(self.factory, self.dispatcher, served, beams)
        self.models = ModelService(self.served, max_model_len, self.factory.task)
        self.render = RenderService(self.factory, served)
        self.messages = MessageService(self.conversations, self.render)
        self.store = ResponseStore(1 << 20, 60.0)
        self.responses = ResponseService(self.conversations, self.store, max_background=2)
        self.tokenize = TokenizeService(self.factory, served)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def start(self, kind: str, **fields):
        if kind == "chat":
            fields.setdefault("messages", [{"role": "user", "content": "Hi"}])
            body = decode_request(ChatCompletionRequest, msgspec.json.encode(fields))
            return asyncio.ensure_future(self.chat.handle(body))
        fields.setdefault("prompt", "hello")
        body = decode_request(CompletionRequest, msgspec.json.encode(fields))
        return asyncio.ensure_future(self.completions.handle(body))

    async def request(self, index: int = 0) -> int:
        """Handle of the index-th request, once the engine has it."""
        while len(self.client.requests) <= index:
            await asyncio.sleep(0)
        return self.client.requests[index].handle

    async def play(self, text: str, *, per_step: int = 1, logprobs=None, eos: bool = True):
        """Answer the first request with a text, then EOS."""
        handle = await self.request()
        tokens = [*self.ids(text), *([EOS] if eos else [])]
        for i in range(0, len(tokens), per_step):
            group = tokens[i : i + per_step]
            last = i + per_step >= len(tokens)
            finish = (STOP if eos else LENGTH) if last else FinishReason.NONE
            stop_token = EOS if last and eos else -1
            self.client.deliver(
                row(handle, group, finish, stop_token=stop_token), logprobs=logprobs
            )
            await asyncio.sleep(0)


async def collect(stream) -> list:
    events = []
    async for chunks in stream:
        assert chunks
        events += msgspec.json.decode(msgspec.json.encode(chunks))
    return events


async def answer(kind: str, text: str, **fields):
    """The decoded answer, or the events of a stream, to a request that the engine plays."""
    stack = Stack()
    options = {k: fields.pop(k) for k in ("per_step", "eos", "logprobs_columns") if k in fields}
    options["logprobs"] = options.pop("logprobs_columns", None)
    task = stack.start(kind, **fields)
    playing = asyncio.ensure_future(stack.play(text, **options))
    result = await task
    if fields.get("stream"):
        result = await collect(result)
    else:
        result = msgspec.json.decode(msgspec.json.encode(result))
    await playing
    stack.dispatcher.check()
    assert stack.dispatcher.num_open == 0
    return result


def joined(events: Sequence[dict], kind: str) -> str:
    choices = [c for e in events for c in e["choices"]]
    if kind == "chat":
        return "".join(c["delta"].get("content") or "" for c in choices)
    return "".join(c["text"] for c in choices)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))
