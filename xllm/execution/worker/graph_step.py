"""Decode steps through device graphs, and the sampling after them that no graph contains."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from xllm.core.messages.worker import StepPlan
from xllm.core.utils.arrays import Int32Array
from xllm.execution.executor.runners.decode_memory import DecodeRows
from xllm.execution.executor.runners.full_graph import DecodeOutput, FullGraphRunner
from xllm.execution.sampling import Sampler
from xllm.execution.sampling.sampler import Samples, StagedStep
from xllm.execution.sampling.step import SamplingStep
from xllm.execution.worker.prefix_rows import PrefixPlacer
from xllm.execution.worker.rows import Rows

_NO_ENTRIES = np.empty(0, np.int64)
_NO_COUNTS = np.empty(0, np.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """A step whose graph is queued."""

    sample: Callable[[], Samples]  # once, before the next step; queues what the graph left to do
    waits: bool  # see ``StagedStep.waits``


class GraphStep:
    """Takes steps in which every row computes its newest token and samples the next.

    ``num_eager`` counts such steps that had no graph, since graphs were captured.
    """

    def __init__(
        self,
        runner: FullGraphRunner,
        rows: Rows,
        sampler: Sampler,
        on_launch: Callable[[], None] | None = None,
    ) -> None:
        self._runner = runner
        self._on_launch = on_launch
        self._rows = rows
        self._sampler = sampler
        self._prefixes = PrefixPlacer(len(rows.prompt_lens))
        self.num_eager = 0

    @property
    def reads_prefixes(self) -> bool:
        """Whether ``StepPlan.shared_prefixes`` makes steps faster."""
        return self._runner.reads_prefixes

    @property
    def num_replays(self) -> int:
        """Steps that ran as a graph."""
        return self._runner.num_replays

    def rehearsals(self) -> list[Callable[[], object]]:
        """Work that launches every kernel of the graphs, and those of sampling after them."""
        most, *others = self._runner.rehearsals()
        return [lambda: self._sampler.rehearse(most().logits), *others]

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Capture the graphs; told how many are done of how many.

        Raises:
            CaptureError: the model's step cannot be captured.
        """
        self._runner.capture(progress)
        self.num_eager = 0

    def execute(self, plan: StepPlan) -> Launched | None:
        """Queue the step, and append its blocks; None, and nothing done, if it must run eagerly."""
        if not self._is_decode(plan):
            return None
        if not self._runner.can_run(len(plan.rows)):
            self.num_eager += 1
            return None
        seq_lens = plan.num_computed + 1
        step = SamplingStep.of(
            plan.rows.astype(np.int64),
            seq_lens.astype(np.int64),
            self._rows.prompt_lens,
            self._rows.token_ids,
        )
        new_blocks = self._new_blocks(plan, seq_lens)
        prefix = None
        if plan.shared_prefixes is not None and self._runner.reads_prefixes:
            prefix = self._prefixes.place(plan.rows, plan.shared_prefixes)
        draws = self._sampler.plain_draws(step)
        if draws is None:
            rows = DecodeRows(plan.rows, seq_lens, None, None, new_blocks, prefix)
            staged = self._sampler.stage(step)
            output = self._runner.run(rows, self._on_launch)
            sample = functools.partial(self._sample_after, output, staged)
            return Launched(sample, staged.waits)
        output = self._runner.run(
            DecodeRows(
                plan.rows, seq_lens, draws.inverse_temperature, draws.keys, new_blocks, prefix
            ),
            self._on_launch,
        )
        samples = Samples(output.tokens, output.best_logits, _NO_ENTRIES, _NO_COUNTS, None)
        return Launched(lambda: samples, False)

    def _new_blocks(self, plan: StepPlan, seq_lens: Int32Array) -> Int32Array:
        """(G, S): the plan's blocks by row, -1 where there is none, so that they go with the step's
        one copy. A group with other blocks than those of the rows' last tokens is written to its
        table apart."""
        found = np.full((len(plan.blocks), len(plan.rows)), -1, np.int32)
        if not any(appended.rows.size for appended in plan.blocks):
            return found
        place = np.full(len(self._rows.prompt_lens), -1)
        place[plan.rows] = np.arange(len(plan.rows))
        for group, appended in enumerate(plan.blocks):
            at = place[appended.rows]
            last = (seq_lens[at] - 1) // self._rows.block_sizes[group]
            if ((at >= 0) & (appended.starts == last) & (appended.counts == 1)).all():
                found[group, at] = appended.block_ids
            else:
                self._rows.append_blocks(group, appended)
        return found

    def _is_decode(self, plan: StepPlan) -> bool:
        """Rows past their prompt, one token each, all sampling."""
        return bool(
            plan.samples.all()
            and (plan.num_scheduled == 1).all()
            and (plan.num_computed >= self._rows.prompt_lens[plan.rows]).all()
        )

    def _sample_after(self, output: DecodeOutput, staged: StagedStep) -> Samples:
        """Sample from the graph's logits; its own greedy tokens are overwritten in the rows."""
        samples = self._sampler.sample(output.logits, staged)
        self._rows.token_ids.view(-1)[output.write_index] = samples.token_ids.int()
        return samples
