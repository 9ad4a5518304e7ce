"""Routing and experts in Triton against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
import torch
from torch import Tensor

from xllm.hardware.kernels import reference
from xllm.hardware.kernels.tokens import UnscaledToken
from xllm.hardware.kernels.triton import linear, moe, moe_group, moe_stream, norm, route

# Sizes of 48 and 40 leave a part of a tile on every side; the last one multiplies tokens first.
TILES = [
    moe.GroupTile(block_m, 32, block_k, 4, 2, 1, descriptors)
    for block_m, block_k in ((16, 32), (32, 16), (128, 32))
    for descriptors in (True, False)
]


@pytest.fixture
def dirty_memory() -> Iterator[None]:
    """Tensors that nobody has written hold NaN, those of integers the largest."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def _block(
    tokens: int, device: torch.device, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (T, 48), router (6, 48), gate_up (6, 2 * 40, 48), down (6, 48, 40)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (tokens, 48), (6, 48), (6, 80, 48), (6, 48, 40)
    x, *weights = (torch.randn(shape, generator=generator) for shape in shapes)
    scaled = (weight / weight.shape[-1] ** 0.5 for weight in weights)
    x, router, gate_up, down = (t.to(device=device, dtype=dtype) for t in (x, *scaled))
    return x, router, gate_up, down


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(("top_k", "normalize"), [(1, True), (3, True), (3, False), (6, False)])
def test_routing_equals_the_reference(tokens, top_k, normalize, device) -> None:
    x, router, *_ = _block(tokens, device)
    weights, experts = route.route(x, router, top_k, normalize)
    expected, chosen = reference.route(x, router, top_k, normalize)
    assert experts.tolist() == chosen.tolist()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 9])
def test_the_routers_bias_counts(tokens, device) -> None:
    x, router, *_ = _block(tokens, device)
    bias = torch.tensor([0.0, 3.0, -1.0, 0.5, 2.0, -2.0], device=device)
    weights, experts = route.route(x, router, 3, True, bias)
    expected, chosen = reference.route(x, router, 3, True, bias)
    assert experts.tolist() == chosen.tolist()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_logits_of_either_sign_are_ordered_and_equal_ones_by_expert(dtype, tokens, device) -> None:
    """A router of one column per expert makes the logits themselves; 7 experts, -inf among them."""
    logits = [-0.5, 3.0, -inf, 2.0, 3.0, -65000.0, -0.25]
    x = torch.ones(tokens, 2, dtype=dtype, device=device)
    router = torch.zeros(7, 2, dtype=dtype, device=device)
    bias = torch.tensor(logits, device=device).to(dtype)
    weights, experts = route.route(x, router, 7, False, bias)
    assert experts.tolist() == [[1, 4, 3, 6, 0, 5, 2]] * tokens
    expected = bias.float().softmax(0)[experts[0].long()].expand(tokens, -1)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("hidden", [24, 2050])
def test_a_router_of_any_width_scores_one_token(hidden, device) -> None:
    """Narrower than a tile, and wider by a part of one."""
    generator = torch.Generator().manual_seed(0)
    x, router = (torch.randn(n, hidden, generator=generator).to(device) for n in (1, 6))
    weights, experts = route.route(x, router, 4, True)
    expected, chosen = reference.route(x, router, 4, True)
    assert experts.tolist() == chosen.tolist()
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_row_of_nan_gets_distinct_experts_and_weights_of_nan(tokens, normalize, device) -> None:
    x, router, *_ = _block(tokens, device)
    x[-1] = float("nan")
    weights, experts = route.route(x, router, 4, normalize)
    assert weights[-1].isnan().all() and weights[:-1].isfinite().all()
    assert len(set(experts[-1].tolist())) == 4 and 0 <= int(experts.min()) <= int(experts.max()) < 6


@pytest.mark.usefixtures("dirty_memory")
def test_pairs_are_grouped_in_order(device) -> None:
    experts = torch.tensor([[2, 0], [0, 5], [2, 5], [5, 2]], dtype=torch.int32, device=device)
    blocks = moe_group.group_pairs(experts, 6, 2)
    assert blocks.number.tolist() == [5]
    assert blocks.table[:5].tolist() == [[0, 2], [2, 2], [2, 1], [5, 2], [5, 1]]
    pairs = blocks.pairs.view(-1, 2).tolist()
    assert pairs[:2] == [[1, 2], [0, 4]] and pairs[2][0] == 7
    assert pairs[3] == [3, 5] and pairs[4][0] == 6
    assert blocks.counters[:5].tolist() + blocks.counters[-2:].tolist() == [0] * 7


