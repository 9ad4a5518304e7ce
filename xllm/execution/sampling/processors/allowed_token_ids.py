"""``allowed_token_ids``: only these tokens may be sampled."""

from __future__ import annotations

import torch

from xllm.execution.sampling.processors._base import SparseProcessor
from xllm.execution.sampling.step import RowRequest


class Processor(SparseProcessor):
    """Bans everything that is not on a row's list."""

    def add_request(self, request: RowRequest) -> None:
        """Take over a row's list, if it has one."""
        allowed = request.sampling.params.allowed_token_ids
        if allowed is not None:
            self._table.set(request.row, list(dict.fromkeys(allowed)))

    def apply(self, logits: torch.Tensor) -> None:
        """Set the logits of all other tokens to -inf."""
        entries = self._entries
        assert entries is not None
        kept = logits[entries.rows, entries.token_ids]
        logits.index_fill_(0, entries.step_rows, -torch.inf)
        logits[entries.rows, entries.token_ids] = kept
