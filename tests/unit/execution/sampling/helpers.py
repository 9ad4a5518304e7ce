"""Builds sampling steps from token lists, as the worker would from its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xllm.core.messages.worker import RowSampling
from xllm.core.request.sampling import SamplingParams
from xllm.execution.sampling import RowRequest, Sampler, Samples, SamplingStep

CPU = torch.device("cpu")
WIDTH = 128


class Bench:
    """A sampler and its token rows."""

    def __init__(self, vocab_size: int, max_rows: int = 64) -> None:
        self.sampler = Sampler(max_rows, vocab_size, CPU)
        self.tokens = torch.zeros((max_rows, WIDTH), dtype=torch.int32)
        self.lengths = np.zeros(max_rows, np.int64)
        self.prompt_lens = np.zeros(max_rows, np.int64)

    def add(
        self,
        row: int,
        prompt: list[int],
        output: tuple[int, ...] = (),
        *,
        seed: int = 0,
        suppress: tuple[int, ...] = (),
        bad_words: tuple[tuple[int, ...], ...] = (),
        **params: Any,
    ) -> None:
        """Start a row with known tokens."""
        known = np.array([*prompt, *output], np.int32)
        self.tokens[row, : len(known)] = torch.from_numpy(known)
        self.lengths[row] = len(known)
        self.prompt_lens[row] = len(prompt)
        sampling = RowSampling(SamplingParams(**params), seed, suppress, bad_words)
        self.sampler.add_request(RowRequest(row, sampling, known, len(prompt)))

    def step(self, rows: list[int]) -> SamplingStep:
        """The next step of these rows."""
        index = np.array(rows, np.int64)
        return SamplingStep.of(index, self.lengths[index], self.prompt_lens, self.tokens)

    def sample(self, rows: list[int], logits: torch.Tensor) -> Samples:
        """Sample and append one token per row."""
        step = self.step(rows)
        samples = self.sampler.sample(logits.clone(), self.sampler.stage(step))
        self.tokens[torch.from_numpy(step.rows), torch.from_numpy(step.positions)] = (
            samples.token_ids.int()
        )
        self.lengths[step.rows] += 1
        return samples

    def processed(self, rows: list[int], logits: torch.Tensor) -> torch.Tensor:
        """The logits after every processor, before temperature."""
        logits = logits.clone()
        for processor in self.sampler.stage(self.step(rows)).processors:
            processor.apply(logits)
        return logits
