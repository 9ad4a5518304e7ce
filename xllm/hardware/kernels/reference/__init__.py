"""Every op in plain torch: the truth that tests compare with, and the fallback of all platforms.

Owns what an op means. Does not aim to be fast. One op (or one family) per file.
"""

from xllm.hardware.kernels.reference.activation import act_and_mul
from xllm.hardware.kernels.reference.attention import paged_attention
from xllm.hardware.kernels.reference.choose import choose_tokens
from xllm.hardware.kernels.reference.decode_step import expand_decode
from xllm.hardware.kernels.reference.encoder_attention import encoder_attention
from xllm.hardware.kernels.reference.linear import (
    PackedLinear,
    dequantize_weight,
    linear,
    pack_linear,
)
from xllm.hardware.kernels.reference.mask import mask_logits
from xllm.hardware.kernels.reference.moe import (
    PackedExperts,
    apply_experts,
    pack_experts,
    route,
)
from xllm.hardware.kernels.reference.norm import fused_add_rms_norm, rms_norm
from xllm.hardware.kernels.reference.rope import qk_norm_rope_kv_write
from xllm.hardware.kernels.reference.sampling import sample_tokens

__all__ = [
    "PackedExperts",
    "PackedLinear",
    "act_and_mul",
    "apply_experts",
    "choose_tokens",
    "dequantize_weight",
    "encoder_attention",
    "expand_decode",
    "fused_add_rms_norm",
    "linear",
    "mask_logits",
    "pack_experts",
    "pack_linear",
    "paged_attention",
    "qk_norm_rope_kv_write",
    "rms_norm",
    "route",
    "sample_tokens",
]
