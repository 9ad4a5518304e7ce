"""Synthetic steps that touch every code path once before the first request arrives."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from xllm.core.messages.worker import AppendedBlocks, NewRows, RowSampling, StepPlan
from xllm.core.request.sampling import SamplingParams
from xllm.kv_cache.layout import CacheGroup

_PREFILL_TOKENS = 64  # of the first row; warming up is not worth computing a long prompt
_MORE_PREFILL_TOKENS = 4  # of each further row
_DECODE_ROWS = (1, 16)
WARMUP_STEP = -1


def warmup_plans(
    groups: tuple[CacheGroup, ...], max_rows: int, max_step_tokens: int, max_model_len: int
) -> Iterator[StepPlan]:
    """A prefill and decodes of typical sizes, as real plans.

    All of it is written into block 0, the padding block, which no sequence ever reads. The rows are
    freed by the last plan.
    """
    num_tokens = min(_PREFILL_TOKENS, max_step_tokens, max_model_len - 1)
    if num_tokens < 1:
        return
    last = 0
    for num_rows in sorted({1, *(min(n, max_rows, max_step_tokens) for n in _DECODE_ROWS)}):
        tokens = min(num_tokens, _MORE_PREFILL_TOKENS) if last else num_tokens
        yield _prefill(groups, range(last, num_rows), tokens, max_step_tokens)
        yield _decode(len(groups), num_rows, num_tokens)
        last = num_rows
    yield _free(len(groups), last)


def prompt_plan(
    groups: tuple[CacheGroup, ...], max_rows: int, max_step_tokens: int, max_model_len: int
) -> StepPlan:
    """One step of whole prompts from which nothing is sampled, for models that pool."""
    num_tokens = max(1, min(_PREFILL_TOKENS, max_step_tokens, max_model_len - 1))
    num_rows = min(2, max_rows, max_step_tokens)
    plan = _prefill(groups, range(num_rows), num_tokens, max_step_tokens)
    return msgspec.structs.replace(plan, samples=np.zeros(num_rows, np.bool_))


def _prefill(
    groups: tuple[CacheGroup, ...], rows: range, num_tokens: int, max_step_tokens: int
) -> StepPlan:
    """New rows, row 0 greedy and the others drawing; only as many tokens as fit a step."""
    index = np.array(rows, np.int32)
    per_row = max(1, min(num_tokens, max_step_tokens // len(rows)))
    count = np.full(len(rows), per_row, np.int32)
    return StepPlan(
        step_id=WARMUP_STEP,
        rows=index,
        num_scheduled=count,
        num_computed=np.zeros_like(index),
        samples=np.ones(len(rows), np.bool_),
        blocks=tuple(
            _blocks(index, -(-(num_tokens + 1) // group.spec.block_size)) for group in groups
        ),
        freed_rows=np.empty(0, np.int32),
        new_rows=NewRows(
            rows=index,
            num_tokens=count,
            prompt_lens=count,
            token_ids=np.zeros(per_row * len(rows), np.int32),
            sampling=[RowSampling(SamplingParams(temperature=float(r > 0)), 0) for r in rows],
        ),
    )


def _blocks(rows: np.ndarray, per_row: int) -> AppendedBlocks:
    return AppendedBlocks(
        rows=rows,
        starts=np.zeros_like(rows),
        counts=np.full(len(rows), per_row, np.int32),
        block_ids=np.zeros(per_row * len(rows), np.int32),
    )


def _decode(num_groups: int, num_rows: int, num_computed: int) -> StepPlan:
    rows = np.arange(num_rows, dtype=np.int32)
    return StepPlan(
        step_id=WARMUP_STEP,
        rows=rows,
        num_scheduled=np.ones(num_rows, np.int32),
        num_computed=np.full(num_rows, num_computed, np.int32),
        samples=np.ones(num_rows, np.bool_),
        blocks=(_blocks(rows[:0], 0),) * num_groups,
        freed_rows=np.empty(0, np.int32),
    )


def _free(num_groups: int, num_rows: int) -> StepPlan:
    """Rows 0..num_rows end; row 0 computes once more, as a step is never empty."""
    plan = _decode(num_groups, 1, 0)
    return StepPlan(
        step_id=WARMUP_STEP,
        rows=plan.rows,
        num_scheduled=plan.num_scheduled,
        num_computed=plan.num_computed,
        samples=np.zeros(1, np.bool_),
        blocks=plan.blocks,
        freed_rows=np.arange(num_rows, dtype=np.int32),
    )
