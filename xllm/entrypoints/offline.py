"""The offline API: ``LLM`` runs a model in this process, ``AsyncLLM`` in one of its own.

Shapes of arguments and results follow what users of vLLM know.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from xllm.assembly.inproc import InprocEngine
from xllm.assembly.text import load_text
from xllm.core.config import XllmConfig
from xllm.core.config.flags import make_config
from xllm.core.messages.server import EngineProgress, EngineStats
from xllm.core.request.sampling import SamplingParams
from xllm.entrypoints.beam import BeamSearchOutput, BeamSearchParams, search_all
from xllm.entrypoints.outputs import Collector, RequestOutput, plain_error
from xllm.entrypoints.pooled import (
    ClassificationOutput,
    EmbeddingOutput,
    OfflinePooling,
    PooledOutput,
    ScoreOutput,
)
from xllm.frontend.intake import PreparedRequest, RequestFactory
from xllm.frontend.output import AnswerState
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.errors import RequestError

# Text, token ids, or a mapping with "prompt" or "prompt_token_ids".
Prompt = str | Sequence[int] | Mapping[str, Any]
Message = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class LoRARequest:
    """An adapter by name and folder. The number is vLLM's; the name is what counts here."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class LLM:
    """A model loaded into this process.

    Args:
        model: folder, GGUF file, Hugging Face id or bundled short name.
        **options: any option of ``xllm serve`` by its field name, e.g. ``dtype="float32"``,
            ``max_model_len=2048``, ``enable_prefix_caching=False``.

    Raises:
        ValueError: unknown option or value, or a model that cannot be loaded.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        self._start(make_config({"model": model, **options}))

    @classmethod
    def from_config(cls, config: XllmConfig) -> Self:
        """The same from a whole config; raises as the constructor does."""
        self = cls.__new__(cls)
        self._start(config)
        return self

    def _start(self, config: XllmConfig) -> None:
        # Nobody else is kept waiting: any number of prompts may queue.
        scheduler = dataclasses.replace(config.scheduler, max_waiting=sys.maxsize)
        self._engine = InprocEngine(dataclasses.replace(config, scheduler=scheduler))
        try:
            self._load(config)
        except BaseException:  # whoever catches it may load another model
            self._engine.close()
            raise

    def _load(self, config: XllmConfig) -> None:
        ready = self._engine.start()
        text = load_text(config, self._engine.files)
        self._factory = text.request_factory(config, ready)
        self._adapters = {
            name: self._engine.load_adapter(name, folder)
            for name, folder in config.lora.modules.items()
        }
        self._processor = text.output_processor()
        self._pooling = OfflinePooling(text.pooling_factory(config, ready), self._pool)
        self._default_params = text.defaults
        self.max_model_len = ready.max_model_len
        self.vocab_size = ready.vocab_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the model's memory."""
        self._engine.close()

    def stats(self) -> EngineStats:
        """The engine's gauges and counters."""
        return self._engine.stats()

    def default_sampling_params(self) -> SamplingParams:
        """What applies when no parameters are given."""
        values: dict[str, Any] = dict(self._default_params.values)
        return SamplingParams(**values)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, given as texts or as lists of token ids.

        Args:
            prompts: one prompt or several.
            sampling_params: for all prompts, or one for each; by default the model's own
                (``generation_config.json``).
            use_tqdm: show a progress bar.
            lora_request: adapter to use, loaded when its name is new; needs ``enable_lora``.

        Returns:
            One output per prompt, in their order.

        Raises:
            ValueError: a prompt or parameter that cannot be served; names field and limit.
            RuntimeError: a sequence failed while it ran.
        """
        adapter = self._adapter(lora_request)
        prompt_list = _as_list(prompts)
        params = _one_each(sampling_params or self.default_sampling_params(), len(prompt_list))
        prepared = [
            _prepare(self._factory, _plain(prompt), each, adapter)
            for prompt, each in zip(prompt_list, params, strict=True)
        ]
        return self._run(prepared, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several.

        Args:
            messages: OpenAI messages of one conversation, or a list of conversations.
            lora_request: as in ``generate``.
            **options: ``tools``, ``add_generation_prompt``, ``continue_final_message`` or
                ``chat_template_kwargs``, as in the HTTP API.
        """
        adapter = self._adapter(lora_request)
        chats = [messages] if messages and isinstance(messages[0], dict) else messages
        params = _one_each(sampling_params or self.default_sampling_params(), len(chats))
        prompts = [self._render(chat, options) for chat in chats]
        prepared = [
            dataclasses.replace(_prepare(self._factory, ids, each, adapter), prompt_text=text)
            for (text, ids), each in zip(prompts, params, strict=True)
        ]
        return self._run(prepared, use_tqdm)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """Find the likeliest continuations of prompts.

        Returns:
            One output per prompt, with ``beam_width`` sequences at most, best first.

        Raises:
            ValueError: a prompt or parameter that cannot be served.
        """
        sampling = SamplingParams(
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
            include_stop_str_in_output=params.include_stop_str_in_output,
        )
        prepared = [_prepare(self._factory, _plain(each), sampling) for each in _as_list(prompts)]
        return search_all(
            self._factory, prepared, params, lambda requests: self._run(requests, False)
        )

    def _adapter(self, lora_request: LoRARequest | None) -> int:
        """The engine's number of an adapter, which is loaded if need be."""
        if lora_request is None:
            return 0
        name = lora_request.lora_name
        if name not in self._adapters:
            self._adapters[name] = self._engine.load_adapter(name, lora_request.lora_path)
        return self._adapters[name]

    def _render(self, chat: Any, options: dict[str, Any]) -> tuple[str, list[int]]:
        body = msgspec.convert(
            {"model": "", "messages": list(chat), **options}, ChatCompletionRequest, strict=False
        )
        text = self._factory.prompts.render(body)
        return text, self._factory.prompts.encode("messages", [text], False)[0]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PooledOutput[EmbeddingOutput]]:
        """One embedding per prompt: ``output.outputs.embedding``.

        Args:
            dimensions: cut embeddings to this size, where the model's are made for it.
            truncate_prompt_tokens: keep only that many tokens of a longer prompt, -1 as many as the
                context holds; by default longer prompts are refused.

        Raises:
            ValueError: the model does not embed, or a prompt cannot be served.
            RuntimeError: a prompt failed while it ran.
        """
        return self._pooling.embed(prompts, dimensions, truncate_prompt_tokens, use_tqdm)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PooledOutput[ClassificationOutput]]:
        """The label of each prompt and the scores of all: ``output.outputs.label``, ``.probs``."""
        return self._pooling.classify(prompts, truncate_prompt_tokens, use_tqdm)

    def score(
        self,
        first: str | Sequence[str],
        second: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PooledOutput[ScoreOutput]]:
        """How well texts fit, one to one or one to many: ``output.outputs.score``.

        A model with one label scores each pair; the score of embeddings is their cosine.
        """
        return self._pooling.score(first, second, truncate_prompt_tokens, use_tqdm)

    def _run(self, prepared: Sequence[PreparedRequest], use_tqdm: bool) -> list[RequestOutput]:
        collector = Collector(self._factory.tokenizer.decode)
        answers = [
            collector.open(each, self._processor.add(each.request, keep_entries=True))
            for each in prepared
        ]
        self._drive(answers, use_tqdm, collector)
        return [collector.close(answer) for answer in answers]

    def _pool(self, prepared: Sequence[PreparedRequest], use_tqdm: bool) -> list[AnswerState]:
        answers = [self._processor.add(each.request) for each in prepared]
        self._drive(answers, use_tqdm)
        for answer in answers:
            if answer.error is not None:
                raise plain_error(answer.error)
        return answers

    def _drive(
        self, answers: Sequence[AnswerState], use_tqdm: bool, collector: Collector | None = None
    ) -> None:
        """Run requests to their end; ``collector`` reads what they bring on the way."""
        requests = [answer.request for answer in answers]
        bar = _progress_bar(len(answers)) if use_tqdm else None
        try:
            # All are here, nobody waits for one of them: the longest begin first, so that rows do
            # not run nearly alone at the end (longest processing time first; Graham 1969).
            self._engine.add(sorted(requests, key=lambda request: -request.max_tokens))
            while self._engine.has_work or any(not answer.finished for answer in answers):
                self._step(collector, bar)
        except BaseException:
            for answer in answers:
                self._processor.discard(answer.request.handle)
            self._engine.abort([a.request.handle for a in answers], [-1] * len(answers))
            raise
        finally:
            if bar is not None:
                bar.close()

    def _step(self, collector: Collector | None, bar: Any) -> None:
        for batch in self._engine.step():
            done = self._processor.process(batch)
            if done.stopped:
                handles, choices = zip(*done.stopped, strict=True)
                self._engine.abort(handles, choices, stopped=True)
            if done.failed:
                self._engine.abort(done.failed, [-1] * len(done.failed))
            for answer in done.touched:
                if collector is not None:
                    collector.read(answer)
                if bar is not None and answer.finished:
                    bar.update()
                    if collector is not None:
                        bar.set_postfix_str(collector.speed(bar.format_dict["elapsed"]))


