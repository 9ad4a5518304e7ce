"""The files of a resolved model, as plain values that cross process boundaries as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PoolingSpec:
    """How a model that answers with vectors makes one of a prompt.

    Built by ``modeling.weights.pooling``. The worker computes the raw vector, the frontend what
    comes after it: dimensions, norm, activation, labels.
    """

    task: str  # "embed" or "classify"
    method: str  # "cls" (first token), "last" or "mean"
    whole_prompts: bool  # a prompt is computed in one step, and nothing of it found in a cache
    size: int  # numbers in a vector
    max_len: int | None = None  # tokens that the model was trained on, if it says so
    lowercase: bool = False  # texts, before they are tokenized
    normalize: bool = False  # embed: to length 1
    dimensions: tuple[int, ...] | None = None  # embed: sizes to cut to; () any, None unsupported
    labels: tuple[str, ...] = ()  # classify: one per output
    activation: str = "identity"  # classify: "softmax", "sigmoid" or "identity"
    num_token_types: int | None = None  # that the model has embeddings of; None: it takes no types


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """Where a model's parts lie and what they say about it.

    Built by ``modeling.weights.source.resolve_model``; every path is local and absolute.
    """

    name: str  # the model argument as given
    folder: str  # holds the weights (and usually the tokenizer)
    config: dict[str, Any]  # config.json, or its equivalent made from GGUF metadata
    format: str  # "safetensors", "gguf" or "dummy"
    weights: tuple[str, ...] = ()  # weight files; empty for dummy
    tokenizer_file: str | None = None  # tokenizer.json
    gguf_file: str | None = None  # set when tokenizer and template come from GGUF metadata
    tokenizer_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    generation_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    chat_template: str | None = None  # Jinja source
    tool_template: str | None = None  # of conversations with tools, where it is another
    vocab_size: int | None = None  # token ids the tokenizer knows; None without a tokenizer
    pooling: PoolingSpec | None = None  # None: the model generates text

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence: the generation config's, else the model config's.

        Raises:
            ValueError: they are no integers.
        """
        for source in (self.generation_config, self.config):
            value = source.get("eos_token_id")
            if value is not None:
                ids = tuple(value) if isinstance(value, list | tuple) else (value,)
                if not all(type(token_id) is int for token_id in ids):
                    raise ValueError(f"eos_token_id must be an id or a list of ids, got {value!r}")
                return ids
        return ()
