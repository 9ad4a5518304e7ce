"""The worker: a loaded model on one device that computes step plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xllm.core.config import XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.grammar import GrammarCache
from xllm.core.messages.worker import NewRows, StepPlan, WorkerStats
from xllm.core.observability.logging import get_logger
from xllm.execution.executor import Executor
from xllm.execution.executor.runners.decode_memory import DeviceTables
from xllm.execution.executor.runners.full_graph import FullGraphRunner
from xllm.execution.executor.runners.mixed_graph import BatchLimits, MixedGraphRunner
from xllm.execution.executor.warmup import WARMUP_STEP, warmup_plans
from xllm.execution.sampling import RowRequest, Sampler
from xllm.execution.worker import resources
from xllm.execution.worker.adapters import AdapterWeights, RowAdapters
from xllm.execution.worker.finishing import StepFinisher, StepOutcome
from xllm.execution.worker.graph_step import GraphStep
from xllm.execution.worker.idle import IdleMeter
from xllm.execution.worker.input_builder import InputBuilder
from xllm.execution.worker.opening import OpenedModel, Progress, open_model
from xllm.execution.worker.profiling import StepProfiler
from xllm.execution.worker.prompt_logprobs import PromptScorer
from xllm.execution.worker.rows import Rows
from xllm.hardware.graphs import CaptureError
from xllm.hardware.platforms import Platform
from xllm.kv_cache.layout import CacheGroup, WorkerInfo, first_full_group
from xllm.kv_cache.storage import CacheStorage
from xllm.modeling.attention import GraphSupport
from xllm.modeling.models.decoder import CausalLM
from xllm.modeling.weights.loader import load_model

logger = get_logger(__name__)


@dataclasses.dataclass(slots=True)
class _Started:
    """What exists between ``start`` and ``close``."""

    platform: Platform
    executor: Executor
    rows: Rows
    builder: InputBuilder
    sampler: Sampler
    finisher: StepFinisher
    adapters: RowAdapters | None
    graph_step: GraphStep | None
    mixed_graphs: MixedGraphRunner | None


class Worker:
    """Fits the engine loop's ``WorkerPort`` by shape. Not thread-safe.

    Args:
        config: the worker reads its model, cache, scheduler and execution slices.
        files: the resolved model.
        progress: told the start-up phase and how far it is, 0..1.
        grammars: of constrained rows, compiled before they start; without it they are refused.
    """

    def __init__(
        self,
        config: XllmConfig,
        files: ModelFiles,
        progress: Progress | None = None,
        grammars: GrammarCache | None = None,
    ) -> None:
        self._config = config
        self._files = files
        self._grammars = grammars
        self._progress = progress or (lambda phase, fraction: None)
        self._device = torch.device("cpu")
        self._started: _Started | None = None
        self._idle = IdleMeter(self._device)
        self._num_steps = 0
        self._last_decode: StepOutcome | None = None
        self._profiler = StepProfiler(config.observability.profiler_dir)
        # Rows whose request does not fit the model, with the reason: they fail when they sample.
        self._refused: dict[int, str] = {}

    @property
    def healthy(self) -> bool:
        """Whether further steps can be executed after one that raised. Waits for the device."""
        return self._started is not None and self._started.platform.responds()

    # --- life --------------------------------------------------------------------------------

    @torch.inference_mode()
    def start(self) -> WorkerInfo:
        """Load the model, size and allocate the KV cache, warm up. Blocks.

        Raises:
            ValueError: the model or a setting does not fit; the message names it.
        """
        assert self._started is None, "the worker was started before"
        opened = open_model(self._config, self._files, load_model, self._progress)
        self._config, platform = opened.config, opened.platform
        self._device = platform.device
        self._idle = IdleMeter(self._device)
        model, groups = opened.model, opened.groups
        started = self._allocate(opened)
        self._compile(platform)
        self._warm_up(groups, model.config.max_len)
        graph_step, mixed = started.graph_step, started.mixed_graphs
        return WorkerInfo(
            cache_groups=groups,
            vocab_size=model.vocab_size,
            max_model_len=model.config.max_len,
            max_step_tokens=self._config.scheduler.max_num_batched_tokens,
            eos_token_ids=self._files.eos_token_ids,
            async_device=platform.async_device,
            full_step=mixed.full_step if mixed is not None else 0,
            reads_shared_prefixes=graph_step is not None and graph_step.reads_prefixes,
        )

    def close(self) -> None:
        """Give back device and memory. Further calls do nothing."""
        self._started = None

    def start_profile(self) -> str:
        """Begin a profile; see ``StepProfiler``."""
        return str(self._profiler.start())

    def stop_profile(self) -> str:
        """End a profile; see ``StepProfiler``."""
        return str(self._profiler.stop())

    @torch.inference_mode()
    def read_adapter(self, folder: str) -> AdapterWeights:
        """Read a LoRA adapter's files. Blocks; on any thread.

        Raises:
            ValueError: adapters are off, or this is none.
        """
        if self._started is None or self._started.adapters is None:
            raise ValueError("adapters are off; they need --enable-lora (enable_lora=True)")
        return self._started.adapters.read(folder)

    @torch.inference_mode()
    def load_adapter(self, adapter: int, weights: object) -> None:
        """Load a LoRA adapter that ``read_adapter`` has read.

        Raises:
            ValueError: it does not fit, or no slot is free.
        """
        assert self._started is not None and self._started.adapters is not None
        assert isinstance(weights, AdapterWeights)
        self._started.adapters.load(adapter, weights)

    @torch.inference_mode()
    def unload_adapter(self, adapter: int) -> None:
        """Forget an adapter that no row uses."""
        assert self._started is not None and self._started.adapters is not None
        self._started.adapters.unload(adapter)

    def _open_adapters(self, model: CausalLM, max_rows: int) -> RowAdapters | None:
        if not self._config.lora.enabled:
            return None
        return RowAdapters(self._config.lora, model, max_rows, self._device)

    def _allocate(self, opened: OpenedModel[CausalLM]) -> _Started:
        model, backend, groups = opened.model, opened.backend, opened.groups
        max_rows = self._config.scheduler.max_num_seqs
        storage = CacheStorage.allocate(groups, backend, opened.cache_dtype, self._device)
        graphs = resources.open_graphs(self._config.execution, opened.platform, backend)
        rows = Rows(max_rows, model.config.max_len, groups, self._device)
        sampler = Sampler(max_rows, model.vocab_size, self._device, self._grammars)
        mixed = None
        if graphs is not None and backend.graph_support == GraphSupport.ALWAYS:
            widths = [table.shape[1] for table in rows.block_tables]
            limits = BatchLimits(self._config.scheduler.max_num_batched_tokens, max_rows, widths)
            mixed = MixedGraphRunner(model, storage, backend, graphs, limits, self._device)
        executor = Executor(model, storage, backend, (mixed,) if mixed is not None else ())
        self._started = _Started(
            opened.platform,
            executor,
            rows,
            InputBuilder(rows, groups, max_rows, self._device),
            sampler,
            StepFinisher(rows, sampler, PromptScorer(rows, sampler.table, executor), self._refused),
            adapters=self._open_adapters(model, max_rows),
            graph_step=None,
            mixed_graphs=None,
        )
        if graphs is not None:
            tables = DeviceTables(
                rows.token_ids,
                rows.block_tables,
                [group.spec.block_size for group in groups],
                first_full_group(groups),
            )
            runner = FullGraphRunner(model, storage, backend, tables, graphs, max_rows)
            self._started.graph_step = GraphStep(runner, rows, sampler, self._idle.mark_launch)
            self._started.mixed_graphs = mixed
        return self._started

    def _compile(self, platform: Platform) -> None:
        """Compile what graphs will launch, all of it at once."""
        assert self._started is not None
        if not platform.compiles_kernels:
            return
        self._progress("compile kernels", 0.0)
        works = []
        # The kernels of prompts take longest.
        if self._started.mixed_graphs is not None:
            works += self._started.mixed_graphs.rehearsals()
        if self._started.graph_step is not None:
            works += self._started.graph_step.rehearsals()
        platform.compile_ahead(works)

    def _warm_up(self, groups: tuple[CacheGroup, ...], max_model_len: int) -> None:
        self._progress("warm up", 0.0)
        scheduler = self._config.scheduler
        for plan in warmup_plans(
            groups, scheduler.max_num_seqs, scheduler.max_num_batched_tokens, max_model_len
        ):
            self.execute(plan).result()
        assert self._started is not None
        if self._started.graph_step is not None:
            try:
                self._started.graph_step.capture(
                    lambda done, total: self._progress("capture decode graphs", done / total)
                )
            except CaptureError as error:
                logger.info("decode steps run eagerly: %s", error)
                self._started.graph_step = None
        if self._started.mixed_graphs is not None:
            self._started.mixed_graphs.capture(
                lambda done, total: self._progress("capture prefill graphs", done / total)
            )

    # --- the step ----------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepOutcome:
        """Queue one step on the device; on a CPU, compute it.

        The tokens of a step with constrained rows are chosen by its ``result`` or by the next call.

        Raises:
            RuntimeError: the step failed as a whole.
        """
        started = self._started
        assert started is not None, "the worker is not started"
        started.finisher.settle()
        self._num_steps += plan.step_id != WARMUP_STEP
        last, self._last_decode = self._last_decode, None
        self._idle.note_end(None if last is None else last.end)
        self._profiler.step()
        self._update_rows(started, plan)
        # Captured graphs hold the plain model: a step with adapters runs eagerly.
        adapted = started.adapters is not None and started.adapters.select(plan)
        if started.graph_step is not None and not adapted:
            launched = started.graph_step.execute(plan)
            if launched is not None:
                self._last_decode = started.finisher.decode(plan, launched)
                return self._last_decode
        for group, appended in enumerate(plan.blocks):
            if appended.rows.size:
                started.rows.append_blocks(group, appended)
        inputs = started.builder.build(plan)
        staged = started.sampler.stage(inputs.sampling)
        output = started.executor.run(inputs.model, eager=adapted)
        return started.finisher.batch(plan, inputs, staged, output)

    def stats(self) -> WorkerStats:
        """How steps ran."""
        started = self._started
        decode = mixed = 0
        if started is not None and started.graph_step is not None:
            decode = started.graph_step.num_replays
        if started is not None and started.mixed_graphs is not None:
            mixed = started.mixed_graphs.num_replays
        median, high = self._idle.percentiles()
        return WorkerStats(decode, mixed, self._num_steps - decode - mixed, median, high)

    def _update_rows(self, started: _Started, plan: StepPlan) -> None:
        """Let the plan's frees take effect, then its starts. Its blocks come with the step."""
        if plan.freed_rows.size:
            for row in plan.freed_rows.tolist():
                started.sampler.remove(row)
                self._refused.pop(row, None)
        if plan.new_rows is not None:
            started.rows.start(plan.new_rows)
            if started.adapters is not None:
                started.adapters.start(plan.new_rows)
            self._start_sampling(started.sampler, plan.new_rows)

    def _start_sampling(self, sampler: Sampler, new: NewRows) -> None:
        ends = np.cumsum(new.num_tokens).tolist()
        starts = [0, *ends[:-1]]
        entries = zip(new.rows.tolist(), new.prompt_lens.tolist(), starts, ends, strict=True)
        for (row, prompt_len, start, end), sampling in zip(entries, new.sampling, strict=True):
            self._refused.pop(row, None)
            try:
                sampler.add_request(RowRequest(row, sampling, new.token_ids[start:end], prompt_len))
            except ValueError as error:
                # The exception boundary of a row: the others of the step go on.
                self._refused[row] = str(error)
            except Exception:
                logger.exception("row %d: its sampling could not be prepared", row)
                self._refused[row] = "internal error while its sampling was prepared"
