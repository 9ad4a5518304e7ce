"""The worker of a model that pools: prompts in, one vector each out, nothing is sampled."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.worker import NewRows, PooledRows, StepPlan, StepResult, WorkerStats
from xllm.core.utils.arrays import Int32Array
from xllm.execution.executor import Executor, ModelInputs
from xllm.execution.executor.warmup import WARMUP_STEP, prompt_plan
from xllm.execution.transfer import upload
from xllm.execution.worker.input_builder import InputBuilder
from xllm.execution.worker.opening import Progress, open_model
from xllm.execution.worker.pending import to_host
from xllm.execution.worker.profiling import StepProfiler
from xllm.execution.worker.rows import Rows
from xllm.hardware.platforms import Platform
from xllm.kv_cache.layout import WorkerInfo
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.models.pooling import PoolingModel
from xllm.modeling.weights.loader import load_pooling_model

_NO_TOKENS = np.zeros(0, np.int32)


@dataclasses.dataclass(slots=True)
class _Started:
    """What exists between ``start`` and ``close``."""

    platform: Platform
    model: PoolingModel
    executor: Executor
    rows: Rows
    builder: InputBuilder


class PendingPooled:
    """Fits ``PendingStep``: the vectors on their way to the host."""

    def __init__(self, step_id: int, rows: Int32Array, values: torch.Tensor | None) -> None:
        self._step_id = step_id
        self._rows = rows
        self._values = None if values is None else to_host(values)
        self._event: torch.Event | None = None
        if values is not None and values.device.type != "cpu":
            self._event = torch.Event(values.device)
            self._event.record()

    def result(self) -> StepResult:
        """Wait for the step; the vectors of the rows whose prompt it completed."""
        if self._event is not None:
            self._event.synchronize()
        pooled = None
        if self._values is not None:
            pooled = PooledRows(self._rows, self._values.numpy())
        return StepResult(self._step_id, _NO_TOKENS, pooled=pooled)


class PoolingWorker:
    """Fits the engine loop's ``WorkerPort`` by shape. Not thread-safe.

    Every row of a plan is part of a prompt. A row whose prompt ends with a step is pooled by it.

    Args:
        config: the worker reads its model, cache, scheduler and execution slices.
        files: the resolved model; ``files.pooling`` is set.
        progress: told the start-up phase and how far it is, 0..1.
    """

    def __init__(
        self, config: XllmConfig, files: ModelFiles, progress: Progress | None = None
    ) -> None:
        self._config = config
        self._files = files
        self._progress = progress or (lambda phase, fraction: None)
        self._device = torch.device("cpu")
        self._started: _Started | None = None
        self._num_steps = 0
        self._profiler = StepProfiler(config.observability.profiler_dir)
        # First token of each row's second text; 0 where the prompt is one text.
        self._second_starts = np.zeros(config.scheduler.max_num_seqs, np.int32)

    @property
    def healthy(self) -> bool:
        """Whether further steps can be executed after one that raised. Waits for the device."""
        return self._started is not None and self._started.platform.responds()

    # --- life --------------------------------------------------------------------------------

    @torch.inference_mode()
    def start(self) -> WorkerInfo:
        """Load the model, allocate the KV cache of a decoder, warm up. Blocks.

        Raises:
            ValueError: the model or a setting does not fit; the message names it.
        """
        assert self._started is None, "the worker was started before"
        opened = open_model(self._config, self._files, load_pooling_model, self._progress)
        config = self._config = opened.config
        self._device = opened.platform.device
        model, backend, groups = opened.model, opened.backend, opened.groups
        max_len = model.config.max_len
        rows = Rows(config.scheduler.max_num_seqs, max_len, groups, self._device)
        storage = CacheStorage.allocate(groups, backend, opened.cache_dtype, self._device)
        self._started = _Started(
            opened.platform,
            model,
            Executor(model, storage, backend),
            rows,
            InputBuilder(rows, groups, config.scheduler.max_num_seqs, self._device),
        )
        self._progress("warm up", 0.0)
        limits = (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens)
        self.execute(prompt_plan(groups, *limits, max_len)).result()
        return WorkerInfo(
            cache_groups=groups,
            vocab_size=model.config.vocab_size,
            max_model_len=max_len,
            max_step_tokens=config.scheduler.max_num_batched_tokens,
            eos_token_ids=self._files.eos_token_ids,
            async_device=opened.platform.async_device,
        )

    def close(self) -> None:
        """Give back device and memory. Further calls do nothing."""
        self._started = None

    def stats(self) -> WorkerStats:
        """How steps ran: all of them without graphs."""
        return WorkerStats(eager_steps=self._num_steps)

    def start_profile(self) -> str:
        """Begin a profile; see ``StepProfiler``."""
        return str(self._profiler.start())

    def stop_profile(self) -> str:
        """End a profile; see ``StepProfiler``."""
        return str(self._profiler.stop())

    def read_adapter(self, folder: str) -> object:
        """There are no adapters here.

        Raises:
            ValueError: always.
        """
        raise ValueError("adapters are not supported on models that pool")

    def load_adapter(self, adapter: int, weights: object) -> None:
        """None was read."""

    def unload_adapter(self, adapter: int) -> None:
        """Nothing was loaded."""

    # --- the step ----------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> PendingPooled:
        """Queue one step on the device; on a CPU, compute it.

        Raises:
            RuntimeError: the step failed as a whole.
        """
        started = self._started
        assert started is not None, "the worker is not started"
        self._profiler.step()
        if plan.new_rows is not None:
            self._start_rows(started.rows, plan.new_rows)
        for group, appended in enumerate(plan.blocks):
            if appended.rows.size:
                started.rows.append_blocks(group, appended)
        self._num_steps += plan.step_id != WARMUP_STEP
        inputs = self._with_types(started.builder.build(plan).model, plan)
        hidden = started.executor.forward(inputs)
        ends = np.cumsum(plan.num_scheduled, dtype=np.int64)
        computed = plan.num_computed + plan.num_scheduled
        ending = computed >= started.rows.prompt_lens[plan.rows]
        if not ending.any():
            return PendingPooled(plan.step_id, plan.rows[:0], None)
        bounds = [(ends - plan.num_scheduled)[ending], ends[ending]]
        values = started.model.pool(hidden, *upload(bounds, self._device))
        return PendingPooled(plan.step_id, plan.rows[ending], values)

    def _start_rows(self, rows: Rows, new: NewRows) -> None:
        rows.start(new)
        self._second_starts[new.rows] = 0 if new.second_starts is None else new.second_starts

    def _with_types(self, inputs: ModelInputs, plan: StepPlan) -> ModelInputs:
        """The inputs with token types, if a row of the plan is a pair."""
        seconds = self._second_starts[plan.rows]
        if not seconds.any():
            return inputs
        ends = np.cumsum(plan.num_scheduled, dtype=np.int64)
        first = np.where(seconds > 0, ends - plan.num_scheduled + seconds, ends)
        first -= np.where(seconds > 0, plan.num_computed, 0)
        types = np.arange(ends[-1]) >= np.repeat(first, plan.num_scheduled)
        (uploaded,) = upload((types.astype(np.int64),), self._device)
        return dataclasses.replace(inputs, token_types=uploaded)
