"""Everything a request needs before the engine sees it, in one place and in one order.

Check fields, render the template, check the length, tokenize, check the ids, resolve. Nothing
here waits or touches the event loop, so it runs in any thread.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from xllm.core.grammar import GrammarCache, GrammarCompiler
from xllm.core.request.request import Request, Targets
from xllm.core.request.sampling import MAX_SEED, SamplingParams
from xllm.frontend.intake import unserved
from xllm.frontend.intake.bad_words import bad_word_token_ids
from xllm.frontend.intake.defaults import SamplingDefaults
from xllm.frontend.intake.grammar_check import GrammarCheck
from xllm.frontend.intake.limits import Limits
from xllm.frontend.intake.messages import prefill_of, thinking_is_off
from xllm.frontend.intake.params import chat_params, completion_params, targets_of
from xllm.frontend.intake.prompts import Prompts
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.intake.structured import Form, asked_form, to_grammar
from xllm.frontend.intake.thinking import FIELD as BUDGET_FIELD
from xllm.frontend.intake.thinking import bound_thoughts
from xllm.frontend.intake.tools import ToolUse, tool_use
from xllm.frontend.intake.truncation import num_kept
from xllm.frontend.intake.unserved import check_served
from xllm.frontend.output.answer import GRAMMAR_FIELD
from xllm.frontend.parsers import MessageParser
from xllm.frontend.parsers.answer import AnswerFormats, Expected
from xllm.frontend.protocol.chat import ChatCompletionRequest
from xllm.frontend.protocol.completions import CompletionRequest
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.text.chat_template import ChatTemplate
from xllm.frontend.text.tokenizer import Tokenizer

# Choice i samples with seed + i; the sum must stay a signed 64-bit number.
_SEED_RANGE = MAX_SEED - (1 << 20)
_MAX_REQUEST_ID = 128
_ENDPOINTS = {"embed": "/v1/embeddings", "classify": "/v1/classify, /v1/score or /v1/rerank"}


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request for the engine, and what reading its answer takes.

    ``prompt_text`` is the prompt if it came as text and all of it is used. ``new_parser`` makes the
    reader of one choice's text; None where all of it is content. ``grammar_field`` is what an error
    of the request's grammar blames.
    """

    request: Request
    prompt_text: str | None = None
    new_parser: Callable[[], MessageParser] | None = None
    token_table: Sequence[bytes] | None = None  # what the parser wants to see of each token
    grammar_field: str = GRAMMAR_FIELD


