"""Times the Triton kernels on the device: attention, linear, and a whole decode chain.

    python benchmarks/kernels/cuda_kernels.py --out results.json [--only decode,linear]

Every figure is a median over replays of a CUDA graph that rotates through enough inputs to miss
the L2 cache. Variants are compiled by several processes first (``--warm``), sharing Triton's cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

import cuda_prefix
import torch
import triton

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.triton import launch
from xllm.hardware.kernels.triton import linear as linears
from xllm.hardware.kernels.triton.activation import act_and_mul
from xllm.hardware.kernels.triton.attention import paged_attention
from xllm.hardware.kernels.triton.decode_attention import KeyTile, SplitPlan, decode_attention
from xllm.hardware.kernels.triton.matvec import MatvecTile, matvec
from xllm.hardware.kernels.triton.norm import fused_add_rms_norm
from xllm.hardware.kernels.triton.packed import PackedLinear
from xllm.hardware.kernels.triton.prefill_attention import prefill_attention
from xllm.hardware.kernels.triton.rope import qk_norm_rope_kv_write
from xllm.hardware.kernels.triton.sampling import sample_tokens

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
WARM_PROCESSES = 12
L2_BYTES = 60 << 20
QWEN3 = {  # hidden, intermediate, query heads, layers
    "8b": (4096, 12288, 32, 36),
    "0.6b": (1024, 3072, 16, 28),
}
PLANS = {
    1: ((16, 64), (16, 128)),
    8: ((16, 256),),
    64: ((2, 512), (4, 512)),
    256: ((1, 512), (2, 512)),
}
KV_HEADS, HEAD_DIM, VOCAB = 8, 128, 151936


@dataclasses.dataclass
class Case:
    """One timed call. ``calls`` are equal work on different data."""

    name: str
    calls: list[Callable[[], object]]
    bytes: int = 0
    flops: int = 0


def time_case(case: Case) -> dict[str, float | str]:
    """Median microseconds of one call, and the rates that follow."""
    for call in case.calls[:2]:
        call()
    torch.cuda.synchronize()
    rounds = max(1, 8 // len(case.calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in case.calls:
                call()
    graph.replay()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / (rounds * len(case.calls)))
    median = statistics.median(times)
    row: dict[str, float | str] = {"name": case.name, "us": round(median, 2)}
    if case.bytes:
        row["gb_per_s"] = round(case.bytes / median / 1e3, 1)
    if case.flops:
        row["tflops"] = round(case.flops / median / 1e6, 1)
    return row


# ------------------------------------------------------------------ cases


def paged(rows: int, context: int, block_size: int, query_len: int = 1, heads: int = 32) -> dict:
    """A batch of equal rows over a shuffled cache."""
    per_row = -(-context // block_size)
    total = rows * per_row + 1
    cache = torch.randn(total, 2, KV_HEADS, block_size, HEAD_DIM, dtype=BF16, device=DEVICE)
    table = (torch.randperm(total - 1, device=DEVICE).int() + 1).view(rows, per_row)
    return {
        "q": torch.randn(rows * query_len, heads, HEAD_DIM, dtype=BF16, device=DEVICE),
        "k_cache": cache[:, 0].transpose(1, 2),
        "v_cache": cache[:, 1].transpose(1, 2),
        "query_start_loc": torch.arange(rows + 1, dtype=torch.int32, device=DEVICE) * query_len,
        "seq_lens": torch.full((rows,), context, dtype=torch.int32, device=DEVICE),
        "block_table": table,
        "scale": HEAD_DIM**-0.5,
        "softcap": 0.0,
        "window": 0,
    }


def decode_cases() -> Iterator[Case]:
    """Decode attention: batch, context, page size, and tuning choices for pages of 32."""
    shapes = [(1, 1024), (1, 8192), (8, 1024), (64, 1024), (64, 4096), (256, 320), (256, 1024)]
    for heads in (32, 16):
        for rows, context in shapes:
            for block_size in (16, 32, 64, 128):
                if heads != 32 and block_size != 32:
                    continue
                kv_bytes = rows * context * 2 * KV_HEADS * HEAD_DIM * 2
                copies = max(1, min(8, 3 * L2_BYTES // kv_bytes))
                batches = [paged(rows, context, block_size, heads=heads) for _ in range(copies)]
                for options in decode_options(rows, block_size):
                    calls = [
                        lambda b=b, o=options: decode_attention(
                            **b, out=torch.empty_like(b["q"]), **o
                        )
                        for b in batches
                    ]
                    name = f"{heads} heads {rows}x{context} page {block_size} {options}"
                    yield Case(name, calls, kv_bytes)


def decode_options(rows: int, block_size: int) -> list[dict]:
    """The shipped choice, and others where they are compared."""
    if block_size != 32:
        return [{}]
    tiles = ((32, 2, 4), (32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 2, 3), (128, 4, 2), (128, 4, 3))
    return [{}] + [
        {"plan": SplitPlan(*plan), "tile": KeyTile(*tile)} for plan in PLANS[rows] for tile in tiles
    ]


def prefill_cases() -> Iterator[Case]:
    """Causal prefill, and a chunk over a long context."""
    for rows, query_len, context in ((4, 2048, 2048), (1, 8192, 8192), (1, 1024, 8192)):
        batch = paged(rows, context, 32, query_len)
        pairs = rows * query_len * (context - query_len / 2)
        for m, n, w, t in (
            (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 4, 2), (64, 128, 4, 2), (64, 64, 4, 2),
            (64, 64, 4, 3),
        ):  # fmt: skip
            options = {"block_m": m, "block_n": n, "num_warps": w, "num_stages": t}
            call = lambda o=options, b=batch: prefill_attention(  # noqa: E731
                **b, out=torch.empty_like(b["q"]), **o
            )
            name = f"{rows}x{query_len} of {context} {options}"
            yield Case(name, [call], flops=int(4 * pairs * 32 * HEAD_DIM))
        if query_len == context:
            for name, call in cuda_prefix.flash_calls(rows, query_len, 32, KV_HEADS, HEAD_DIM):
                label = f"{rows}x{query_len} of {context} {name}"
                yield Case(label, [call], flops=int(4 * pairs * 32 * HEAD_DIM))


def prefix_cases() -> Iterator[Case]:
    """Decode rows with a shared prefix."""
    for name, call in cuda_prefix.shared_prefix_calls(paged):
        yield Case(name, [call])


def choose_cases() -> Iterator[Case]:
    """Tokens by temperature and filters."""
    for name, call in cuda_prefix.choose_calls(VOCAB, DEVICE):
        yield Case(name, [call])


def linear_shapes(model: str) -> dict[str, tuple[int, int]]:
    hidden, inner, heads, _layers = QWEN3[model]
    return {
        "qkv": ((heads + 2 * KV_HEADS) * HEAD_DIM, hidden),
        "o": (hidden, heads * HEAD_DIM),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "lm_head": (VOCAB, hidden),
    }


def stream_tiles(tokens: int) -> list[linears.StreamTile] | list[MatvecTile]:
    if tokens == 1:
        one = MatvecTile
        return [
            one(4, 1024, 4, 3), one(8, 1024, 4, 3), one(8, 1024, 4, 4), one(8, 1024, 8, 3),
            one(16, 1024, 8, 3), one(4, 2048, 8, 3), one(8, 2048, 8, 3), one(4, 2048, 4, 3),
            one(2, 2048, 4, 3), one(16, 512, 8, 3), one(2, 4096, 4), one(4, 4096, 4),
        ]  # fmt: skip
    tile = linears.StreamTile
    return [
        tile(64, 128, 1, 4, 4), tile(64, 128, 2, 4, 4), tile(64, 128, 4, 4, 4),
        tile(32, 256, 1, 4, 3), tile(32, 256, 2, 4, 3), tile(64, 256, 1, 4, 3),
        tile(64, 256, 2, 8, 3), tile(64, 128, 2, 4, 6),
    ]  # fmt: skip


def stream(
    x: torch.Tensor, packed: PackedLinear, tile: linears.StreamTile | MatvecTile
) -> torch.Tensor:
    if isinstance(tile, MatvecTile):
        return matvec(x, packed.weight, packed.scale, None, tile=tile)
    return linears.stream_linear(x, packed, None, tile)


def linear_cases() -> Iterator[Case]:
    """Each product of the two models at few tokens: the library, then streamed tiles."""
    for model in QWEN3:
        for name, (outputs, inputs) in linear_shapes(model).items():
            size = 2 * outputs * inputs
            copies = max(2, min(16, 3 * L2_BYTES // size))
            weights = [
                torch.randn(outputs, inputs, dtype=BF16, device=DEVICE) for _ in range(copies)
            ]
            packed = [linears.pack_linear(w) for w in weights]
            for tokens in (1, 8):
                x = torch.randn(tokens, inputs, dtype=BF16, device=DEVICE)
                label = f"{model} {name} {outputs}x{inputs} T={tokens}"
                library = [lambda w=w, x=x: torch.nn.functional.linear(x, w) for w in weights]
                yield Case(f"{label} library", library, size)
                for tile in stream_tiles(tokens):
                    calls = [lambda p=p, x=x, t=tile: stream(x, p, t) for p in packed]
                    yield Case(f"{label} {tile}", calls, size)


def chain_cases() -> Iterator[Case]:
    """One decode step's kernels without host work: what the step can reach."""
    for model in QWEN3:
        for tokens, context in ((1, 768), (8, 1024), (64, 1024)):
            for streamed in (False, True)[: 1 + (tokens <= linears.MAX_STREAMED_TOKENS)]:
                for pdl in (False, True):
                    yield decode_chain(model, tokens, context, streamed, pdl)


