"""The whole engine on a GPU gives the CPU's tokens, whatever path a step takes. Float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.contract.equivalence import tiny_engine
from tests.contract.equivalence.tiny_engine import VOCAB_SIZE, TinyEngine, request, write_checkpoint
from xllm.control.scheduler import sharing
from xllm.core.config import ExecutionConfig
from xllm.core.request.request import Request
from xllm.execution.worker import prefix_rows
from xllm.hardware.kernels import ops

PARAMS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.4},
}


def _requests(**params: float) -> list[Request]:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, VOCAB_SIZE, n).tolist() for n in (1, 7, 8, 33, 60, 24, 9, 90)]
    return [request(i, prompt, 24, seed=i, **params) for i, prompt in enumerate(prompts)]


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_moe", "gpt_oss"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("step_tokens", [512, 24], ids=["whole prompts", "chunks"])
def test_tokens_equal_the_cpus(
    files, params: dict, overlap: bool, eager: bool, step_tokens: int, monkeypatch
) -> None:
    ops.use_platform("reference")  # ops are bound process-wide
    expected = TinyEngine(files).run(_requests(**params))
    on_gpu = ExecutionConfig(device="cuda", enforce_eager=eager)
    monkeypatch.setattr(tiny_engine, "ExecutionConfig", lambda **_: on_gpu)
    engine = TinyEngine(files, overlap=overlap, step_tokens=step_tokens)
    assert engine.run(_requests(**params)) == expected
    graph_step = engine.worker._started.graph_step
    if eager:
        assert graph_step is None
    else:
        assert graph_step.num_replays >= 23, "steady decode must run as graphs"
        assert graph_step.num_eager == 0
        ran = engine.worker.stats()
        assert ran.eager_steps == 0
        assert ran.idle_p99_us > 0.0 or not overlap


def test_rows_with_a_shared_prefix_give_the_cpus_tokens(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sharing, "MIN_SAVED_TOKENS", 64)
    monkeypatch.setattr(prefix_rows, "PREFIX_UNIT", 16)  # tiles of float32 are as long
    files = write_checkpoint(tmp_path, "llama")
    prefix = np.random.default_rng(3).integers(0, VOCAB_SIZE, 70).tolist()
    requests = [request(0, [7], 12), *(request(i, [*prefix, i], 20 + i) for i in range(1, 16))]
    ops.use_platform("reference")
    expected = TinyEngine(files).run(requests)
    monkeypatch.setattr(tiny_engine, "ExecutionConfig", lambda **_: ExecutionConfig(device="cuda"))
    engine = TinyEngine(files, overlap=True)
    engine.run([request(99, [*prefix, 99], 1)])  # the prefix is in the cache before the others come
    placed = []
    place = prefix_rows.PrefixPlacer.place
    monkeypatch.setattr(
        prefix_rows.PrefixPlacer, "place", lambda *args: placed.append(place(*args)) or placed[-1]
    )
    assert engine.run(requests) == expected
    assert placed and placed[0].lens.max() == 64


SYNCING = {
    "drawn": {"temperature": 0.8},
    "filtered": {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "banned": {"temperature": 0.8, "min_tokens": 4, "logit_bias": {3: -2.0}},
}


@pytest.mark.parametrize("params", SYNCING.values(), ids=SYNCING)
@pytest.mark.parametrize("step_tokens", [512, 24], ids=["whole prompts", "chunks"])
def test_queueing_a_step_never_waits_for_the_device(
    tmp_path, params: dict, step_tokens: int, monkeypatch
) -> None:
    files = write_checkpoint(tmp_path, "llama")
    monkeypatch.setattr(tiny_engine, "ExecutionConfig", lambda **_: ExecutionConfig(device="cuda"))
    engine = TinyEngine(files, overlap=True, step_tokens=step_tokens)
    execute = engine.worker.execute
    errors = []

    def checked(plan):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return execute(plan)
        except RuntimeError as error:
            errors.append(error)
            raise
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(engine.worker, "execute", checked)
    assert len(engine.run(_requests(**params))) == 8
    assert not errors
