"""Times the whole engine in one process on a GPU: scheduler, loop, worker, dummy weights.

    python benchmarks/kernels/cuda_engine.py --model 8b --out out.json [--only stream,decode]

No tokenizer, no HTTP: token ids in, token ids out, greedy but in ``sampled``, end tokens ignored.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton

from xllm.control.engine import OverlapEngineLoop
from xllm.control.scheduler import build_scheduler
from xllm.core.config import CacheConfig, ExecutionConfig, ModelConfig, SchedulerConfig, XllmConfig
from xllm.core.config.files import ModelFiles
from xllm.core.messages.server import EngineReady, OutputBatch
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.entrypoints.cli.bench import workloads
from xllm.execution.worker import Worker

VOCAB = 151936
_QWEN3_TOKENS = 151669  # that its tokenizer knows: logits of an odd width, as a server has them
_QWEN3 = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "vocab_size": VOCAB,
    "eos_token_id": 151645,
}
MODELS: dict[str, dict[str, Any]] = {
    "0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "8b": _QWEN3
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
}


MODELS["30b-a3b"] = _QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}

MODELS["gpt-oss-20b"] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "vocab_size": 201088,
    "eos_token_id": 200002,
    "tie_word_embeddings": False,
}


class Engine:
    """The engine without processes, started."""

    def __init__(
        self,
        model: str,
        max_rows: int,
        step_tokens: int,
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
        **execution: Any,
    ) -> None:
        config = XllmConfig(
            model=ModelConfig(
                dtype="bfloat16",
                max_model_len=8192,
                load_format="dummy",
                quantization=quantization,
            ),
            cache=CacheConfig(kv_cache_dtype=kv_cache_dtype),
            scheduler=SchedulerConfig(max_num_seqs=max_rows, max_num_batched_tokens=step_tokens),
            execution=ExecutionConfig(device="cuda", **execution),
        )
        known = _QWEN3_TOKENS if MODELS[model]["vocab_size"] == VOCAB else None
        files = ModelFiles(
            name=model, folder="", config=MODELS[model], format="dummy", vocab_size=known
        )
        self.phases: dict[str, float] = {}
        self._begin = time.perf_counter()
        self.worker = Worker(config, files, self._note)
        info = self.worker.start()
        torch.cuda.synchronize()
        self.phases["ready"] = time.perf_counter() - self._begin
        self.scheduler = build_scheduler(config.scheduler, config.cache, info)
        ready = EngineReady(model, 8192, info.vocab_size, 0, 1.0)
        self.loop = OverlapEngineLoop(self.scheduler, self.worker, None, None, ready)
        self.num_offline = 0
        self._handle = 0

    def _note(self, phase: str, fraction: float) -> None:
        self.phases[phase] = time.perf_counter() - self._begin

    @property
    def num_replays(self) -> int:
        """Steps that ran as graphs so far."""
        graph_step = self.worker._started.graph_step
        return graph_step.num_replays if graph_step is not None else 0

    def submit(self, requests: Sequence[workloads.BenchRequest], **sampling: Any) -> None:
        """Greedy unless told otherwise."""
        sampling = {"temperature": 0.0, **sampling}
        for request in requests:
            self._handle += 1
            params = SamplingParams(max_tokens=request.max_tokens, ignore_eos=True, **sampling)
            prompt = np.array(request.prompt_token_ids, np.int32)
            self.loop.submit(
                Request(
                    handle=self._handle,
                    request_id=str(self._handle),
                    prompt_token_ids=prompt,
                    params=params,
                    max_tokens=request.max_tokens,
                    seed=0,
                )
            )

    def run(self) -> list[tuple[float, int]]:
        """Step until idle: (seconds since the start, tokens that arrived) of every step."""
        begin = time.perf_counter()
        arrivals = []
        while self.scheduler.has_work:
            count = 0
            for message in self.loop.step():
                assert isinstance(message, OutputBatch) and not message.failures, message
                count += len(message.token_ids)
            arrivals.append((time.perf_counter() - begin, count))
        return arrivals

    def close(self) -> None:
        self.worker.close()
        del self.worker, self.loop, self.scheduler
        torch.cuda.empty_cache()


def stream(engine: Engine) -> dict[str, float]:
    """One request of 512 tokens in and out: TTFT and time per output token, in ms."""
    found = []
    for run in range(4):
        engine.submit(workloads.fixed(1, 512, 512, VOCAB, run))
        times = [t for t, count in engine.run() for _ in range(count)]
        found.append((times[0], (times[-1] - times[0]) / 511))
    ttft, tpot = (statistics.median(x) * 1e3 for x in zip(*found[1:], strict=True))
    return {"ttft_ms": ttft, "tpot_ms": tpot}


SAMPLED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top-p": {"temperature": 0.6, "top_p": 0.95},
    "top-k and top-p": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "penalty": {"repetition_penalty": 1.1},
    "logprobs": {"logprobs": 5},
}


def decode(engine: Engine) -> dict[str, float]:
    """Time per output token at context 1024 and a batch, in ms."""
    found = {}
    for batch in (1, 8, 32, 64, 128, 256):
        engine.submit(workloads.fixed(batch, 960, 128, VOCAB, 100 + batch))
        times = [t for t, count in engine.run() if count == batch]
        found[f"batch {batch}"] = statistics.median(np.diff(times)) * 1e3
    return found


def sampled(engine: Engine) -> dict[str, float]:
    """``decode`` at context 1024 with what a request may ask of sampling, in ms."""
    found = {}
    for name, params in SAMPLED.items():
        for batch in (1, 64, 256):
            engine.submit(workloads.fixed(batch, 960, 128, VOCAB, 500 + batch), **params)
            times = [t for t, count in engine.run() if count == batch]
            found[f"{name} batch {batch}"] = statistics.median(np.diff(times)) * 1e3
    return found


def longest(engine: Engine) -> dict[str, float]:
    """``offline`` in the order in which ``LLM.generate`` hands requests over."""
    return offline(engine, order=lambda request: -request.max_tokens)


def offline(
    engine: Engine, order: Callable[[workloads.BenchRequest], int] = lambda request: 0
) -> dict[str, float]:
    """1,000 chat-like requests at once, as they came: output tokens a second."""
    requests = sorted(workloads.sharegpt_like(1000, VOCAB, 1234), key=order)
    # The same lengths in every run, but no prompt that an earlier run left in the prefix cache.
    shift = 7919 * engine.num_offline
    engine.num_offline += 1
    engine.submit(
        [
            workloads.BenchRequest([(t + shift) % VOCAB for t in r.prompt_token_ids], r.max_tokens)
            for r in requests
        ]
    )
    hits = engine.scheduler.stats().prefix_hits
    replays = (
        engine.worker._started.graph_step.num_replays if engine.worker._started.graph_step else 0
    )
    begin = time.perf_counter()
    steps = engine.run()
    seconds = time.perf_counter() - begin
    total = sum(count for _, count in steps)
    return {
        "cached_prompt_tokens": engine.scheduler.stats().prefix_hits - hits,
        "output_tokens": total,
        "seconds": seconds,
        "output_tokens_per_s": total / seconds,
        "steps": len(steps),
        "graph_steps": engine.num_replays - replays,
    }


def prefill(engine: Engine) -> dict[str, float]:
    """64 prompts of 2,048 tokens, one token each: prompt tokens a second."""
    engine.submit(workloads.fixed(64, 2048, 1, VOCAB, 3))
    engine.run()
    engine.submit(workloads.fixed(64, 2048, 1, VOCAB, 4))
    begin = time.perf_counter()
    engine.run()
    return {"prompt_tokens_per_s": 64 * 2048 / (time.perf_counter() - begin)}


def shared(engine: Engine) -> dict[str, float]:
    """256 requests with 2,048 shared and 64 own tokens, 64 out: seconds."""
    engine.submit(workloads.shared_prefix(256, 2048, 64, 64, VOCAB, 11))
    begin = time.perf_counter()
    engine.run()
    return {"seconds": time.perf_counter() - begin}


def host(engine: Engine) -> dict[str, float]:
    """Microseconds of the host per steady decode step, by part, at two batch sizes."""
    found = {}
    for batch in (1, 256):
        engine.submit(workloads.fixed(batch, 64, 400, VOCAB, 200 + batch))
        scheduler, worker = engine.scheduler, engine.worker
        calls = (scheduler, "schedule"), (worker, "execute"), (scheduler, "commit")
        parts = {name: _timed(owner, name) for owner, name in calls}
        steps = engine.run()
        for owner, name in calls:
            delattr(owner, name)
        for name in ("schedule", "execute", "commit"):
            found[f"batch {batch} {name} us"] = statistics.median(parts[name][50:-50]) * 1e6
        found[f"batch {batch} step us"] = statistics.median(np.diff([t for t, _ in steps])) * 1e6
    return found


def idle(engine: Engine) -> dict[str, float]:
    """Device idle between decode steps in microseconds, by batch."""
    found = {}
    meter = engine.worker._idle
    for batch in (1, 64, 256):
        begin = meter._count
        engine.submit(workloads.fixed(batch, 64, 600, VOCAB, 400 + batch))
        engine.run()
        gaps = meter._gaps[begin + 1 : meter._count]
        for percent in (50, 99):
            found[f"batch {batch} p{percent} us"] = round(float(np.percentile(gaps, percent)), 1)
    return found | {"steps": str(engine.worker.stats())}


def profile(engine: Engine) -> dict[str, Any]:
    """Where the device spends a decode step by batch, a step of 256 rows in which prompts begin,
    and a prefill step: kernels, in us a step."""
    found: dict[str, Any] = {}
    for batch in (1, 64, 256):
        engine.submit(workloads.fixed(batch, 300, 60, VOCAB, 300 + batch))
        for _ in range(20):
            engine.loop.step()
        found[f"batch {batch}"] = _profiled(engine, steps=20)
        engine.run()
    engine.submit(workloads.sharegpt_like(500, VOCAB, 77))
    for _ in range(60):
        engine.loop.step()
    found["mixed"] = _profiled(engine, steps=40)
    engine.run()
    engine.submit(workloads.fixed(64, 2048, 1, VOCAB, 5))
    engine.loop.step()
    found["prefill"] = _profiled(engine, steps=10)
    engine.run()
    return found


def _profiled(engine: Engine, steps: int) -> dict[str, Any]:
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        begin = time.perf_counter()
        for _ in range(steps):
            engine.loop.step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    rows = [
        (event.key[:60], round(event.self_device_time_total / steps, 1), event.count / steps)
        for event in trace.key_averages()
    ]
    rows.sort(key=lambda row: -row[1])
    busy = round(sum(row[1] for row in rows), 1)
    return {"wall": wall / steps * 1e6, "busy": busy, "kernels": rows[:20]}


def _timed(owner: Any, name: str) -> list[float]:
    """Seconds of every call of a method from now on, until the attribute is deleted."""
    function, into = getattr(owner, name), []

    def call(*args: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args)
        finally:
            into.append(time.perf_counter() - begin)

    setattr(owner, name, call)
    return into


PARTS = {  # name -> (function, rows)
    "stream": (stream, 256),
    "host": (host, 256),
    "idle": (idle, 256),
    "decode": (decode, 256),
    "sampled": (sampled, 256),
    "profile": (profile, 256),
    "offline256": (offline, 256),
    "longest256": (longest, 256),
    "prefill": (prefill, 256),
    "shared": (shared, 256),
    "offline1024": (offline, 1024),
    "longest1024": (longest, 1024),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--out")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--step-tokens", type=int, default=8192)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--quantization", choices=("fp8", "fp8_block"))
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto")
    arguments = parser.parse_args()
    report: dict[str, Any] = {
        "model": f"Qwen3-{arguments.model.upper()} dummy weights, bfloat16",
        "quantization": arguments.quantization,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "step_tokens": arguments.step_tokens,
    }
    engine, rows = None, 0
    for name in arguments.only.split(","):
        part, wanted = PARTS[name]
        if engine is None or rows != wanted:
            if engine is not None:
                engine.close()
            engine = Engine(
                arguments.model,
                wanted,
                arguments.step_tokens,
                arguments.quantization,
                arguments.kv_cache_dtype,
                enforce_eager=arguments.eager,
            )
            rows = wanted
            report[f"start, {rows} rows"] = engine.phases
            print(arguments.model, "start", json.dumps(engine.phases), flush=True)
        report[name] = part(engine)
        print(arguments.model, name, json.dumps(report[name]), flush=True)
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
