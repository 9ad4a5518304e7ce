"""8-bit kernels compile for Hopper, which the interpreter does not show."""

from __future__ import annotations

import torch

from tests.fakes.hopper import compiled_launches


def launch_all() -> None:
    """Launch every kernel that reads or writes 8-bit floats, as the engine does."""
    from xllm.hardware.kernels.shared_prefix import LINE_ROWS, SharedPrefix
    from xllm.hardware.kernels.triton import fp8, fp8_block
    from xllm.hardware.kernels.triton.activation import act_and_mul
    from xllm.hardware.kernels.triton.decode_attention import decode_attention
    from xllm.hardware.kernels.triton.linear import gated_linear, linear, pack_linear
    from xllm.hardware.kernels.triton.norm import fused_add_rms_norm, rms_norm
    from xllm.hardware.kernels.triton.prefill_attention import prefill_attention
    from xllm.hardware.kernels.triton.rope import qk_norm_rope_kv_write

    weight = torch.empty(512, 1024, dtype=torch.float8_e4m3fn)
    for scale in (torch.empty(512), torch.empty(4, 8)):
        packed = pack_linear(weight, scale)
        for tokens in (1, 2, 64):
            x = torch.empty(tokens, 1024, dtype=torch.bfloat16)
            rms_norm(x, x[0], 1e-6, 0.0, packed)
            fused_add_rms_norm(x, x, x[0], 1e-6, 0.0, packed)
            act_and_mul(torch.empty(tokens, 2048, dtype=torch.bfloat16), "silu", packed)
            linear(x, packed)
            gated_linear(x, packed, None, "silu")
            linear(x, packed, torch.empty(512, dtype=torch.bfloat16))
    q = torch.empty(16, 8, 64, dtype=torch.bfloat16)
    cache = torch.empty(2, 8, 16, 2, 64, dtype=torch.float8_e4m3fn)
    starts, lens = torch.arange(17, dtype=torch.int32), torch.ones(16, dtype=torch.int32)
    table = torch.zeros(16, 8, dtype=torch.int32)
    out, slots = torch.empty_like(q), torch.arange(16)
    qkv, cos_sin = torch.empty(16, 12 * 64, dtype=torch.bfloat16), torch.empty(99, 64)
    for norm in (None, torch.empty(64, dtype=torch.bfloat16)):
        heads = (8, 2, 64, norm, norm)
        qk_norm_rope_kv_write(qkv, slots, cos_sin, cache[0], cache[1], slots, *heads, 1e-6)
    decode_attention(q, cache[0], cache[1], starts, lens, table, 0.1, 0.0, 0, out)
    prefix = SharedPrefix(torch.zeros_like(lens), torch.zeros(1, LINE_ROWS, dtype=torch.int32))
    for keys in (cache, cache.to(torch.bfloat16)):
        batch = (q, keys[0], keys[1], starts, lens, table, 0.1, 0.0, 0)
        decode_attention(*batch, out, prefix=prefix)
    prefill_attention(q, cache[0], cache[1], starts, lens, table, 0.1, 0.0, 0, out)
    for tokens in (100, 1000):
        quantized = fp8.quantize_tokens(torch.empty(tokens, 1024, dtype=torch.bfloat16), 128)
        fp8_block.linear_block(quantized, weight, torch.empty(4, 8), None)


def test_they_compile() -> None:
    launches, single_bytes = compiled_launches(__file__)
    assert launches > 20 and single_bytes == 0
