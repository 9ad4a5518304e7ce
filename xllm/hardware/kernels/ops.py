"""Every op that models call: its meaning, shapes, dtypes and errors.

The bodies here run the plain-torch ``reference``, or other ops in a row. ``use_platform`` replaces
the functions of this module by a platform's own, so that afterwards ``ops.rms_norm(...)`` is one
plain Python call; call ops through the module (``ops.rms_norm``), never through an imported name.
An op that is others in a row keeps its body where a platform has nothing better.

Shapes: T tokens of the batch, S rows, H hidden size, I intermediate size, Hq/Hk query/KV heads,
D head dimension, K/N input/output features, B blocks per row, E experts. Activations, norm weights
and caches of a call share one dtype: float32, bfloat16 or float16. Sums run in float32. Inputs are
contiguous except where said. T = 0 is allowed. A shape or dtype that breaks a rule is an
AssertionError of the caller; only user-visible choices raise ValueError.

``into`` is the packed weight of the one product that reads an op's result, where nothing else reads
it; or the packed experts, where they and their router do. A platform may then return what that
product would make of it first (``QuantizedTokens``): the product comes out the same, but for the
order of a norm's sum of squares. Or it leaves a norm's last step to its readers
(``UnscaledToken``), which round at another place.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xllm.hardware.kernels import binding, reference
from xllm.hardware.kernels.tokens import QuantizedTokens, Tokens

# The last is not act(gate) * up: with gate <= 7 and -7 <= up <= 7, both clamped first, it is
# gate * sigmoid(1.702 * gate) * (up + 1).
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "clamped_swiglu")


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, into: Any = None
) -> Tokens:
    """``x / sqrt(mean(x^2) + eps) * (offset + weight)`` in float32, rounded once.

    Args:
        x: (..., H).
        weight: (H,).
        offset: 1 for Gemma-style weights stored around zero.
        into: see above.

    Returns:
        Same shape as ``x``. A row's result does not depend on the other rows.
    """
    return reference.rms_norm(x, weight, eps, offset, into)


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tokens, Tensor]:
    """``residual += x`` in place (rounded to its dtype), then ``rms_norm(residual)``.

    Args:
        x, residual: (T, H).
        into: see above.

    Returns:
        The normalized sum (T, H) and ``residual`` itself.
    """
    return reference.fused_add_rms_norm(x, residual, weight, eps, offset, into)


def act_and_mul(gate_up: Tensor, activation: str, into: Any = None) -> Tensor | QuantizedTokens:
    """``activation(gate) * up`` of ``gate_up`` (T, 2I), gate first -> (T, I). In float32.

    ``clamped_swiglu`` takes both otherwise: see ``ACTIVATIONS``.

    ``into``: see above.

    Raises:
        ValueError: ``activation`` is not one of ``ACTIVATIONS``.
    """
    return reference.act_and_mul(gate_up, activation, into)


def qk_norm_rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    offset: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Norm and rotate queries and keys; write keys and values into the paged cache.

    Args:
        qkv: (T, (Hq + 2 Hk) * D): all query heads, then key heads, then value heads.
        positions: (T,) int64, each below ``len(cos_sin)``.
        cos_sin: (max_pos, rot) float32: rot/2 cosines, then rot/2 sines. Pairs are
            ``(i, i + rot/2)`` of the first ``rot`` dimensions; the others pass through.
        k_cache, v_cache: logical shape (num_blocks, block_size, Hk, D), any strides but the last,
            which is 1; in the dtype of ``qkv``, or float8_e4m3fn, which saturates.
        slot_mapping: (T,) int64, ``block * block_size + place``; negative: do not write.
        q_weight, k_weight: (D,) weights of a per-head RMS norm before the rotation, or None.
        eps, offset: of those norms.
        k_scale, v_scale: what is written is divided by them, which brings values into the range of
            an 8-bit cache. Queries are multiplied by ``k_scale``, so that scores come out the same;
            attention over such values must be multiplied by ``v_scale``.

    Returns:
        q (T, Hq, D), times ``k_scale``.
    """
    return reference.qk_norm_rope_kv_write(
        qkv,
        positions,
        cos_sin,
        k_cache,
        v_cache,
        slot_mapping,
        num_q_heads,
        num_kv_heads,
        head_dim,
        q_weight,
        k_weight,
        eps,
        offset,
        k_scale,
        v_scale,
    )


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    max_query_len: int = 1,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal grouped-query attention of each row's newest tokens over its cached ones.

    Row ``i`` has queries ``query_start_loc[i]:query_start_loc[i + 1]``, the last of its
    ``seq_lens[i]`` positions, whose keys and values are in the cache already. Rows may mix single
    tokens and chunks, and may be empty.

    Args:
        q: (T, Hq, D).
        k_cache, v_cache: as in ``qk_norm_rope_kv_write``.
        query_start_loc: (S + 1,) int32.
        seq_lens: (S,) int32.
        block_table: (S, B) int32, rows contiguous; entries wholly left of every window of the row
            may be stale and are not read.
        scale: factor of the query-key products.
        softcap: ``c`` of ``c * tanh(score / c)``; 0 is none.
        window: position p sees keys j with ``p - window < j <= p``; 0 is all ``j <= p``.
        max_query_len: longest row of the batch in queries.
        sinks: (Hq,) float32, one more logit in each head's softmax, as it is, without a value; or
            None.

    Returns:
        (T, Hq * D). Tokens outside every row are undefined. A row's result does not depend on the
        other rows.
    """
    return reference.paged_attention(
        q,
        k_cache,
        v_cache,
        query_start_loc,
        seq_lens,
        block_table,
        scale,
        softcap,
        window,
        max_query_len,
        sinks,
    )


def encoder_attention(
    qkv: Tensor, query_start_loc: Tensor, num_heads: int, scale: float, max_query_len: int
) -> Tensor:
    """Attention of each row's tokens to all tokens of the row, those after them too. No cache.

    Args:
        qkv: (T, 3 * Hq * D): all query heads, then key heads, then value heads.
        query_start_loc: (S + 1,) int32; row ``i`` is ``query_start_loc[i]:query_start_loc[i + 1]``.
        num_heads: Hq.
        scale: factor of the query-key products.
        max_query_len: longest row.

    Returns:
        (T, Hq * D). Tokens outside every row are undefined. A row's result does not depend on the
        other rows.
    """
    return reference.encoder_attention(qkv, query_start_loc, num_heads, scale, max_query_len)


def pack_linear(weight: Tensor, scale: Tensor | None = None) -> Any:
    """Lay a weight out as the platform multiplies it fastest.

    Args:
        weight: (N, K) in a float dtype, or in 8 bits (int8 or float8_e4m3fn) with
            ``weight ~= values * scale``. May be kept, so the caller must not write to it
            afterwards.
        scale: float32, with 8 bits only: (N,), one per output; for float8 also
            (ceil(N / 128), ceil(K / 128)), one per block of 128 outputs and 128 inputs.

    Returns:
        A value for ``linear`` alone; it has ``out_features``.

    Raises:
        ValueError: 8 bits without scale, or scale without 8 bits.
    """
    return reference.pack_linear(weight, scale)


def linear(x: Tokens, packed: Any, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: x (T, K), bias (N,) -> (T, N) in the dtype of ``x``.

    With a float8 weight, a platform may round each row of ``x`` to float8 as well, at a scale per
    row or, with scales per block, per row and 128 columns.
    """
    assert isinstance(x, Tensor)
    return reference.linear(x, packed, bias)


