"""The worker alone, driven by hand-written plans on a tiny dummy model."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.unit.execution.test_rows import int32
from xllm.core.config import CacheConfig, ExecutionConfig, ModelConfig, SchedulerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.worker import AppendedBlocks, NewRows, RowSampling, StepPlan
from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutput
from xllm.execution.worker import Worker
from xllm.hardware.platforms import cpu

_MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": [7, 9],
}
_FILES = ModelFiles(name="tiny", folder="", config=_MODEL, format="dummy", vocab_size=90)


def make_worker(files: ModelFiles = _FILES, progress: Any = None, **cache: Any) -> Worker:
    config = XllmConfig(
        model=ModelConfig(dtype="float32"),
        cache=CacheConfig(block_size=8, **({"num_kv_tokens": 256} | cache)),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32),
        execution=ExecutionConfig(device="cpu", num_threads=1),
    )
    return Worker(config, files, progress)


@pytest.fixture(scope="module")
def worker() -> Worker:
    started = make_worker()
    started.start()
    return started


def start_plan(
    prompts: list[list[int]],
    sampling: list[RowSampling],
    *,
    num_scheduled: list[int] | None = None,
    freed: tuple[int, ...] = (),
) -> StepPlan:
    """Rows 0.. start; row r owns blocks 8r + 1 .. 8r + 8."""
    count = len(prompts)
    lens = int32(*map(len, prompts))
    scheduled = lens if num_scheduled is None else int32(*num_scheduled)
    rows = np.arange(count, dtype=np.int32)
    return StepPlan(
        step_id=3,
        rows=rows,
        num_scheduled=scheduled,
        num_computed=np.zeros(count, np.int32),
        samples=scheduled == lens,
        blocks=(
            AppendedBlocks(
                rows,
                np.zeros(count, np.int32),
                np.full(count, 8, np.int32),
                np.arange(1, 8 * count + 1, dtype=np.int32),
            ),
        ),
        freed_rows=int32(*freed),
        new_rows=NewRows(rows, lens, lens, int32(*(t for p in prompts for t in p)), sampling),
    )


def next_plan(rows: list[int], computed: list[int], counts: list[int] | None = None) -> StepPlan:
    none = int32()
    counts = counts or [1] * len(rows)
    return StepPlan(
        4,
        int32(*rows),
        int32(*counts),
        int32(*computed),
        np.ones(len(rows), np.bool_),
        (AppendedBlocks(none, none, none, none),),
        none,
    )


def row(seed: int = 0, **params: Any) -> RowSampling:
    return RowSampling(SamplingParams(**({"temperature": 0.0} | params)), seed)


def test_start_reports_the_model_and_its_cache(worker):
    progress: list[str] = []
    info = make_worker(progress=lambda phase, fraction: progress.append(phase)).start()
    (group,) = info.cache_groups
    assert group.num_blocks == 256 // 8 + 1
    assert info.vocab_size == 90
    assert info.max_model_len == 64
    assert info.eos_token_ids == (7, 9)
    assert not info.async_device
    phases = ["load weights", "allocate KV cache", "warm up", "capture decode graphs"]
    assert list(dict.fromkeys(progress)) == phases


def test_the_next_step_reads_the_token_that_the_last_one_sampled(worker):
    prompt = [3, 5, 8, 13]
    first = worker.execute(start_plan([prompt], [row()])).result()
    second = worker.execute(next_plan([0], [4])).result()
    known = [*prompt, int(first.token_ids[0])]
    whole = worker.execute(start_plan([known], [row()])).result()
    assert whole.token_ids.tolist() == second.token_ids.tolist()
    assert (first.step_id, second.step_id) == (3, 4)


def test_a_chunked_prompt_samples_once_at_its_end(worker):
    prompt = list(range(20))
    whole = worker.execute(start_plan([prompt], [row()])).result()
    chunk = worker.execute(start_plan([prompt], [row()], num_scheduled=[13])).result()
    assert chunk.token_ids.size == 0
    rest = worker.execute(next_plan([0], [13], [7])).result()
    assert rest.token_ids.tolist() == whole.token_ids.tolist()


def test_a_row_whose_parameters_do_not_fit_fails_alone(worker):
    prompts = [[1, 2], [1, 2], [1, 2]]
    bad = row(allowed_token_ids=[95])
    result = worker.execute(start_plan(prompts, [row(), bad, row()])).result()
    assert list(result.failed) == [1]
    assert "vocabulary size 90" in result.failed[1]
    assert result.token_ids[0] == result.token_ids[2]
    again = worker.execute(start_plan(prompts, [row()] * 3, freed=(0, 1, 2))).result()
    assert again.failed == {}


def test_nan_weights_fail_the_rows_that_read_them():
    # Untied: the other rows' logits do not touch the broken embedding.
    untied = dataclasses.replace(_FILES, config=_MODEL | {"tie_word_embeddings": False})
    broken = make_worker(untied)
    broken.start()
    plan = start_plan([[1, 2, 3], [1, 50, 3]], [row(), row()])
    clean = broken.execute(plan).result()
    with torch.inference_mode():
        broken._started.executor._model.model.embed_tokens.weight[50] = float("nan")
    result = broken.execute(plan).result()
    assert list(result.failed) == [1]
    assert "not finite" in result.failed[1]
    assert result.token_ids[0] == clean.token_ids[0]
    assert broken.healthy


def test_logprobs_come_for_the_rows_that_ask(worker):
    asks = row(logprobs=2)
    result = worker.execute(start_plan([[1, 2], [3, 4], [5]], [row(), asks, row()])).result()
    assert result.logprobs.entries.tolist() == [1]
    assert result.logprobs.token_ids[0, 0] == result.token_ids[1]
    assert result.logprobs.token_ids.shape == (1, 3)


def test_prompt_logprobs_cover_every_token_but_the_first(worker):
    prompt = list(range(10, 30))
    asks = row(prompt_logprobs=1)
    (whole,) = worker.execute(start_plan([prompt], [asks])).result().prompt_logprobs
    assert (whole.row, whole.start) == (0, 1)
    assert whole.token_ids[:, 0].tolist() == prompt[1:]
    first = worker.execute(start_plan([prompt], [asks], num_scheduled=[8])).result()
    second = worker.execute(next_plan([0], [8], [12])).result()
    parts = [*first.prompt_logprobs, *second.prompt_logprobs]
    assert [(part.start, len(part.ranks)) for part in parts] == [(1, 8), (9, 11)]
    joined = np.concatenate([part.logprobs for part in parts])
    np.testing.assert_allclose(joined, whole.logprobs, atol=1e-4)
    assert worker.execute(next_plan([0], [20])).result().prompt_logprobs == []


def test_results_survive_later_steps(worker):
    first = worker.execute(start_plan([[1, 2], [3, 4]], [row(), row()])).result()
    kept = first.token_ids.copy()
    for position in range(2, 6):
        worker.execute(next_plan([0, 1], [position, position])).result()
    assert np.array_equal(first.token_ids, kept)


def test_a_plan_survives_the_wire(worker):
    from xllm.core.utils.arrays import decoder, encoder

    plan = start_plan([[1, 2, 3]], [row(logit_bias={4: 2.0})])
    sent = decoder(StepPlan).decode(encoder().encode(plan))
    expected = worker.execute(plan).result()
    assert worker.execute(sent).result().token_ids.tolist() == expected.token_ids.tolist()
    assert msgspec.structs.asdict(expected)["failed"] == {}


def test_too_little_memory_is_a_clear_error():
    with pytest.raises(ValueError, match="max_cache_size"):
        make_worker(num_kv_tokens=None, max_cache_size=10).start()


def test_the_cache_takes_no_more_than_its_ceiling():
    info = make_worker(num_kv_tokens=None, max_cache_size=100_000).start()
    (group,) = info.cache_groups
    assert group.num_blocks * group.bytes_per_block <= 100_000
    assert (group.num_blocks + 1) * group.bytes_per_block > 100_000


def test_a_context_beyond_the_model_is_refused():
    worker = make_worker()
    config = dataclasses.replace(worker._config.model, max_model_len=65)
    worker._config = dataclasses.replace(worker._config, model=config)
    with pytest.raises(ValueError, match="max-model-len"):
        worker.start()


def test_close_may_be_called_twice():
    worker = make_worker()
    worker.start()
    worker.close()
    worker.close()
    assert not worker.healthy


def test_a_device_that_no_longer_computes_is_not_healthy(monkeypatch):
    def synchronize(platform):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    worker = make_worker()
    worker.start()
    assert worker.healthy
    monkeypatch.setattr(cpu.Platform, "synchronize", synchronize)
    assert not worker.healthy


def test_a_refused_row_keeps_nothing_of_the_row_before(worker):
    """It computes its prompt all the same, and is told when it samples."""
    worker.execute(start_plan([[1, 2]], [row(prompt_logprobs=1, logprobs=1)])).result()
    grammar = StructuredOutput("regex", "[ab]+")
    refused = msgspec.structs.replace(row(), structured_output=grammar)
    result = worker.execute(start_plan([[1, 2]], [refused])).result()
    assert "structured_outputs" in result.failed[0]
    assert result.prompt_logprobs == [] and result.logprobs is None
