"""Logprobs of prompt tokens, for rows that ask, from the chunks as they are computed."""

from __future__ import annotations

import numpy as np
import torch

from xllm.core.messages.worker import StepPlan
from xllm.execution.executor import Executor
from xllm.execution.sampling.logprobs import TokenLogprobs, prompt_logprobs
from xllm.execution.sampling.table import SamplingTable
from xllm.execution.worker.pending import PromptPart
from xllm.execution.worker.rows import Rows


class PromptScorer:
    """Scores the prompt tokens that a step's hidden states predict."""

    def __init__(self, rows: Rows, table: SamplingTable, executor: Executor) -> None:
        self._rows = rows
        self._table = table
        self._executor = executor

    def score(self, plan: StepPlan, hidden: torch.Tensor) -> list[PromptPart]:
        """One part per row that asks and has prompt tokens after this step's positions.

        The hidden state of position p predicts token p + 1, so a chunk scores the token after its
        last one too, and the first token of a prompt is never scored.
        """
        asked = self._table.prompt_logprobs[plan.rows]
        if not (asked >= 0).any():
            return []
        starts = np.cumsum(plan.num_scheduled) - plan.num_scheduled
        parts = []
        for entry in np.flatnonzero(asked >= 0).tolist():
            row, first = int(plan.rows[entry]), int(plan.num_computed[entry])
            last = first + int(plan.num_scheduled[entry])
            count = min(last, int(self._rows.prompt_lens[row]) - 1) - first
            if count > 0:
                start = int(starts[entry])
                targets = self._rows.token_ids[row, first + 1 : first + 1 + count].long()
                found = prompt_logprobs(
                    hidden[start : start + count],
                    targets,
                    int(asked[entry]),
                    self._executor.compute_logits,
                )
                parts.append(PromptPart(row, first + 1, _joined(list(found))))
        return parts


def _joined(parts: list[TokenLogprobs]) -> TokenLogprobs:
    return TokenLogprobs(
        torch.cat([part.token_ids for part in parts]),
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.ranks for part in parts]),
    )