def gated_linear(
    x: Tokens,
    packed: Any,
    bias: Tensor | None,
    activation: str,
    into: Any = None,
) -> Tensor | QuantizedTokens:
    """``act_and_mul(linear(x, packed, bias), activation, into)``, to the bit.

    x (T, K) -> (T, N / 2).

    Raises:
        ValueError: ``activation`` is not one of ``ACTIVATIONS``.
    """
    return act_and_mul(linear(x, packed, bias), activation, into)


def linear_add_rms_norm(
    x: Tokens,
    packed: Any,
    bias: Tensor | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tokens, Tensor]:
    """``fused_add_rms_norm(linear(x, packed, bias), residual, weight, eps, offset, into)``.

    ``residual`` comes out the same to the bit.
    """
    return fused_add_rms_norm(linear(x, packed, bias), residual, weight, eps, offset, into)


def route(
    x: Tokens, weight: Tensor, top_k: int, normalize: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Choose experts: softmax over ``x @ weight.T + bias`` in float32, the ``top_k`` largest.

    Args:
        x: (T, H).
        weight: (E, H) of the router, in the dtype of ``x``.
        top_k: experts per token, at most E.
        normalize: divide the chosen probabilities by their sum, which makes them the softmax over
            the chosen logits alone.
        bias: (E,) in the dtype of ``x``, or None.

    Returns:
        weights (T, top_k) float32, largest first, and experts (T, top_k) int32.
    """
    assert isinstance(x, Tensor)
    return reference.route(x, weight, top_k, normalize, bias)


def pack_experts(
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Any:
    """Lay the stacked weights of E gated MLPs out as the platform multiplies them fastest.

    Args:
        gate_up: (E, 2I, H), gate rows first. May be kept, like the others: the caller must not
            write to it afterwards.
        down: (E, H, I).
        gate_up_bias, down_bias: (E, 2I) and (E, H), both or neither.

    Returns:
        A value for ``apply_experts`` and, of what the experts and their router read, ``into``.
    """
    return reference.pack_experts(gate_up, down, gate_up_bias, down_bias)


def apply_experts(
    x: Tokens, packed: Any, weights: Tensor, experts: Tensor, activation: str
) -> Tensor:
    """The weighted sum of each token's experts, ``down(activation(gate(x)) * up(x))``.

    Biases are added to each product, an expert's last one before its weight.

    Args:
        x: (T, H).
        weights: (T, top_k) float32.
        experts: (T, top_k) int32 below E, distinct within a token.
        activation: one of ``ACTIVATIONS``.

    Returns:
        (T, H). A row's result does not depend on the other rows, up to the order of sums.
    """
    assert isinstance(x, Tensor)
    return reference.apply_experts(x, packed, weights, experts, activation)


def experts_add_rms_norm(
    x: Tokens,
    packed: Any,
    weights: Tensor,
    experts: Tensor,
    activation: str,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    into: Any = None,
) -> tuple[Tokens, Tensor]:
    """``fused_add_rms_norm`` of ``apply_experts(x, packed, weights, experts, activation)`` and
    ``residual``, which comes out the same to the bit."""
    out = apply_experts(x, packed, weights, experts, activation)
    return fused_add_rms_norm(out, residual, weight, eps, offset, into)


def expand_decode(
    rows: Tensor,
    seq_lens: Tensor,
    token_table: Tensor,
    block_table: Tensor,
    block_size: int,
    new_blocks: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    write_index: Tensor,
    slot_mapping: Tensor,
    batch_blocks: Tensor,
) -> None:
    """Append blocks, and fill what a decode step reads from the persistent rows; all in place.

    Args:
        rows: (S,) int32 rows that decode their last known token.
        seq_lens: (S,) int32 tokens of each row, that one included; 0 marks padding.
        token_table: (R, W) int32.
        block_table: (R, B) int32 of one cache group, whose blocks hold ``block_size`` tokens;
            written where there are new blocks.
        new_blocks: (S,) int32 the block of each row's last token where it is appended now, else -1.
        input_ids: (S,) int32, written; 0 for padding.
        positions: (S,) int64, written; 0 for padding.
        write_index: (S,) int64, written: where the sampled token goes in the flat token table;
            -1 for padding.
        slot_mapping: (S,) int64, written; -1 for padding.
        batch_blocks: (S, B) int32, written up to each row's last block.
    """
    return reference.expand_decode(
        rows,
        seq_lens,
        token_table,
        block_table,
        block_size,
        new_blocks,
        input_ids,
        positions,
        write_index,
        slot_mapping,
        batch_blocks,
    )


def sample_tokens(
    logits: Tensor,
    inverse_temperature: Tensor,
    keys: Tensor,
    tokens: Tensor,
    best_logits: Tensor,
    token_table: Tensor,
    write_index: Tensor,
) -> None:
    """Sample one token per row, greedily or by Gumbel-max, and write it where the row reads it.

    The draw is ``argmax(logit / T - log E)`` with the unit exponential draws E that
    ``execution.sampling.rng`` defines: a pure function of the row's keys and the token id.

    Args:
        logits: (M, V) of any float dtype.
        inverse_temperature: (M,) float32; 0 samples greedily.
        keys: (2, M) int32, not read for greedy rows.
        tokens: (M,) int32, written.
        best_logits: (M,) float32, written: the largest logit, NaN where the row has a NaN.
        token_table: int32, contiguous; ``write_index`` (M,) int64 points into it flat, negative
            entries are skipped.
    """
    return reference.sample_tokens(
        logits, inverse_temperature, keys, tokens, best_logits, token_table, write_index
    )


def choose_tokens(
    logits: Tensor,
    inverse_temperature: Tensor | None = None,
    log_min_p: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose one token per row: the first largest logit, or a draw from what the filters leave.

    The draw is that of ``sample_tokens``. Order of the filters: temperature, min-p, top-k, then
    top-p over the mass that top-k left. Logits equal to the smallest one kept are kept too, so the
    choice depends on no order of sorting; where one token is left, it is the first largest.

    Args:
        logits: (M, V) of any float dtype, rows contiguous; computed with in float32.
        inverse_temperature: (M,) float32, 0 is greedy; None: every row is.
        log_min_p: (M,) float32, -inf is off; None: off.
        top_k: (M,) int64, 1..V, V is off; None: off.
        top_p: (M,) float32, 0 < p <= 1, 1 is off; None: off.
        keys: (2, M) int32; needed where a row draws.

    Returns:
        tokens (M,) int64 and their row's largest logit (M,) float32, which is NaN where the row
        has a NaN; the token is then meaningless, but below V.
    """
    return reference.choose_tokens(logits, inverse_temperature, log_min_p, top_k, top_p, keys)


def mask_logits(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Set the logits of banned tokens to -inf, in place.

    Args:
        logits: (M, V) of any float dtype, rows contiguous.
        rows: (C,) int64, which rows have a mask; none twice.
        masks: (C, ceil(V / 32)) int32, contiguous: bit ``i % 32`` of word ``i // 32`` allows token
            ``i``.
    """
    reference.mask_logits(logits, rows, masks)


def use_platform(name: str, *, traceable: bool = False) -> None:
    """Bind every op to the implementation in ``kernels/<name>/``, or to the reference.

    Binding is lazy: the first call of any op waits for the platform's kernels to be ready, so a
    compilation that runs in the background delays nothing that comes before that call.

    Args:
        name: a folder of ``kernels``: ``reference``, ``cpu``, ``triton``.
        traceable: go through torch custom ops (``torch.ops.xllm``), which tracers see as opaque
            calls with known shapes. Costs a dispatch per call; the eager path does without.

    Raises:
        ValueError: no such platform; the message lists those that exist.
    """
    binding.bind(globals(), _DECLARED, name, traceable)


# As they stand above, before any platform.
_DECLARED = {op: globals()[op] for op in binding.OP_FILES}