class RequestFactory:
    """Makes engine requests of API bodies (server) or prompts and parameters (offline).

    Every public method raises ``RequestError`` (400) for what it cannot accept, naming the field.

    Args:
        tokenizer: the model's.
        limits: server maxima and model sizes.
        chat_template: None when the model has none; then chats are refused.
        defaults: sampling values for fields that a request leaves out.
        eos_token_ids: every id that ends a text.
        seed: seeds requests that bring no seed, in order of arrival.
        formats: how the model writes thoughts and tool calls.
        served: finds the adapter that a body's ``model`` names; None where there are no names.
        task: what the model is served for; unless that is ``generate``, every request is refused.

    Attributes:
        prompts: what makes token ids of texts and conversations.
        formats: as given.
        eos_token_ids: as given, those within the vocabulary.
        grammars: what compiles the grammars of prepared requests, to be asked before they are sent.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        chat_template: ChatTemplate | None = None,
        defaults: SamplingDefaults | None = None,
        eos_token_ids: Sequence[int] = (),
        seed: int = 0,
        formats: AnswerFormats | None = None,
        served: ServedModels | None = None,
        task: str = "generate",
    ) -> None:
        self._served = served
        self.tokenizer = tokenizer
        self.limits = limits
        self.defaults = defaults or SamplingDefaults()
        self.prompts = Prompts(tokenizer, limits, chat_template)
        self.formats = formats or AnswerFormats(tokenizer)
        self.eos_token_ids = tuple(i for i in eos_token_ids if i < limits.vocab_size)
        self.grammars = GrammarCheck(GrammarCache(self._grammar_compiler, max_lanes=0))
        self._handles = itertools.count(1)
        self._random = random.Random(seed)
        self._task = task

    @property
    def task(self) -> str:
        """``chat``, or ``generate`` without a chat template, ``embed`` or ``classify``."""
        chats = self._task == "generate" and self.prompts.has_chat_template
        return "chat" if chats else self._task

    def from_chat(self, body: ChatCompletionRequest) -> PreparedRequest:
        """A chat request: one prompt, ``n`` choices."""
        self.check_generates()
        try:
            check_served(body, unserved.CHAT)
            self.limits.check_top_logprobs(body.top_logprobs)
            params = chat_params(body, self.defaults)
            tools = tool_use(body)
            text = self.prompts.render(body, tools)
            keep = num_kept(body.truncate_prompt_tokens, params.max_tokens, self.limits)
            special = body.add_special_tokens is True
            ((shown, ids),) = self.prompts.encode_last("messages", [text], special, keep)
            self.limits.check_logprobs(params, [len(ids)], bool(body.stream))
            thinking = self.formats.thinking(text, prefill_of(body))
            off = thinking is None and thinking_is_off(body)  # and the template does not say so
            begins = False if off else thinking
            form = self._form(body, tools, begins)
            prepared = self._make("messages", ids, params, body, shown, form)
            if (budget := body.thinking_token_budget) is not None:
                prepared = self._bounded(prepared, budget, begins)
            expected = Expected(
                tools=tools.schemas,
                max_calls=1 if tools.parallel is False else None,
                thinking=thinking,
                implied=not off,
                keep_reasoning=body.include_reasoning is not False,
                forced=tools.reader,
            )
            return self._with_parser(prepared, expected)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def from_completion(self, body: CompletionRequest) -> list[PreparedRequest]:
        """A completion request: one entry per prompt, in order."""
        self.check_generates()
        try:
            check_served(body, unserved.COMPLETION)
            self.limits.check_best_of(body.best_of)
            params = completion_params(body, self.defaults)
            keep = num_kept(body.truncate_prompt_tokens, params.max_tokens, self.limits)
            prompts = self.prompts.of_completion(body, params.n, keep)
            if params.logprobs is not None or params.prompt_logprobs is not None:
                lens = [len(ids) for _, ids in prompts]
                self.limits.check_logprobs(params, lens, bool(body.stream))
            return [
                self._make("prompt", ids, params, body, text, asked_form(body))
                for text, ids in prompts
            ]
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def create(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        adapter: int = 0,
    ) -> PreparedRequest:
        """A request from parameters that are already there (offline use)."""
        self.check_generates()
        try:
            text = prompt if isinstance(prompt, str) else None
            ids = prompt if text is None else self.prompts.encode("prompt", [text], True)[0]
            assert not isinstance(ids, str)
            return self._resolve("prompt", ids, params, text, priority, adapter=adapter)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def successor(
        self, request: Request, token_ids: Sequence[int], params: SamplingParams
    ) -> PreparedRequest:
        """A request of our own that goes on from another's prompt and some tokens of an answer.

        ``params`` are trusted, and ``max_tokens`` is among them. Priority, adapter, salt and times
        are the other request's; nothing but the length ends it.
        """
        assert params.max_tokens is not None
        handle = next(self._handles)
        successor = msgspec.structs.replace(
            request,
            handle=handle,
            request_id=f"{request.request_id}-{handle}",
            prompt_token_ids=np.array(
                [*request.prompt_token_ids.tolist(), *token_ids], dtype=np.int32
            ),
            params=params,
            max_tokens=params.max_tokens,
            stop_token_ids=(),
            suppress_token_ids=(),
            bad_words_token_ids=(),
            structured_output=None,
            part_of=request.handle,
        )
        return PreparedRequest(successor)

    def check_generates(self) -> None:
        """Refuse what only a model that generates text can do.

        Raises:
            RequestError: 400; the model answers with vectors.
        """
        if self._task != "generate":
            raise RequestError(
                400,
                f"the model does not generate text: it is served with --task {self._task}; "
                f"use {_ENDPOINTS[self._task]}",
            )

    def _form(
        self, body: ChatCompletionRequest, tools: ToolUse, thinking: bool | None
    ) -> Form | None:
        """The grammar of the answer, which begins where the thoughts end."""
        tag = self.formats.end_of_thoughts(thinking)
        token_id = self.tokenizer.token_id(tag) if tag else None
        after_ids = () if token_id is None else (token_id,)
        after_text = tag if token_id is None else ""
        forced = tools.form(after_ids, after_text)
        asked = asked_form(body)
        if asked is None:
            return forced
        if forced is not None:
            raise ValueError(f"tool_choice that forces a call excludes {asked.field}")
        params = msgspec.structs.replace(
            asked.params, after_token_ids=after_ids, after_text=after_text
        )
        return Form(params, asked.field)

    def _bounded(
        self, prepared: PreparedRequest, budget: int, thinking: bool | None
    ) -> PreparedRequest:
        before = prepared.request
        request = bound_thoughts(before, budget, self.formats, self.tokenizer, thinking)
        field = prepared.grammar_field if before.structured_output is not None else BUDGET_FIELD
        return dataclasses.replace(prepared, request=request, grammar_field=field)

    def _with_parser(self, prepared: PreparedRequest, expected: Expected) -> PreparedRequest:
        new_parser = self.formats.parser(expected)
        if new_parser is None:
            return prepared
        skip = prepared.request.params.skip_special_tokens
        table = self.formats.token_table(skip)
        return dataclasses.replace(prepared, new_parser=new_parser, token_table=table)

    def _grammar_compiler(self) -> GrammarCompiler:
        return GrammarCompiler(
            self.tokenizer.vocabulary(self.limits.vocab_size, self.eos_token_ids)
        )

    def _make(
        self,
        field: str,
        ids: Sequence[int],
        params: SamplingParams,
        body: ChatCompletionRequest | CompletionRequest,
        text: str | None,
        form: Form | None,
    ) -> PreparedRequest:
        check_request_id(body.request_id)
        return self._resolve(
            *(field, ids, params, text, body.priority or 0),
            adapter=self._served.adapter(body.model) if self._served is not None else 0,
            form=form,
            targets=targets_of(body),
            cache_salt=body.cache_salt,
            request_id=body.request_id,
        )

    def _resolve(
        self,
        field: str,
        ids: Sequence[int],
        params: SamplingParams,
        text: str | None,
        priority: int,
        *,
        form: Form | None = None,
        adapter: int = 0,
        targets: Targets = Targets(),  # noqa: B008 - frozen
        cache_salt: str | None = None,
        request_id: str | None = None,
    ) -> PreparedRequest:
        limits = self.limits
        limits.check_params(params)
        limits.check_priority(priority)
        limits.check_prompt(field, ids, params.max_tokens)
        if params.top_k >= limits.vocab_size:
            params = _replace(params, top_k=0)  # keeping the whole vocabulary filters nothing
        if params.structured_outputs is not None:
            form = Form(params.structured_outputs, GRAMMAR_FIELD)
            params = _replace(params, structured_outputs=None)
        room = limits.max_model_len - len(ids)
        # A grammar that has come to its end leaves nothing but EOS to sample.
        ends = () if params.ignore_eos and form is None else self.eos_token_ids
        stop_token_ids = tuple(dict.fromkeys((*ends, *params.stop_token_ids)))
        seed = self._random.getrandbits(62) if params.seed is None else params.seed
        request = Request(
            handle=next(self._handles),
            request_id=request_id or uuid.uuid4().hex,
            prompt_token_ids=np.array(ids, dtype=np.int32),
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_token_ids=stop_token_ids,
            suppress_token_ids=stop_token_ids if params.min_tokens else (),
            bad_words_token_ids=bad_word_token_ids(self.tokenizer, params.bad_words),
            seed=seed % _SEED_RANGE,
            priority=priority,
            arrival_time=time.monotonic(),
            cache_salt=cache_salt or None,
            adapter=adapter,
            targets=targets,
            structured_output=None if form is None else to_grammar(form),
        )
        if form is None:
            return PreparedRequest(request, text)
        return PreparedRequest(request, text, grammar_field=form.field)


def check_request_id(request_id: str | None) -> None:
    """Check the length of a name that the client chose.

    Raises:
        ValueError: it is too long.
    """
    if request_id is not None and len(request_id) > _MAX_REQUEST_ID:
        raise ValueError(f"request_id must have at most {_MAX_REQUEST_ID} characters")


def _replace(params: SamplingParams, **changes: Any) -> SamplingParams:
    """The same with other values, which are checked again."""
    values = {name: getattr(params, name) for name in params.__struct_fields__}
    return SamplingParams(**{**values, **changes})