def decode_chain(model: str, tokens: int, context: int, streamed: bool, pdl: bool) -> Case:
    """All kernels of a decode step of ``model``, with one set of weights per layer."""
    hidden, _inner, heads, layers = QWEN3[model]
    shapes = linear_shapes(model)

    def weight(name: str) -> PackedLinear:
        return linears.pack_linear(torch.randn(shapes[name], dtype=BF16, device=DEVICE) * 0.02)

    names = ("qkv", "o", "gate_up", "down")
    weights = [{name: weight(name) for name in names} for _ in range(layers)]
    head = weight("lm_head")
    norm = torch.ones(hidden, dtype=BF16, device=DEVICE)
    head_norm = torch.ones(HEAD_DIM, dtype=BF16, device=DEVICE)
    batches = [paged(tokens, context, 32, heads=heads) for _ in range(layers)]
    slots = batches[0]["block_table"][:, -1].long() * 32 + 31
    positions = torch.full((tokens,), context - 1, device=DEVICE)
    cos_sin = torch.randn(context, HEAD_DIM, device=DEVICE)
    hidden_in = torch.randn(tokens, hidden, dtype=BF16, device=DEVICE)
    zeros = torch.zeros(tokens, device=DEVICE)
    keys = torch.zeros(2, tokens, dtype=torch.int32, device=DEVICE)
    token_out = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
    index = torch.zeros(tokens, dtype=torch.int64, device=DEVICE)

    def product(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        if streamed:
            return linears.linear(x, packed)
        return torch.nn.functional.linear(x, packed.weight)

    def step() -> None:
        launch.supports_pdl = lambda device: pdl
        x, residual = hidden_in, hidden_in.clone()
        for w, batch in zip(weights, batches, strict=True):
            x, residual = fused_add_rms_norm(x, residual, norm, 1e-6)
            q = qk_norm_rope_kv_write(
                product(x, w["qkv"]), positions, cos_sin, batch["k_cache"], batch["v_cache"], slots,
                heads, KV_HEADS, HEAD_DIM, head_norm, head_norm, 1e-6,
            )  # fmt: skip
            x = paged_attention(**{**batch, "q": q}, max_query_len=1)
            x, residual = fused_add_rms_norm(product(x, w["o"]), residual, norm, 1e-6)
            x = product(act_and_mul(product(x, w["gate_up"]), "silu"), w["down"])
        x, residual = fused_add_rms_norm(x, residual, norm, 1e-6)
        sample_tokens(product(x, head), zeros, keys, token_out, zeros, token_out, index)

    sizes = [2 * outputs * inputs for outputs, inputs in shapes.values()]
    total = sum(sizes[:-1]) * layers + sizes[-1]
    total += layers * tokens * context * 2 * KV_HEADS * HEAD_DIM * 2
    kind = "streamed" if streamed else "library"
    return Case(f"{model} T={tokens} context {context} {kind} pdl={pdl}", [step], total)


def sampling_cases() -> Iterator[Case]:
    """Sampling over Qwen's vocabulary, greedy and drawn."""
    for rows in (1, 64, 256):
        logits = torch.randn(rows, VOCAB, dtype=BF16, device=DEVICE)
        tokens = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
        best, keys = torch.zeros(rows, device=DEVICE), torch.zeros(2, rows, device=DEVICE).int()
        index = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
        for temperature in (0.0, 1.0):
            inverse = torch.full((rows,), temperature, device=DEVICE)
            call = lambda a=(logits, inverse, keys, tokens, best, tokens, index): sample_tokens(*a)  # noqa: E731
            yield Case(f"{rows} rows temperature {temperature}", [call], rows * VOCAB * 2)
        yield Case(f"{rows} rows torch argmax", [lambda x=logits: x.argmax(1)], rows * VOCAB * 2)


SECTIONS = {
    "decode": decode_cases,
    "prefill": prefill_cases,
    "prefix": prefix_cases,
    "choose": choose_cases,
    "linear": linear_cases,
    "sampling": sampling_cases,
    "chain": chain_cases,
}


# ------------------------------------------------------------------ errors


def relative_errors() -> dict[str, float]:
    """||kernel - reference|| / ||reference|| in bfloat16 at the models' shapes."""
    errors = {}

    def note(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        difference = (actual.double() - expected.double()).norm() / expected.double().norm()
        errors[name] = float(difference)

    for heads in (32, 16, 8):
        for context, query_len in ((777, 1), (4096, 1), (777, 300), (129, 2)):
            batch = paged(3, context, 32, query_len, heads)
            batch["seq_lens"][1] -= 60
            actual = paged_attention(**batch, max_query_len=query_len)
            wide = {
                k: v.float() if k in ("q", "k_cache", "v_cache") else v for k, v in batch.items()
            }
            expected = reference.paged_attention(**wide, max_query_len=query_len)
            note(f"attention {heads} heads {context}/{query_len}", actual, expected)
    for tokens in (1, 3, 16):
        x = torch.randn(tokens, 4096, dtype=BF16, device=DEVICE)
        w = torch.randn(6144, 4096, dtype=BF16, device=DEVICE)
        for tile in stream_tiles(tokens):
            actual = stream(x, linears.pack_linear(w), tile)
            note(f"linear T={tokens} {tile}", actual, x.double() @ w.double().T)
    return errors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--warm", type=int, help="compile this share of the variants and leave")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    if arguments.warm is not None:
        warm(only, arguments.warm)
        return
    helpers = [
        subprocess.Popen([sys.executable, __file__, "--only", arguments.only, "--warm", str(i)])
        for i in range(WARM_PROCESSES)
    ]
    for helper in helpers:
        helper.wait()
    errors = relative_errors()
    print("worst relative error", max(errors.items(), key=lambda item: item[1]))
    report = {
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "relative_errors": errors,
    }
    for section in only:
        rows = []
        for case in SECTIONS[section]():
            try:
                row = time_case(case)
            except Exception as error:
                row = {"name": case.name, "error": repr(error)[:200]}
            rows.append(row)
            print(section, json.dumps(row), flush=True)
            del case
        report[section] = rows
        torch.cuda.empty_cache()
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump(report, file, indent=1)


def warm(only: list[str], share: int) -> None:
    """Compile every ``WARM_PROCESSES``-th variant by calling it once."""
    number = 0
    for section in only:
        if section == "chain":
            continue
        for case in SECTIONS[section]():
            if number % WARM_PROCESSES == share:
                try:
                    case.calls[0]()
                except Exception as error:
                    print("warm", case.name, repr(error)[:100])
            number += 1
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
