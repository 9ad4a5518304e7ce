"""What every Triton launch shares: interpreter mode, device facts, arrival counters.

Programmatic dependent launch: on Hopper and later a kernel may start while its predecessor drains.
Kernels that take part call ``wait_for_producers`` before they read or write any tensor that another
kernel touches (constant weights excepted) and ``allow_consumers`` once their own inputs are being
loaded. The pair is safe in any order because a kernel never completes before its producers have;
but where the next kernel reads, before its own wait, what an earlier one wrote, the wait is first:
that one's writes have reached memory by then, as its grid has ended.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret

# Kernels that merge partial results count arrivals here; the last program of a merge resets its
# counter, so the buffer is zero between kernels. Kernels of one stream may share it.
MAX_COUNTERS = 1 << 16


@functools.cache
def supports_pdl(device: torch.device) -> bool:
    """Whether the device runs programmatic dependent launches."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def supports_descriptors(device: torch.device) -> bool:
    """Whether kernels may take tensor descriptors, whose loads a unit of its own carries out."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; a small constant under the interpreter."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def max_shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may take; an H200's under the interpreter."""
    if device.type != "cuda":
        return 227 << 10
    # From compute capability 8.0 on, a kilobyte of each multiprocessor's is the system's.
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_multiprocessor) - 1024


@functools.cache
def arrival_counters(device: torch.device) -> torch.Tensor:
    """(MAX_COUNTERS,) int32 zeros, one buffer per device for the life of the process.

    The first call must happen outside graph capture; the eager warm-up step before a capture does.
    """
    return torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)


def pdl_options(device: torch.device) -> dict[str, bool]:
    """Launch keywords: the ``PDL`` constant of the kernel and Triton's launch attribute."""
    if supports_pdl(device):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def upcast_dots(dtype: torch.dtype) -> bool:
    """Whether ``tl.dot`` operands must be widened: the interpreter's narrow dots are wrong."""
    return INTERPRETED and dtype in (torch.bfloat16, torch.float8_e4m3fn)


def upcast_attention(q: torch.Tensor, cache: torch.Tensor) -> bool:
    """Whether attention's operands must be widened to float32: as ``upcast_dots``, or because the
    cache is narrower than float32 queries."""
    if upcast_dots(q.dtype) or upcast_dots(cache.dtype):
        return True
    return q.dtype == torch.float32 and q.dtype != cache.dtype


@triton.jit
def attention_operand(x, cache_ptr, UPCAST: tl.constexpr):
    """A tile of queries, keys or values as attention multiplies it.

    Over a cache of 8-bit floats that is float16, which holds them exactly, one conversion away.
    """
    if UPCAST:
        x = x.to(tl.float32)
    elif cache_ptr.dtype.element_ty == tl.float8e4nv:
        x = x.to(tl.float16)
    return x


@triton.jit
def allow_consumers_of_few(tokens, PDL: tl.constexpr):
    """``allow_consumers`` ahead of the wait, for up to 16 tokens.

    A product several kernels later then requests its weights while these still wait. With more
    tokens the programs that wait take the place of those that work.
    """
    if PDL:  # noqa: SIM102 - a constant, then a value
        if tokens <= 16:
            tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def value_operand(x, cache_ptr, UPCAST: tl.constexpr):
    """``attention_operand`` of values, whose tile a product reads across its rows.

    Shared memory turns 16-bit values around, not bytes: those would be gathered one by one. So they
    are widened before, by a conversion that the compiler cannot move behind the turn.
    """
    if UPCAST:
        x = x.to(tl.float32)
    elif cache_ptr.dtype.element_ty == tl.float8e4nv:
        x = tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; "
            "cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }",
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return x


@triton.jit
def wait_for_producers(PDL: tl.constexpr):
    """Block until all earlier kernels of the stream have finished and their writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def allow_consumers(PDL: tl.constexpr):
    """Let the next kernel of the stream start its prologue."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