class AsyncLLM:
    """A model in an engine process of its own, for use from an event loop.

    Args:
        model: as for ``LLM``.
        **options: as for ``LLM``.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        self._config = make_config({"model": model, **options})
        self._stack: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the engine process and load the model.

        Raises:
            ValueError: it cannot be loaded; the process is gone then.
        """
        from xllm.assembly.registry import build

        self._stack = build(self._config, _ignore_progress)
        try:
            await self._stack.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the engine process; open requests end with it. Harmless when not started."""
        if self._stack is not None:
            await self._stack.close()

    async def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Continue a prompt; yields the output so far, again whenever it has grown.

        Raises:
            ValueError: a prompt or parameter that cannot be served.
            RuntimeError: the sequence failed while it ran.
        """
        services = self._stack.services
        params = sampling_params or SamplingParams()
        prepared = _prepare(services.factory, _plain(prompt), params)
        collector = Collector(services.factory.tokenizer.decode)
        try:
            stream = services.dispatcher.submit([prepared], keep_entries=True)
        except RequestError as error:
            raise plain_error(error) from None
        (answer,) = stream.answers
        collector.open(prepared, answer)
        try:
            while True:
                deltas = await stream.read()
                collector.add(answer, [delta for _, delta in deltas])
                # Asked before the yield: while the caller works, the answer goes on.
                last = answer.finished
                yield collector.output(answer)
                if last:
                    return
        except RequestError as error:
            raise plain_error(error) from None
        finally:
            stream.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _prepare(
    factory: RequestFactory, prompt: str | Sequence[int], params: SamplingParams, adapter: int = 0
) -> PreparedRequest:
    try:
        return factory.create(prompt, params, adapter=adapter)
    except RequestError as error:
        raise plain_error(error) from None


def _plain(prompt: Prompt) -> str | Sequence[int]:
    """The text or the ids of a prompt."""
    if not isinstance(prompt, Mapping):
        return prompt
    for key in ("prompt_token_ids", "prompt"):
        if key in prompt:
            found: str | Sequence[int] = prompt[key]
            return found
    raise ValueError("prompts: a mapping needs prompt or prompt_token_ids")


def _one_each(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"sampling_params: {len(params)} given for {count} prompts")
    return params


def _progress_bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="prompts", unit="prompt", dynamic_ncols=True)


def _ignore_progress(message: EngineProgress) -> None:
    pass
