"""``logit_bias``: add a number to the logits of given tokens."""

from __future__ import annotations

import torch

from xllm.execution.sampling.processors._base import SparseProcessor
from xllm.execution.sampling.step import RowRequest


class Processor(SparseProcessor):
    """Adds each row's bias."""

    def add_request(self, request: RowRequest) -> None:
        """Take over a row's bias, if it has one."""
        bias = request.sampling.params.logit_bias
        if bias:
            self._table.set(request.row, list(bias), list(bias.values()))

    def apply(self, logits: torch.Tensor) -> None:
        """Add the staged biases."""
        entries = self._entries
        assert entries is not None
        logits.index_put_((entries.rows, entries.token_ids), entries.values, accumulate=True)
