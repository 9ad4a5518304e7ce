"""How near the CPU's kernels are to what the machine can do.

    python benchmarks/kernels/run.py [--threads N] [--dtype float32|bfloat16|int8]

The shapes are a step of SmolLM2-135M (30 layers of hidden 576, 9 query and 3 KV heads of 64,
intermediate 1536, vocabulary 49152) and its parts. Ceilings are measured in the same run: the
bandwidth of summing a large tensor, and torch's large matrix product in the dtype. Times are the
best of several runs, so that a busy machine disturbs them less.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from xllm.hardware import platforms
from xllm.hardware.kernels import ops

HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 576, 1536, 49152, 30
Q_HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
WIDTH = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
PROJECTIONS = {  # name: (N, K)
    "qkv": (WIDTH, HIDDEN),
    "o": (HIDDEN, Q_HEADS * HEAD_DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCABULARY, HIDDEN),
}


def best_seconds(run: Callable[[], Any], budget_seconds: float = 0.5) -> float:
    """Fastest of the runs that fit the budget, three at least."""
    run()
    best, spent, count = float("inf"), 0.0, 0
    while count < 3 or (spent < budget_seconds and count < 200):
        start = time.perf_counter()
        run()
        elapsed = time.perf_counter() - start
        best, spent, count = min(best, elapsed), spent + elapsed, count + 1
    return best


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What the machine can do."""

    bytes_per_second: float
    flops: float


