"""Token embedding and the language-model head, tied or not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from xllm.hardware.kernels.tokens import Tokens
from xllm.modeling.layers.linear import Linear
from xllm.modeling.layers.target import Target
from xllm.modeling.quantization.base import QuantMethod


class Embedding(nn.Module):
    """Rows of a float table (vocab_size, H), times ``scale`` rounded to the table's dtype."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, scale: float = 1.0, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype), False)
        self.scale = None if scale == 1.0 else torch.tensor(scale, dtype=dtype)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{prefix}.weight", Target(shape, self._load, extra_rows=True)

    def after_load(self) -> None:
        pass

    def forward(self, token_ids: Tensor) -> Tensor:
        """(T,) -> (T, H)."""
        hidden = F.embedding(token_ids, self.weight)
        return hidden if self.scale is None else hidden * self.scale

    def _load(self, weight: Tensor) -> None:
        self.weight.copy_(weight[: self.weight.shape[0]])


# Matrix libraries fall back to kernels several times slower where rows of the result do not begin
# at multiples of 16 bytes; Qwen3 has 151,669 tokens.
_UNIT = 64


class Head(Linear):
    """Hidden states to logits over the real vocabulary: of the checkpoint's padding, no row is
    multiplied, but for up to 63 rows of zeros whose logits are cut off.

    Args:
        num_rows: rows of the checkpoint's matrix (the config's vocab_size).
        vocab_size: rows that are real tokens, at most ``num_rows``.
        tied: the embedding to take the weights from; the checkpoint's own head is then ignored.
    """

    def __init__(
        self,
        hidden_size: int,
        num_rows: int,
        vocab_size: int,
        *,
        tied: Embedding | None,
        method: QuantMethod,
        dtype: torch.dtype,
    ) -> None:
        assert vocab_size <= num_rows
        padded = -(-vocab_size // _UNIT) * _UNIT
        super().__init__(hidden_size, padded, method=method, dtype=dtype)
        self._vocab_size = vocab_size
        self._tied = (tied,)  # in a tuple: not a submodule of this layer

    @property
    def tied(self) -> bool:
        """Whether the weights are the embedding's."""
        return self._tied[0] is not None

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        if not self.tied:
            shape = (self._vocab_size, self.in_features)
            yield f"{prefix}.weight", Target(shape, self._load, extra_rows=True)

    def after_load(self) -> None:
        embedding = self._tied[0]
        if embedding is not None:
            self._load(embedding.weight)
        super().after_load()

    def forward(self, x: Tokens) -> Tensor:
        """(M, H) -> (M, vocab_size), rows perhaps apart in memory."""
        return super().forward(x)[:, : self._vocab_size]

    def _load(self, weight: Tensor) -> None:
        self.method.load_rows(self, 0, weight[: self._vocab_size])
        zeros = weight.new_zeros(self.out_features - self._vocab_size, self.in_features)
        self.method.load_rows(self, self._vocab_size, zeros)
