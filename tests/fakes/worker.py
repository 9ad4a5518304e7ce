"""A worker without a device: it keeps real block tables and a value per cache slot.

Tokens come from ``tests.fakes.model``, read through the block tables, so a block that is reused
too early, shared wrongly or never written changes them. It also asserts what a device could not:
no block is written while a step in flight of another row uses it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from tests.fakes import model
from xllm.core.messages.worker import (
    NewRows,
    RowPromptLogprobs,
    RowSampling,
    SampledLogprobs,
    StepPlan,
    StepResult,
    WorkerStats,
)
from xllm.kv_cache.layout import CacheGroup, CacheSpec, WorkerInfo


def make_groups(
    num_blocks: int | Sequence[int], block_size: int = 4, windows: Sequence[int | None] = (None,)
) -> tuple[CacheGroup, ...]:
    """Sized cache groups, one per window; ``num_blocks`` are usable ones, without the padding."""
    counts = [num_blocks] * len(windows) if isinstance(num_blocks, int) else num_blocks
    return tuple(
        CacheGroup(
            spec=CacheSpec(
                kind="full" if window is None else "sliding_window",
                block_size=block_size,
                num_kv_heads=1,
                head_dim=1,
                dtype_bytes=8,
                window=window,
            ),
            layers=(index,),
            num_blocks=count + 1,
        )
        for index, (window, count) in enumerate(zip(windows, counts, strict=True))
    )


@dataclasses.dataclass
class _Row:
    sampling: RowSampling
    prompt_len: int
    tokens: list[int]


class FakePending:
    """A step of a fake worker; ``result`` may be asked for late."""

    def __init__(self, worker: FakeWorker, result: StepResult | Exception) -> None:
        self._worker = worker
        self._result = result

    def result(self) -> StepResult:
        """The step's results; the step retires."""
        self._worker.retire()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class FakeWorker:
    """Fits ``WorkerPort``.

    Args:
        groups: sized cache groups.
        vocab_size: tokens are below it.
        scripts: seed -> tokens that a row with this seed samples, by output position; after the
            last one the model speaks.
        fail_at: ``(seed, output position)`` of samples that fail.
        raise_at: step ids that raise: in ``execute`` (key True) or in ``result`` (False).
        raise_for: the same for steps with a row of these seeds.
        full_step: as a worker tells it.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        vocab_size: int = 1000,
        max_model_len: int = 4096,
        *,
        scripts: dict[int, list[int]] | None = None,
        fail_at: set[tuple[int, int]] | None = None,
        raise_at: dict[int, bool] | None = None,
        raise_for: dict[int, bool] | None = None,
        async_device: bool = False,
        full_step: int = 0,
    ) -> None:
        self._groups = tuple(groups)
        self._windows = [group.spec.window for group in groups]
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._scripts = scripts or {}
        self._fail_at = fail_at or set()
        self._raise_at = raise_at or {}
        self._raise_for = raise_for or {}
        self._async_device = async_device
        self._full_step = full_step
        # Unwritten slots hold a value that no token has, so that reading one shows.
        self._stores = [
            np.full(group.num_blocks * group.spec.block_size, 0xDEAD, np.uint64) for group in groups
        ]
        self._tables: list[dict[int, dict[int, int]]] = [{} for _ in groups]
        self._rows: dict[int, _Row] = {}
        self._in_flight: deque[set[tuple[int, int, int]]] = deque()  # (group, block, row)
        self._touched: set[tuple[int, int, int]] = set()
        self._missed_frees: set[int] = set()  # of steps that raised before they took effect
        self.healthy = True
        self.plans: list[StepPlan] = []

    def start(self) -> WorkerInfo:
        """Nothing to load."""
        return WorkerInfo(
            cache_groups=self._groups,
            vocab_size=self._vocab_size,
            max_model_len=self._max_model_len,
            async_device=self._async_device,
            full_step=self._full_step,
        )

    def start_profile(self) -> str:
        """There is nothing to see."""
        raise ValueError("a fake has no profile")

    def stop_profile(self) -> str:
        """There was nothing to see."""
        raise ValueError("a fake has no profile")

    def read_adapter(self, folder: str) -> object:
        """There are no files."""
        return folder

    def load_adapter(self, adapter: int, weights: object) -> None:
        """There are no weights to change."""

    def unload_adapter(self, adapter: int) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to give back."""

    def stats(self) -> WorkerStats:
        """A fake worker launches nothing."""
        return WorkerStats()

    def execute(self, plan: StepPlan) -> FakePending:
        """Compute the step now; its blocks count as in use until ``result``."""
        self.plans.append(plan)
        raises = self._raises(plan)
        if raises:
            self._missed_frees.update(plan.freed_rows.tolist())
            raise RuntimeError(f"injected in step {plan.step_id}")
        result: StepResult | Exception
        self.healthy = False  # if the plan makes no sense, the loop must not hide it
        self._apply_changes(plan)
        self._touched = set()
        result = self._compute(plan)
        self.healthy = True
        self._in_flight.append(self._touched)
        if raises is not None:
            result = RuntimeError(f"injected in step {plan.step_id}")
        return FakePending(self, result)

    def _raises(self, plan: StepPlan) -> bool | None:
        """Whether the step raises in ``execute`` (True), in ``result`` (False) or not at all."""
        seeds = {row: entry.sampling.seed for row, entry in self._rows.items()}
        if (new := plan.new_rows) is not None:
            seeds |= {row: s.seed for row, s in zip(new.rows.tolist(), new.sampling, strict=True)}
        for row in plan.rows.tolist():
            if seeds.get(row) in self._raise_for:
                return self._raise_for[seeds[row]]
        return self._raise_at.get(plan.step_id)

    def retire(self) -> None:
        """The oldest step in flight has ended."""
        self._in_flight.popleft()

    # --- the device ------------------------------------------------------------------------

    def _apply_changes(self, plan: StepPlan) -> None:
        for row in plan.freed_rows.tolist():
            self._rows.pop(row, None)
            for table in self._tables:
                table.pop(row, None)
        if plan.new_rows is not None:
            self._start_rows(plan.new_rows)
        for table, appended in zip(self._tables, plan.blocks, strict=True):
            offset = 0
            for row, start, count in zip(
                appended.rows.tolist(),
                appended.starts.tolist(),
                appended.counts.tolist(),
                strict=True,
            ):
                blocks = appended.block_ids[offset : offset + count].tolist()
                assert 0 not in blocks, "the padding block was handed out"
                table.setdefault(row, {}).update(enumerate(blocks, start))
                offset += count
            assert offset == appended.block_ids.size

    def _start_rows(self, new: NewRows) -> None:
        offset = 0
        for index, row in enumerate(new.rows.tolist()):
            known = row in self._rows and row not in self._missed_frees
            assert not known, "a row starts that was not freed"
            self._missed_frees.discard(row)
            for table in self._tables:
                table.pop(row, None)
            count = int(new.num_tokens[index])
            tokens = new.token_ids[offset : offset + count].tolist()
            self._rows[row] = _Row(new.sampling[index], int(new.prompt_lens[index]), tokens)
            offset += count
        assert offset == new.token_ids.size

    def _compute(self, plan: StepPlan) -> StepResult:
        rows = plan.rows.tolist()
        assert len(set(rows)) == len(rows), "a row is scheduled twice"
        decodes = (plan.num_scheduled == 1) & plan.samples
        assert not (np.diff(decodes.astype(int)) > 0).any(), "decodes come first"
        tokens: list[int] = []
        failed: dict[int, str] = {}
        logprobs: list[tuple[int, int, float]] = []
        prompt_logprobs: list[RowPromptLogprobs] = []
        for row, start, count, samples in zip(
            rows,
            plan.num_computed.tolist(),
            plan.num_scheduled.tolist(),
            plan.samples.tolist(),
            strict=True,
        ):
            entry = self._rows[row]
            end = start + count
            assert count > 0 and end <= len(entry.tokens)
            hidden = self._forward(row, entry.tokens[start:end], start)
            prompt_logprobs += _prompt_logprobs(row, entry, start, end, hidden)
            if samples:
                assert end == len(entry.tokens), "a row samples before its last token"
                token, reason = self._sample(entry, hidden[-1])
                if reason is not None:
                    failed[len(tokens)] = reason
                if entry.sampling.params.logprobs is not None:
                    logprobs.append((len(tokens), token, model.logprob(hidden[-1], token)))
                tokens.append(token)
                entry.tokens.append(token)
        return StepResult(
            step_id=plan.step_id,
            token_ids=np.array(tokens, np.int32),
            logprobs=_logprob_columns(logprobs) if logprobs else None,
            prompt_logprobs=prompt_logprobs,
            failed=failed,
        )

    def _forward(self, row: int, tokens: list[int], start: int) -> model.Values:
        def slots(group: int, first: int, last: int) -> list[int]:
            size = self._groups[group].spec.block_size
            table = self._tables[group][row]
            blocks = [table[position // size] for position in range(first, last)]
            self._touched.update((group, block, row) for block in blocks)
            return [
                block * size + position % size
                for block, position in zip(blocks, range(first, last), strict=True)
            ]

        def read(group: int, first: int, last: int) -> model.Values:
            return self._stores[group][slots(group, first, last)]

        def write(group: int, first: int, values: model.Values) -> None:
            where = slots(group, first, first + len(values))
            size = self._groups[group].spec.block_size
            written = {slot // size for slot in where}
            for step in self._in_flight:
                for other_group, block, other in step:
                    clash = other_group == group and other != row and block in written
                    assert not clash, f"block {block} is written while row {other} uses it"
            self._stores[group][where] = values

        return model.forward(np.array(tokens, np.int32), start, self._windows, read, write)

    def _sample(self, entry: _Row, hidden: np.uint64) -> tuple[int, str | None]:
        position = len(entry.tokens)
        seed = entry.sampling.seed
        index = position - entry.prompt_len
        if (seed, index) in self._fail_at:
            return -1, "logits are NaN"
        script = self._scripts.get(seed, [])
        if index < len(script):
            return script[index], None
        return model.sample(hidden, seed, position, self._vocab_size), None


def _prompt_logprobs(
    row: int, entry: _Row, start: int, end: int, hidden: model.Values
) -> list[RowPromptLogprobs]:
    """Logprobs of the prompt tokens that follow the computed positions."""
    targets = entry.tokens[start + 1 : min(end + 1, entry.prompt_len)]
    if entry.sampling.params.prompt_logprobs is None or not targets:
        return []
    values = [model.logprob(h, t) for h, t in zip(hidden, targets, strict=False)]
    return [
        RowPromptLogprobs(
            row,
            start + 1,
            np.array(targets, np.int32)[:, None],
            np.array(values, np.float32)[:, None],
            np.ones(len(targets), np.int32),
        )
    ]


def _logprob_columns(entries: list[tuple[int, int, float]]) -> SampledLogprobs:
    indexes, tokens, values = zip(*entries, strict=True)
    return SampledLogprobs(
        np.array(indexes, np.int32),
        np.zeros(len(entries), np.int32),
        np.array(tokens, np.int32)[:, None],
        np.array(values, np.float32)[:, None],
        np.ones(len(entries), np.int32),
    )
