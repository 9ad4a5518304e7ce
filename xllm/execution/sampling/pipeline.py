"""The ordered pipeline of logits processors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xllm.core.utils.registry import Registry
from xllm.execution.sampling.processors import ORDER
from xllm.execution.sampling.processors._base import LogitsProcessor
from xllm.execution.sampling.step import RowRequest, SamplingStep

registry = Registry("xllm.execution.sampling.processors", "sampling processor")


class Pipeline:
    """Runs the processors that the step's rows use, in ``ORDER``; without users it does nothing.

    Args:
        last: processors that come after those, in their order.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        device: torch.device,
        last: Sequence[LogitsProcessor] = (),
    ) -> None:
        self._processors: list[LogitsProcessor] = [
            *(registry.load(name).Processor(max_rows, vocab_size, device) for name in ORDER),
            *last,
        ]

    @property
    def idle(self) -> bool:
        """Whether no row uses any processor."""
        return not any(p.num_rows for p in self._processors)

    def add_request(self, request: RowRequest) -> None:
        """Take over a row, forgetting what ran there before.

        Raises:
            ValueError: a parameter does not fit the model.
        """
        self.remove(request.row)
        for processor in self._processors:
            processor.add_request(request)

    def remove(self, row: int) -> None:
        """Forget a row."""
        for processor in self._processors:
            if processor.num_rows:
                processor.remove(row)

    def stage(self, step: SamplingStep) -> list[LogitsProcessor]:
        """The processors that must be applied to this step, prepared."""
        return [p for p in self._processors if p.num_rows and p.stage(step)]

    def accept(self, step: SamplingStep, tokens: torch.Tensor) -> None:
        """Tell the processors what was sampled."""
        for processor in self._processors:
            if processor.num_rows:
                processor.accept(step, tokens)
