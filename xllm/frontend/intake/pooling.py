"""Inputs of pooling models to engine requests."""

from __future__ import annotations

import dataclasses
import itertools
import time
import uuid
from collections.abc import Iterable, Sequence

import numpy as np

from xllm.core.config.files import PoolingSpec
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.factory import PreparedRequest, check_request_id
from xllm.frontend.intake.limits import Limits
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.pooling import Input, PoolingFields
from xllm.frontend.text.tokenizer import Tokenizer

_NO_TOKENS = SamplingParams(max_tokens=0)


@dataclasses.dataclass(frozen=True, slots=True)
class PoolingOptions:
    """What holds for every input of one request.

    ``truncate`` is the most tokens of a prompt, special ones included; None refuses longer ones.
    """

    truncate: int | None = None
    priority: int = 0
    request_id: str | None = None
    cache_salt: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedPairs:
    """One request per pair; or, for a model that embeds, one per text and the place of each
    pair's two texts."""

    prepared: list[PreparedRequest]
    places: list[tuple[int, int]] | None = None


class PoolingFactory:
    """Makes engine requests of texts, token ids and pairs of texts.

    Every public method raises ``RequestError`` (400) for what it cannot accept, naming the field.

    Args:
        tokenizer: the model's.
        limits: server maxima and model sizes.
        spec: how the model pools.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits, spec: PoolingSpec) -> None:
        self.limits = limits
        self.spec = spec
        self._tokenizer = tokenizer
        self._handles = itertools.count(1)

    def options(self, body: PoolingFields) -> PoolingOptions:
        """The common fields of an API body."""
        try:
            asked, limit = body.truncate_prompt_tokens, self.limits.max_model_len
            if asked is not None and asked != -1 and not 1 <= asked <= limit:
                raise ValueError(
                    f"truncate_prompt_tokens must be -1 or between 1 and {limit}, got {asked}"
                )
            self.limits.check_priority(body.priority or 0)
            check_request_id(body.request_id)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        return PoolingOptions(
            limit if asked == -1 else asked, body.priority or 0, body.request_id, body.cache_salt
        )

    def inputs(
        self,
        entries: Input,
        options: PoolingOptions,
        *,
        add_special_tokens: bool = True,
    ) -> list[PreparedRequest]:
        """One request per text or list of token ids, in order."""
        try:
            return self._inputs("input", entries, options, add_special_tokens)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def check_count(self, field: str, count: int) -> None:
        """Check how many pairs there will be, before any is made."""
        try:
            self.limits.check_entries(field, count)
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def pairs(
        self,
        fields: tuple[str, str],
        pairs: Sequence[tuple[str, str]],
        options: PoolingOptions,
    ) -> PreparedPairs:
        """What scores pairs of texts, their number checked. ``fields`` name the two sides."""
        try:
            if self.spec.task == "embed":
                return self._apart(fields[1], pairs, options)
            if self.spec.size != 1:
                raise ValueError(f"scores need a model with one label, this has {self.spec.size}")
            if self._tokenizer.types_pairs and self.spec.num_token_types == 1:
                raise ValueError(
                    f"{fields[1]} cannot be read beside {fields[0]}: the tokenizer gives a pair's "
                    "second text token type 1, and the model has type 0 alone (type_vocab_size)"
                )
            return PreparedPairs(self._together(fields, pairs, options))
        except ValueError as error:
            raise RequestError.from_value_error(error) from None

    def _apart(
        self, field: str, pairs: Sequence[tuple[str, str]], options: PoolingOptions
    ) -> PreparedPairs:
        """Each distinct text once, and where the texts of every pair are among them."""
        place: dict[str, int] = {}
        for text in itertools.chain.from_iterable(pairs):
            place.setdefault(text, len(place))
        places = [(place[first], place[second]) for first, second in pairs]
        prepared = [self._make(field, ids, options) for ids in self._texts(field, place, options)]
        return PreparedPairs(prepared, places)

    def _together(
        self, fields: tuple[str, str], pairs: Sequence[tuple[str, str]], options: PoolingOptions
    ) -> list[PreparedRequest]:
        """One request per pair; a text that is repeated is tokenized once."""
        sides = []
        for side, field in enumerate(fields):
            texts = list(dict.fromkeys(pair[side] for pair in pairs))
            sides.append(dict(zip(texts, self._encode(field, texts, options), strict=True)))
        return [
            self._pair(fields[1], sides[0][first], sides[1][second], options)
            for first, second in pairs
        ]

    def _inputs(
        self, field: str, entries: Input, options: PoolingOptions, special: bool
    ) -> list[PreparedRequest]:
        if isinstance(entries, str):
            entries = [entries]
        elif entries and isinstance(entries[0], int):
            if options.truncate is None and len(entries) > self.limits.max_model_len:
                self.limits.check_prompt(field, entries, 0)  # type: ignore[arg-type]
            if not all(type(entry) is int for entry in entries):
                raise ValueError(f"{field} must hold only strings, only ids or only lists of ids")
            entries = [entries]  # type: ignore[list-item]
        self.limits.check_entries(field, len(entries))
        texts = [entry for entry in entries if isinstance(entry, str)]
        if len(texts) == len(entries):
            prompts = self._texts(field, texts, options, special)
        else:
            prompts = [_cut(entry, options, 0) for entry in entries if isinstance(entry, list)]
            if len(prompts) != len(entries):
                raise ValueError(f"{field} must hold only strings, only ids or only lists of ids")
        return [self._make(field, ids, options) for ids in prompts]

    def _texts(
        self, field: str, texts: Iterable[str], options: PoolingOptions, special: bool = True
    ) -> list[list[int]]:
        frame = self._tokenizer.frame_size if special else 0
        return [
            self._tokenizer.framed(_cut(ids, options, frame), special)
            for ids in self._encode(field, list(texts), options)
        ]

    def _pair(
        self, field: str, first: list[int], second: list[int], options: PoolingOptions
    ) -> PreparedRequest:
        if options.truncate is not None:
            # The longer text is cut first, as Hugging Face's "longest_first" does.
            room = max(0, options.truncate - self._tokenizer.pair_frame_size)
            keep = min(len(first), max(room - len(second), (room + 1) // 2))
            first, second = first[:keep], second[: room - keep]
        ids, second_start = self._tokenizer.pair(first, second)
        return self._make(field, ids, options, second_start)

    def _encode(self, field: str, texts: Sequence[str], options: PoolingOptions) -> list[list[int]]:
        """Token ids without special ones; a text that will be cut may be of any length."""
        if options.truncate is None:
            for text in texts:
                self.limits.check_text(field, len(text), self._tokenizer.max_token_chars)
        else:
            most = self.limits.max_chars(self._tokenizer.max_token_chars)
            texts = [text[:most] for text in texts]
        if self.spec.lowercase:
            texts = [text.lower() for text in texts]
        return self._tokenizer.encode_batch(texts, add_special_tokens=False)

    def _make(
        self, field: str, ids: Sequence[int], options: PoolingOptions, second_start: int = 0
    ) -> PreparedRequest:
        self.limits.check_prompt(field, ids, max_tokens=0)
        request = Request(
            handle=next(self._handles),
            request_id=options.request_id or uuid.uuid4().hex,
            prompt_token_ids=np.array(ids, dtype=np.int32),
            params=_NO_TOKENS,
            max_tokens=0,
            priority=options.priority,
            arrival_time=time.monotonic(),
            cache_salt=options.cache_salt or None,
            second_start=second_start,
        )
        return PreparedRequest(request)


def _cut(ids: list[int], options: PoolingOptions, frame: int) -> list[int]:
    """The first tokens that fit beside ``frame`` special ones."""
    return ids if options.truncate is None else ids[: max(0, options.truncate - frame)]