@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize(("tokens", "block_m"), [(16, 16), (8300, 16), (8300, 64)])
def test_many_pairs_are_grouped(tokens, block_m, device) -> None:
    """More pairs than a program looks at together, more blocks than it notes together."""
    generator = torch.Generator().manual_seed(0)
    experts = torch.rand(tokens, 5, generator=generator).argsort(dim=1)[:, :2].int().to(device)
    blocks = moe_group.group_pairs(experts, 5, block_m)
    number = int(blocks.number)
    assert not blocks.counters[:number].any() and not blocks.counters[-2:].any()
    assert number <= blocks.bound == len(blocks.pairs) // block_m
    flat, got = experts.flatten(), blocks.pairs.view(-1, block_m)
    table = blocks.table[:number].tolist()
    for expert in range(5):
        expected = (flat == expert).nonzero().flatten()
        mine = [i for i, row in enumerate(table) if row[0] == expert]
        assert [table[i][1] for i in mine[:-1]] == [block_m] * (len(mine) - 1)
        found = torch.cat([got[i, : table[i][1]] for i in mine])
        assert torch.equal(found.long(), expected)
    assert [row[0] for row in table] == sorted(row[0] for row in table)


def test_sizes_that_cannot_be_interleaved_are_refused(device) -> None:
    with pytest.raises(ValueError, match=r"intermediate size of an expert \(12\)"):
        moe.pack_experts(torch.zeros(2, 24, 16, device=device), torch.zeros(2, 16, 12))


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.usefixtures("dirty_memory")
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 2), (7, 3), (40, 2), (100, 6)])
def test_grouped_experts_equal_the_reference(tile, tokens, top_k, device) -> None:
    x, router, gate_up, down = _block(tokens, device)
    weights, experts = reference.route(x, router, top_k, True)
    arguments = (weights, experts, "silu")
    expected = reference.apply_experts(x, reference.pack_experts(gate_up, down), *arguments)
    packed = moe.pack_experts(gate_up, down)
    actual = moe.grouped_experts(x, packed, *arguments, tile)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared_memory", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_tiles_fit_the_shared_memory(dtype, shared_memory) -> None:
    for per_expert in (0.1, 1, 9, 17, 33, 500):
        tile = moe.choose_tile(per_expert, dtype, shared_memory, True)
        stage = (tile.block_m + tile.block_n) * tile.block_k * dtype.itemsize
        assert tile.programs * tile.num_stages * stage <= shared_memory
        assert tile.num_stages >= 2


def test_most_experts_have_one_block() -> None:
    for per_expert, block_m in ((0.5, 16), (8, 16), (8.1, 32), (16, 32), (32, 64), (33, 128)):
        tile = moe.choose_tile(per_expert, torch.bfloat16, 227 << 10, True)
        assert tile.block_m == block_m and tile.programs == (1 if block_m == 128 else 2)


@pytest.mark.parametrize(("tokens", "top_k", "activation"), [(1, 3, "silu"), (2, 4, "gelu_tanh")])
def test_streamed_experts_equal_the_reference(tokens, top_k, activation, device) -> None:
    x, router, gate_up, down = _block(tokens, device)
    weights, experts = reference.route(x, router, top_k, False)
    arguments = (weights, experts, activation)
    expected = reference.apply_experts(x, reference.pack_experts(gate_up, down), *arguments)
    tile = moe_stream.PairTile(up_n=4, up_k=32, down_n=4, down_k=16)
    packed = moe.pack_experts(gate_up, down)
    actual = moe_stream.stream_experts(x, packed, *arguments, tile)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [2, 20])
def test_bfloat16_is_as_near_as_its_rounding(tokens, device) -> None:
    x, router, gate_up, down = _block(tokens, device, torch.bfloat16)
    weights, experts = reference.route(x, router, 2, True)
    packed = moe.pack_experts(gate_up, down)
    actual = moe.apply_experts(x, packed, weights, experts, "silu")
    wide = reference.pack_experts(gate_up.float(), down.float())
    expected = reference.apply_experts(x.float(), wide, weights, experts, "silu")
    assert (actual.float() - expected).norm() < 0.01 * expected.norm()


def test_all_tokens_may_choose_one_expert(device) -> None:
    x, _, gate_up, down = _block(40, device)
    experts = torch.full((40, 1), 4, dtype=torch.int32, device=device)
    arguments = (torch.ones(40, 1, device=device), experts, "silu")
    packed = moe.pack_experts(gate_up, down)
    expected = reference.apply_experts(x, reference.pack_experts(gate_up, down), *arguments)
    actual = moe.apply_experts(x, packed, *arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 3, 20])
