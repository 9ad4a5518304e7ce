"""``min_tokens``: no token that could end the sequence before that many were generated."""

from __future__ import annotations

import numpy as np
import torch

from xllm.execution.sampling.processors._base import SparseProcessor
from xllm.execution.sampling.step import RowRequest, SamplingStep


class Processor(SparseProcessor):
    """Bans ``suppress_token_ids`` (EOS and stop tokens) while a row is too short."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        super().__init__(max_rows, vocab_size, device)
        self._vocab_size = vocab_size
        self._min_tokens = np.zeros(max_rows, np.int64)

    def add_request(self, request: RowRequest) -> None:
        """Take over a row's ban, if it is still too short."""
        output = request.sampling.structured_output
        if output is not None and output.kind != "free":
            return  # its grammar knows whether anything else is left: see ``grammar.minimum``
        minimum = request.sampling.params.min_tokens
        # EOS ids of the model's config may lie in the padding: those are never sampled anyway.
        banned = [i for i in request.sampling.suppress_token_ids if 0 <= i < self._vocab_size]
        if banned and len(request.token_ids) - request.prompt_len < minimum:
            self._table.set(request.row, list(dict.fromkeys(banned)))
            self._min_tokens[request.row] = minimum

    def stage(self, step: SamplingStep) -> bool:
        """Find the entries of rows that are still too short."""
        self._entries = self._table.gather(step, step.output_lens < self._min_tokens[step.rows])
        return self._entries is not None

    def apply(self, logits: torch.Tensor) -> None:
        """Set the logits of the banned tokens to -inf."""
        entries = self._entries
        assert entries is not None
        logits[entries.rows, entries.token_ids] = -torch.inf
