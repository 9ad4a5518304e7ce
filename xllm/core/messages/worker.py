"""Messages between the scheduler and a worker: the step plan and its result.

A *row* is a running sequence's index in the persistent tables, the same on host and device, in
``range(max_num_seqs)``. A plan carries what changed, never the world.
"""

from __future__ import annotations

import msgspec

from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput
from xllm.core.utils.arrays import BoolArray, Float32Array, Int32Array


class RowSampling(msgspec.Struct, frozen=True, array_like=True):
    """Sampling facts of one row, resolved: ids only, no text."""

    params: SamplingParams
    seed: int
    suppress_token_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    structured_output: StructuredOutput | None = None


class NewRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows that start (or resume after preemption) with this step.

    ``token_ids`` is flat: row ``i`` owns the next ``num_tokens[i]`` (prompt and any output made
    before a preemption).
    """

    rows: Int32Array  # (N,)
    num_tokens: Int32Array  # (N,) known tokens
    prompt_lens: Int32Array  # (N,) of which belong to the user's prompt
    token_ids: Int32Array  # (sum(num_tokens),)
    sampling: list[RowSampling]
    adapters: Int32Array | None = None  # (N,) 0 is the plain model; None: no row has one
    second_starts: Int32Array | None = None  # (N,) ``Request.second_start``; None: all are 0


class AppendedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks appended to rows' block tables in one cache group.

    Entry ``i`` writes the next ``counts[i]`` of ``block_ids`` at ``starts[i]`` of row ``rows[i]``.
    """

    rows: Int32Array  # (K,)
    starts: Int32Array  # (K,)
    counts: Int32Array  # (K,)
    block_ids: Int32Array  # (sum(counts),)


MAX_SHARED_PREFIXES = 4


class SharedPrefixes(msgspec.Struct, frozen=True, array_like=True):
    """Groups of decoding rows whose block tables begin with the same blocks.

    Group ``g`` is the next ``counts[g]`` of ``rows``; they share their first ``num_tokens[g]``.
    """

    rows: Int32Array  # (sum(counts),) distinct
    counts: Int32Array  # (G,)
    num_tokens: Int32Array  # (G,), G at most ``MAX_SHARED_PREFIXES``


class StepPlan(msgspec.Struct, frozen=True, tag="step"):
    """One step. Order of effects: free rows, start new rows, append blocks, compute, sample.

    A row that starts replaces whatever it held: the step that freed it may have failed.

    Scheduled row ``i`` computes tokens ``num_computed[i] .. num_computed[i]+num_scheduled[i]`` of
    its token row. Where ``samples[i]``, those end at its last known token and one new token is
    sampled and written to the device row at the next position; the next plan may use it before
    the host has seen it. Rows that decode (one token, sampling) come first, chunks after. The
    longest decode first, as a rule and for speed only.
    """

    step_id: int
    rows: Int32Array  # (S,)
    num_scheduled: Int32Array  # (S,)
    num_computed: Int32Array  # (S,)
    samples: BoolArray  # (S,)
    blocks: tuple[AppendedBlocks, ...]  # one per cache group
    freed_rows: Int32Array  # (F,)
    new_rows: NewRows | None = None
    # Of a step that only decodes; the same object as long as nothing changes.
    shared_prefixes: SharedPrefixes | None = None


class WorkerStats(msgspec.Struct, frozen=True):
    """How steps ran since start, and the device's latest idle times between decode steps."""

    decode_graph_steps: int = 0
    mixed_graph_steps: int = 0
    eager_steps: int = 0
    idle_p50_us: float = 0.0
    idle_p99_us: float = 0.0


class SampledLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of the sampled tokens whose rows asked. Columns as in ``LogprobColumns``."""

    entries: Int32Array  # (L,) index into StepResult.token_ids
    counts: Int32Array  # (L,)
    token_ids: Int32Array  # (L, K+1)
    logprobs: Float32Array  # (L, K+1)
    ranks: Int32Array  # (L,)


class RowPromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of prompt tokens ``start ..`` of a row, computed by this step's chunk."""

    row: int
    start: int
    token_ids: Int32Array  # (P, K+1)
    logprobs: Float32Array  # (P, K+1)
    ranks: Int32Array  # (P,)


class PooledRows(msgspec.Struct, frozen=True, array_like=True):
    """Vectors of the rows whose prompt this step completed, from a model that pools."""

    rows: Int32Array  # (R,)
    values: Float32Array  # (R, D)


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a request cannot go on, and the field of it that is the reason, where it is one."""

    reason: str
    param: str | None = None


class StepResult(msgspec.Struct, frozen=True, tag="result"):
    """Sampled tokens, in the order of the plan's rows with ``samples`` set.

    ``failed`` maps an index into ``token_ids`` to the reason why that row must be quarantined (its
    token is meaningless); ``refused`` likewise where the request itself is the reason, because it
    rules every token out.
    """

    step_id: int
    token_ids: Int32Array  # (M,)
    logprobs: SampledLogprobs | None = None
    prompt_logprobs: list[RowPromptLogprobs] = []
    failed: dict[int, str] = {}
    refused: dict[int, Refusal] = {}
    pooled: PooledRows | None = None
