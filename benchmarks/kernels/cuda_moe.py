"""Times mixture-of-experts kernels, 8-bit products and 8-bit caches on the device, by tile.

    python benchmarks/kernels/cuda_moe.py --out results.json [--only moe,fp8]

Shapes of Qwen3-30B-A3B's experts and of Qwen3-8B's products.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch
from cuda_kernels import (
    BF16,
    DEVICE,
    HEAD_DIM,
    KV_HEADS,
    WARM_PROCESSES,
    Case,
    paged,
    time_case,
)

from xllm.hardware.kernels.triton import fp8, linear, moe, moe_group, moe_stream, route
from xllm.hardware.kernels.triton.decode_attention import KeyTile, decode_attention
from xllm.hardware.kernels.triton.launch import max_shared_memory

HIDDEN, INNER, EXPERTS, TOP_K = 2048, 768, 128, 8
PRODUCTS = {  # of Qwen3-8B: outputs, inputs
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
}


def moe_cases() -> Iterator[Case]:
    """Routing, and both ways to run the experts."""
    layers = [
        moe.pack_experts(
            torch.randn(EXPERTS, 2 * INNER, HIDDEN, dtype=BF16, device=DEVICE) * 0.02,
            torch.randn(EXPERTS, HIDDEN, INNER, dtype=BF16, device=DEVICE) * 0.02,
        )
        for _ in range(4)
    ]
    router = torch.randn(EXPERTS, HIDDEN, dtype=BF16, device=DEVICE)
    expert_bytes = 3 * INNER * HIDDEN * 2
    for tokens in (1, 4, 64, 256, 512, 1024, 2048, 8192):
        x = torch.randn(tokens, HIDDEN, dtype=BF16, device=DEVICE)
        chosen = [route.route(torch.randn_like(x), router, TOP_K, True) for _ in layers]
        yield Case(f"route {tokens}", [lambda x=x: route.route(x, router, TOP_K, True)])
        height = chosen_tile(tokens).block_m
        group = functools.partial(moe_group.group_pairs, chosen[0][1], EXPERTS, height)
        yield Case(f"group {tokens}", [group])
        used = sum(len(experts.unique()) for _, experts in chosen) / len(chosen)
        work = {"bytes": int(used * expert_bytes), "flops": tokens * TOP_K * 3 * 2 * INNER * HIDDEN}
        for tile in stream_tiles() if tokens == 1 else ():
            calls = [
                lambda p=p, c=c, x=x, t=tile: moe_stream.stream_experts(x, p, *c, "silu", t)
                for p, c in zip(layers, chosen, strict=True)
            ]
            yield Case(f"stream {tokens} {tile}", calls, **work)
        for tile in group_tiles(tokens) if tokens >= 4 else ():
            calls = [
                lambda p=p, c=c, x=x, t=tile: moe.grouped_experts(x, p, *c, "silu", t)
                for p, c in zip(layers, chosen, strict=True)
            ]
            yield Case(f"grouped {tokens} {tile}", calls, **work)


def stream_tiles() -> Iterator[moe_stream.PairTile]:
    for up, down in (
        ((4, 1024, 4), (4, 256, 4)),
        ((4, 512, 4), (4, 256, 4)),
        ((4, 1024, 4), (4, 128, 4)),
        ((4, 1024, 4), (2, 256, 4)),
        ((4, 1024, 4), (8, 128, 4)),
        ((8, 512, 4), (4, 256, 8)),
        ((2, 1024, 2), (2, 256, 2)),
    ):
        yield moe_stream.PairTile(*up, *down)


def chosen_tile(tokens: int) -> moe.GroupTile:
    return moe.choose_tile(tokens * TOP_K / EXPERTS, BF16, max_shared_memory(DEVICE), True)


def group_tiles(tokens: int) -> Iterator[moe.GroupTile]:
    """The chosen one, half and twice its height, and that of older devices."""
    chosen = chosen_tile(tokens)
    yield chosen
    for block_m, num_stages in ((16, 5), (32, 5), (64, 4)):
        if chosen.block_m in (block_m // 2, block_m * 2):
            yield moe.GroupTile(block_m, 128, 64, 4, num_stages, 2, True)
    if chosen.block_m == 64:
        yield moe.GroupTile(128, 256, 64, 8, 4, 1, True)
    yield moe.choose_tile(tokens * TOP_K / EXPERTS, BF16, 99 << 10, False)


def fp8_cases() -> Iterator[Case]:
    """Streamed products over 8-bit weights, the library's, and the quantization before them."""
    for name, (outputs, inputs) in PRODUCTS.items():
        packed = []
        for _ in range(max(2, (120 << 20) // (outputs * inputs))):
            weight = torch.randn(outputs, inputs, device=DEVICE).to(fp8.FP8)
            packed.append(linear.pack_linear(weight, torch.ones(outputs, device=DEVICE)))
        for tokens in (1, 8, 64, 128, 256):
            x = torch.randn(tokens, inputs, dtype=BF16, device=DEVICE)
            work = {"bytes": outputs * inputs, "flops": 2 * tokens * outputs * inputs}
            quantized = fp8.quantize_tokens(x, inputs)
            operands = (x,) if tokens == 1 else (quantized.values, quantized.scale[0], BF16)
            for tile in fp8_tiles(tokens) if tokens <= 64 else ():
                calls = [
                    lambda p=p, t=tile, i=operands: linear.stream_linear(i[0], p, None, t, *i[1:])
                    for p in packed
                ]
                yield Case(f"{name} {tokens} {tile}", calls, **work)
            if tokens > 1:
                calls = [
                    lambda p=p, x=quantized: fp8.linear_fp8(x, p.weight, p.scale) for p in packed
                ]
                yield Case(f"{name} {tokens} library", calls, **work)
            if name == "down":
                yield Case(f"quantize {tokens}", [lambda x=x: fp8.quantize_tokens(x, x.shape[1])])


def fp8_tiles(tokens: int) -> Iterator[linear.StreamTile]:
    tile = linear.StreamTile
    if tokens == 1:
        for n, k, warps in ((8, 1024, 4), (8, 512, 4), (4, 512, 2), (16, 512, 4), (8, 512, 2)):
            yield tile(n, k, 1, warps, 4)
        yield tile(8, 512, 2, 4, 4)
    else:
        for shares in (1, 2, 4, 8):
            yield tile(64, 256, shares, 4, 4)
        for shares in (1, 4):
            yield tile(128, 128, shares, 4, 5)
        yield tile(64, 128, 4, 4, 6)


def cache_cases() -> Iterator[Case]:
    """Decode attention over a cache of 8-bit floats, by tile."""
    for rows, context in ((1, 1024), (64, 1024), (256, 1024), (256, 320)):
        batch = paged(rows, context, 32)
        out = torch.empty(rows, 32 * HEAD_DIM, dtype=BF16, device=DEVICE)
        keys = batch.pop("k_cache").to(fp8.FP8)
        values = batch.pop("v_cache").to(fp8.FP8)
        q = batch.pop("q")
        for n, warps, stages in (
            (128, 4, 3),
            (128, 4, 4),
            (64, 4, 4),
            (256, 8, 3),
            (128, 8, 3),
            (128, 2, 3),
            (64, 2, 4),
        ):
            tile = KeyTile(n, warps, stages)
            call = functools.partial(decode_attention, q, keys, values, **batch, out=out, tile=tile)
            size = 2 * rows * context * KV_HEADS * HEAD_DIM
            yield Case(f"8-bit cache {rows}x{context} {tile}", [call], bytes=size)


def compile_share(sections: Sequence[str], first: int) -> None:
    """Run every n-th case once, so that its kernels are in Triton's cache."""
    for section in sections:
        for number, case in enumerate(SECTIONS[section]()):
            if number % WARM_PROCESSES == first:
                with contextlib.suppress(Exception):  # reported when it is timed
                    case.calls[0]()


SECTIONS = {"moe": moe_cases, "fp8": fp8_cases, "cache": cache_cases}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--warm", type=int, help="only compile every n-th case, from this one")
    arguments = parser.parse_args()
    if arguments.warm is not None:
        compile_share(arguments.only.split(","), arguments.warm)
        return
    command = [sys.executable, __file__, "--only", arguments.only, "--warm"]
    compilers = [subprocess.Popen([*command, str(i)]) for i in range(WARM_PROCESSES)]
    for compiler in compilers:
        compiler.wait()
    rows = {}
    for section in arguments.only.split(","):
        rows[section] = []
        for case in SECTIONS[section]():
            try:
                row = time_case(case)
            except Exception as error:  # a tile that does not fit the device
                row = {"name": case.name, "error": str(error)[:200]}
            rows[section].append(row)
            print(*row.values(), flush=True)
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
