"""Starts workers with Triton kernels that are neither compiled nor run, and serves with them.

Prints how many specializations of kernels each start compiles ahead, and each that is first asked
for later, with when that was. Run as a module: the interpreter has no specializations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton.runtime import driver

from tests.fakes.graphs import FakeGraphs
from tests.fakes.hopper import HopperDriver
from xllm.core.config import CacheConfig, ExecutionConfig, ModelConfig, SchedulerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.worker import AppendedBlocks, NewRows, RowSampling, StepPlan
from xllm.core.request.sampling import SamplingParams
from xllm.execution.worker import Worker, resources
from xllm.hardware.kernels import ops
from xllm.hardware.kernels.triton import linear
from xllm.hardware.kernels.triton.compile_ahead import compile_ahead
from xllm.hardware.platforms import cpu
from xllm.modeling.attention import triton as triton_backend

_DENSE = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "vocab_size": 1003,  # an odd number: logits in float32 lie closer than those of the head
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": _DENSE,
    "experts": _DENSE
    | {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 128,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
    },
    "windows": _DENSE
    | {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
_AHEAD = "compile kernels"
_ROWS = (1, 3, 40)
_PROMPT = 9
_SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.7},
    "top-k and top-p": {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
    "min-p": {"temperature": 0.7, "min_p": 0.1},
    "penalty": {"temperature": 0.7, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
}


class Platform(cpu.Platform):
    """The CPU, as a device that compiles kernels and has graphs."""

    kernels = "triton"
    compiles_kernels = True
    supports_fp8 = True

    def start(self, num_threads: int = 0) -> None:
        ops.use_platform(self.kernels)

    def compile_ahead(self, works: Sequence[Callable[[], object]]) -> None:
        compile_ahead(works)


def main(model: str) -> None:
    phase = [""]
    first_asked: dict[tuple[str, str], str] = {}

    def neither_compiled_nor_run(*, key: str, fn: Any, **_: Any) -> bool:
        first_asked.setdefault((fn.name, key), phase[0])
        return True

    driver.set_active(HopperDriver())
    triton.knobs.runtime.jit_cache_hook = neither_compiled_nor_run
    graphs = FakeGraphs()
    with (
        mock.patch.object(resources, "resolve", lambda device: Platform()),
        mock.patch.object(Platform, "graphs", graphs),
        mock.patch.object(triton_backend.Backend, "device_type", "cpu"),
        mock.patch.object(linear, "num_multiprocessors", lambda device: 132),
        mock.patch.object(linear.functional, "linear", _product),
        # What kernels leave unwritten stands for tokens later.
        mock.patch.object(torch, "empty", torch.zeros),
        mock.patch.object(torch, "empty_like", torch.zeros_like),
    ):
        config = XllmConfig(
            model=ModelConfig(dtype="bfloat16", load_format="dummy", max_model_len=500),
            cache=CacheConfig(num_kv_tokens=4096),
            scheduler=SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512),
            execution=ExecutionConfig(device="cpu", attention_backend="triton"),
        )
        files = ModelFiles(
            name=model, folder="", config=MODELS[model], format="dummy", vocab_size=1003
        )
        worker = Worker(config, files, lambda name, _: phase.__setitem__(0, name))
        worker.start()
        for name, params in _SAMPLING.items():
            for num_rows in _ROWS:
                phase[0] = f"{num_rows} rows, {name}"
                for plan in _steps(num_rows, SamplingParams(**params)):
                    worker.execute(plan).result()
    ran = worker.stats()
    assert min(ran.decode_graph_steps, ran.mixed_graph_steps) >= len(_SAMPLING) * len(_ROWS)
    print(f"{model}: {sum(when == _AHEAD for when in first_asked.values())} ahead")
    for (kernel, _), when in first_asked.items():
        if when != _AHEAD:
            print(f"{model}: {kernel}, {when}")


def _product(x: torch.Tensor, weight: torch.Tensor, bias: object = None) -> torch.Tensor:
    return x.new_zeros(len(x), len(weight))


def _steps(num_rows: int, params: SamplingParams) -> tuple[StepPlan, StepPlan]:
    """New rows with a prompt each, and the step after."""
    rows = np.arange(num_rows, dtype=np.int32)
    none, lens = np.zeros(0, np.int32), np.full(num_rows, _PROMPT, np.int32)
    sampling = [RowSampling(params, 0)] * num_rows
    new = NewRows(rows, lens, lens, np.zeros(num_rows * _PROMPT, np.int32), sampling)
    ones, samples = np.ones_like(rows), np.ones(num_rows, np.bool_)
    blocks = (AppendedBlocks(rows, 0 * rows, ones, rows + 1),)
    nothing = (AppendedBlocks(none, none, none, none),)
    return (
        StepPlan(1, rows, lens, 0 * rows, samples, blocks, none, new),
        StepPlan(2, rows, ones, lens, samples, nothing, none),
    )


if __name__ == "__main__":
    for each in MODELS:
        main(each)
