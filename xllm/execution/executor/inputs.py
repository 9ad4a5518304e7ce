"""What the executor is given and returns. Shapes: T tokens, S rows, M sampling rows, H, V."""

from __future__ import annotations

import dataclasses

import torch

from xllm.modeling.attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, slots=True)
class BatchShape:
    """What decides which runner takes a batch."""

    num_tokens: int
    num_rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInputs:
    """One step as the model sees it. Borrowed: valid until the next step is built."""

    input_ids: torch.Tensor  # (T,) int32
    positions: torch.Tensor  # (T,) int64
    metadata: tuple[AttentionMetadata, ...]  # one per cache group
    logits_index: torch.Tensor | None  # (M,) int64 into T; None where every token samples
    shape: BatchShape
    token_types: torch.Tensor | None = None  # (T,) int64; see ``ForwardContext``


@dataclasses.dataclass(frozen=True, slots=True)
class ModelOutput:
    """Hidden states of every token, logits of those that sample."""

    hidden: torch.Tensor  # (T, H)
    logits: torch.Tensor  # (M, V) in the head's dtype