def measure_ceilings(dtype: torch.dtype) -> Ceilings:
    """Summing 512 MiB, and a 1024 x 2048 x 2048 product of torch."""
    data = torch.ones(1 << 27)
    a, b = torch.randn(1024, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    return Ceilings(
        data.nbytes / best_seconds(data.sum, 1.0),
        2 * a.shape[0] * b.numel() / best_seconds(lambda: torch.nn.functional.linear(a, b), 1.0),
    )


class Bench:
    """Prints one line per measurement."""

    def __init__(self, dtype: torch.dtype, int8: bool, ceilings: Ceilings) -> None:
        self.dtype = dtype
        self.int8 = int8
        self.ceilings = ceilings

    def pack(self, n: int, k: int) -> tuple[Any, int]:
        """A packed weight and its bytes in the format under test."""
        if self.int8:
            weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
            return ops.pack_linear(weight, torch.rand(n) / 1000), weight.nbytes
        weight = (torch.randn(n, k) / k**0.5).to(self.dtype)
        return ops.pack_linear(weight), weight.nbytes

    def report(self, name: str, seconds: float, num_bytes: float = 0.0, flop: float = 0.0) -> None:
        """One line, with the share of the tighter ceiling."""
        floors = {
            "read": num_bytes / self.ceilings.bytes_per_second,
            "arithmetic": flop / self.ceilings.flops,
        }
        bound = max(floors, key=floors.__getitem__)
        print(
            f"{name:34} {seconds * 1e6:11.1f} {num_bytes / seconds / 1e9:8.1f} "
            f"{flop / seconds / 1e9:9.1f}   {floors[bound] / seconds:5.0%} of {bound}",
            flush=True,
        )


def bench_linear(bench: Bench) -> None:
    for tokens in (1, 4, 16, 64, 512):
        for name in ("gate_up", "down", "head"):
            if name == "head" and tokens > 16:
                continue
            n, k = PROJECTIONS[name]
            packed, num_bytes = bench.pack(n, k)
            # As many copies as no cache holds: a layer's weights are cold when its turn comes.
            copies = [packed] + [bench.pack(n, k)[0] for _ in range((96 << 20) // num_bytes)]
            x = torch.randn(tokens, k).to(bench.dtype)

            def run(copies: list[Any] = copies, x: torch.Tensor = x) -> None:
                for weight in copies:
                    ops.linear(x, weight)

            seconds = best_seconds(run) / len(copies)
            bench.report(f"linear {name} T={tokens}", seconds, num_bytes, 2 * tokens * n * k)


def paged_cache(rows: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Key and value views and the block table of ``rows`` sequences."""
    per_row = -(-length // BLOCK)
    cache = torch.randn(2, rows * per_row + 1, KV_HEADS, BLOCK, HEAD_DIM).to(dtype)
    table = torch.arange(1, rows * per_row + 1, dtype=torch.int32).view(rows, per_row)
    return cache[0].transpose(1, 2), cache[1].transpose(1, 2), table


def bench_attention(bench: Bench) -> None:
    cases = [(1, 128, 1), (1, 2048, 1), (16, 192, 1), (16, 2048, 1), (1, 512, 512), (1, 2048, 512)]
    for rows, length, queries in cases:
        keys, values, table = paged_cache(rows, length, bench.dtype)
        q = torch.randn(rows * queries, Q_HEADS, HEAD_DIM).to(bench.dtype)
        starts = torch.arange(rows + 1, dtype=torch.int32) * queries
        lens = torch.full((rows,), length, dtype=torch.int32)
        arguments = (q, keys, values, starts, lens, table, 0.125, 0.0, 0, queries)
        seconds = best_seconds(lambda arguments=arguments: ops.paged_attention(*arguments))
        seen = queries * length - queries * (queries - 1) // 2
        bench.report(
            f"attention S={rows} len={length} Q={queries}",
            seconds,
            rows * length * 2 * KV_HEADS * HEAD_DIM * keys.element_size(),
            rows * 4.0 * seen * Q_HEADS * HEAD_DIM,
        )


def bench_elementwise(bench: Bench) -> None:
    for tokens in (1, 16, 512):
        elementwise_of(bench, tokens)


def elementwise_of(bench: Bench, tokens: int) -> None:
    """The ops between the products, over ``tokens`` tokens."""
    keys, values, _ = paged_cache(1, 512, bench.dtype)
    x = torch.randn(tokens, HIDDEN).to(bench.dtype)
    residual, weight = x.clone(), torch.ones(HIDDEN, dtype=bench.dtype)
    gate_up = torch.randn(tokens, 2 * INTERMEDIATE).to(bench.dtype)
    qkv = torch.randn(tokens, WIDTH).to(bench.dtype)
    at = torch.arange(tokens)
    cos_sin = torch.randn(tokens, HEAD_DIM)
    rope = (qkv, at, cos_sin, keys, values, at + BLOCK, Q_HEADS, KV_HEADS, HEAD_DIM, None, None)
    size = x.element_size() * tokens
    for name, run, num_elements in (
        ("add + norm", lambda: ops.fused_add_rms_norm(x, residual, weight, 1e-5), 4 * HIDDEN),
        ("act and mul", lambda: ops.act_and_mul(gate_up, "silu"), 3 * INTERMEDIATE),
        ("rope + kv write", lambda: ops.qk_norm_rope_kv_write(*rope, 1e-5), 2 * WIDTH),
    ):
        bench.report(f"{name} T={tokens}", best_seconds(run, 0.2), num_elements * size)


class Model:
    """The ops of one step in the order of the model, without the model's own Python."""

    def __init__(self, bench: Bench) -> None:
        names = ("qkv", "o", "gate_up", "down")
        shapes = [PROJECTIONS[name] for name in names]
        self.layers = [[bench.pack(*shape)[0] for shape in shapes] for _ in range(LAYERS)]
        self.head, head_bytes = bench.pack(*PROJECTIONS["head"])
        self.layer_weights = LAYERS * sum(n * k for n, k in shapes)
        self.bytes = head_bytes + self.layer_weights * head_bytes // (VOCABULARY * HIDDEN)
        self.norm = torch.ones(HIDDEN, dtype=bench.dtype)
        self.cos_sin = torch.randn(4096, HEAD_DIM)

    def step(self, x: torch.Tensor, caches: list[Any], at: tuple[Any, ...], batch: Any) -> None:
        """``at``: positions, slots, rows to sample; ``batch``: the metadata of attention."""
        positions, slots, sampled = at
        residual = torch.zeros_like(x)
        heads = (Q_HEADS, KV_HEADS, HEAD_DIM, None, None, 0.0)
        for (qkv, o, gate_up, down), (keys, values, table) in zip(self.layers, caches, strict=True):
            x, residual = ops.fused_add_rms_norm(x, residual, self.norm, 1e-5)
            projected = ops.linear(x, qkv)
            q = ops.qk_norm_rope_kv_write(
                projected, positions, self.cos_sin, keys, values, slots, *heads
            )
            starts, lens, queries = batch
            x = ops.paged_attention(q, keys, values, starts, lens, table, 0.125, 0.0, 0, queries)
            x, residual = ops.fused_add_rms_norm(ops.linear(x, o), residual, self.norm, 1e-5)
            x = ops.linear(ops.gated_linear(x, gate_up, None, "silu"), down)
        x, residual = ops.fused_add_rms_norm(x, residual, self.norm, 1e-5)
        ops.linear(x[sampled], self.head)


def bench_step(bench: Bench) -> None:
    model = Model(bench)
    for rows, length, queries in ((1, 128, 1), (1, 2048, 1), (16, 192, 1), (1, 512, 512)):
        step_of(bench, model, rows, length, queries)


def step_of(bench: Bench, model: Model, rows: int, length: int, queries: int) -> None:
    """One step of ``rows`` sequences of ``length`` tokens, the last ``queries`` of them new."""
    caches = [paged_cache(rows, length, bench.dtype) for _ in range(LAYERS)]
    tokens = rows * queries
    starts = torch.arange(rows + 1, dtype=torch.int32) * queries
    lens = torch.full((rows,), length, dtype=torch.int32)
    positions = torch.arange(length - queries, length).repeat(rows)
    at = (positions, torch.arange(tokens) + BLOCK, starts[1:].long() - 1)
    x = torch.randn(tokens, HIDDEN).to(bench.dtype)
    seconds = best_seconds(lambda: model.step(x, caches, at, (starts, lens, queries)), 3.0)
    kv_bytes = LAYERS * rows * length * 2 * KV_HEADS * HEAD_DIM * x.element_size()
    bench.report(
        f"step S={rows} len={length} Q={queries}",
        seconds,
        model.bytes + kv_bytes,
        2 * tokens * model.layer_weights + 2 * rows * VOCABULARY * HIDDEN,
    )
    print(f"{'':34} {tokens / seconds:11.1f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=0, help="0: all this process may use")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "int8"), default="auto")
    parser.add_argument("--only", choices=("linear", "attention", "elementwise", "step"))
    options = parser.parse_args()
    platform = platforms.resolve("cpu")
    platform.start(options.threads)
    ops.use_platform("cpu")
    int8 = options.dtype == "int8"
    named = options.dtype in ("float32", "bfloat16")
    dtype = getattr(torch, options.dtype) if named else platform.default_dtype
    ceilings = measure_ceilings(dtype)
    print(f"{platform.description}; torch {torch.__version__}; {dtype}{' + int8' if int8 else ''}")
    print(
        f"ceilings: {ceilings.bytes_per_second / 1e9:.1f} GB/s read, "
        f"{ceilings.flops / 1e9:.0f} GFLOP/s torch.linear"
    )
    print(f"{'':34} {'us':>11} {'GB/s':>8} {'GFLOP/s':>9}   share of the ceiling")
    bench = Bench(dtype, int8, ceilings)
    parts = {
        "linear": bench_linear,
        "attention": bench_attention,
        "elementwise": bench_elementwise,
        "step": bench_step,
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part(bench)


if __name__ == "__main__":
    main()