def test_biases_and_the_clamped_activation_equal_the_reference(tokens, device) -> None:
    """Streamed and grouped. Products reach far beyond the clamp, on both sides."""
    x, router, gate_up, down = _block(tokens, device)
    generator = torch.Generator().manual_seed(1)
    biases = [torch.randn(6, n, generator=generator).to(device) * 3 for n in (80, 48)]
    weights, experts = reference.route(x, router, 3, True)
    stacked = (gate_up * 5, down, *biases)
    arguments = (weights, experts, "clamped_swiglu")
    expected = reference.apply_experts(x, reference.pack_experts(*stacked), *arguments)
    without = reference.apply_experts(x, reference.pack_experts(*stacked[:2]), *arguments)
    assert (expected - without).abs().max() > 1.0
    actual = moe.apply_experts(x, moe.pack_experts(*stacked), *arguments)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def _token(
    device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, UnscaledToken, tuple[Tensor, ...]]:
    """A normalized token (1, 48), the same without its norm's last step, and biased experts."""
    x, router, gate_up, down = _block(1, device, dtype)
    generator = torch.Generator().manual_seed(1)
    biases = (torch.randn(6, n, generator=generator).to(device, dtype) for n in (80, 48))
    # Of a residual that is not normalized, and more parts than the tests' tiles have inputs.
    squares = torch.rand(150, generator=generator).to(device)
    token = UnscaledToken(x, squares, 0.1)
    scaled = (x.float() / (squares.sum() / 48 + 0.1).sqrt()).to(dtype)
    return scaled, token, (router, gate_up, down, *biases)


def test_a_router_finishes_the_norm_of_one_token(device) -> None:
    x, token, (router, *_) = _token(device)
    bias = torch.tensor([0.0, 3.0, -1.0, 0.5, 2.0, -2.0], device=device)
    weights, experts = route.route(token, router, 3, True, bias)
    expected, chosen = reference.route(x, router, 3, True, bias)
    assert experts.tolist() == chosen.tolist()
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [None, moe_stream.PairTile(4, 32, 4, 4, 16, 4)], ids=str)
def test_experts_finish_the_norm_of_one_token(tile, device) -> None:
    x, token, (router, *stacked) = _token(device)
    arguments = (*reference.route(x, router, 3, True), "clamped_swiglu")
    expected = reference.apply_experts(x, reference.pack_experts(*stacked), *arguments)
    packed = moe.pack_experts(*stacked)
    actual = moe_stream.stream_experts(token, packed, *arguments, tile)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts_begin_the_norm_of_one_token(dtype, device) -> None:
    x, _, (router, *stacked) = _token(device, dtype)
    residual, weight = (torch.randn(n, 48, device=device).to(dtype) for n in (1, 1))
    packed, reader = moe.pack_experts(*stacked), linear.pack_linear(router)
    arguments = (x, packed, *route.route(x, router, 3, True), "clamped_swiglu")
    total = residual + moe.apply_experts(*arguments)
    token, same = moe.experts_add_rms_norm(
        *arguments, residual, weight[0], 0.1, offset=1.0, into=reader
    )
    assert same is residual and isinstance(token, UnscaledToken)
    exact = dtype == torch.float32 or device.type == "cuda"  # the interpreter rounds otherwise
    torch.testing.assert_close(residual, total, rtol=0, atol=0 if exact else 2e-2)
    torch.testing.assert_close(token.squares.sum(), residual.float().square().sum())
    wide = residual.float() * (weight.float() + 1.0)
    torch.testing.assert_close(token.values.float(), wide, rtol=1e-2, atol=1e-2)
    want = norm.rms_norm(residual, weight[0], 0.1, 1.0)
    torch.testing.assert_close(
        linear.linear(token, reader), linear.linear(want, reader), rtol=2e-2, atol=5e-2
    )


@pytest.mark.parametrize(
    ("tokens", "dtype", "read"),
    [(1, torch.float32, False), (1, torch.float16, True), (2, torch.float32, True)],
)
def test_a_norm_after_experts_is_a_kernel_of_its_own(tokens, dtype, read, device) -> None:
    """Where other things read it, its values may be too large, or there are more tokens."""
    x, router, gate_up, down = _block(tokens, device, dtype)
    residual, weight = torch.randn_like(x), torch.ones(48, device=device, dtype=dtype)
    packed = moe.pack_experts(gate_up, down)
    arguments = (x, packed, *route.route(x, router, 2, True), "silu")
    out = moe.apply_experts(*arguments)
    want, total = norm.fused_add_rms_norm(out, residual.clone(), weight, 1e-6)
    into = linear.pack_linear(router) if read else None
    actual, residual = moe.experts_add_rms_norm(*arguments, residual, weight, 1e-6, into=into)
    assert isinstance(actual, Tensor) and isinstance(want, Tensor)
    assert torch.equal(actual, want) and torch.equal(residual, total)
