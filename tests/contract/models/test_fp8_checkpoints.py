"""Checkpoints of 8-bit floats with scales: kept or dequantized, the same numbers."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
import transformers

from tests.contract.models.harness import (
    PagedRun,
    load_tiny,
    reference_logits,
    tiny_checkpoint,
)
from tests.contract.models.test_families import CASES, TOKENS, TOLERANCE
from xllm.hardware.kernels.reference import dequantize_weight
from xllm.modeling.quantization import fp8, fp8_block
from xllm.modeling.quantization.fp8_block import quantize_blocks
from xllm.modeling.weights.scaled import stores_fp8

WEIGHTS = "model.safetensors"
SHAPE = {
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FLOAT_GROUP = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOAT_GROUP}},
    "ignore": ["lm_head"],
}
TENSORS = {"quant_method": "fp8", "activation_scheme": "static"}


def _block(weight):
    values, scale = quantize_blocks(weight)
    return {"weight": values, "weight_scale_inv": scale.bfloat16()}


def _channel(weight):
    values, scale = fp8.quantize_rows(weight)
    return {"weight": values, "weight_scale": scale[:, None]}


def _tensor(weight):
    scale = weight.abs().max() / 448
    values = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scale, "input_scale": torch.tensor(0.1)}


FORMATS = {"block": (BLOCKS, _block), "channel": (CHANNELS, _channel), "tensor": (TENSORS, _tensor)}


def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder, change) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    change(tensors)
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS
    )


def quantize(folder, name, keep=(), **shape):
    """A checkpoint of that format in ``folder``; the reference with the numbers it stands for.

    Linear layers whose name has a part in ``keep`` stay as they are.
    """
    reference = tiny_checkpoint(transformers.Qwen3Config(**SHAPE | shape), folder)
    config, pack = FORMATS[name]
    stored = {}
    for path, module in reference.named_modules():
        if not isinstance(module, torch.nn.Linear) or path == "lm_head":
            continue
        if any(part in path for part in keep):
            continue
        packed = pack(module.weight.data)
        stored |= {f"{path}.{part}": tensor for part, tensor in packed.items()}
        scale = packed.get("weight_scale_inv", packed.get("weight_scale")).float()
        if name != "block":
            scale = scale.reshape(-1).expand(module.weight.shape[0])
        module.weight.data = dequantize_weight(packed["weight"], scale)
    edit_config(folder, quantization_config=config)
    edit_weights(folder, lambda tensors: tensors.update(stored))
    return reference


def logits_of(folder, **options):
    return PagedRun(load_tiny(folder, **options)).feed(TOKENS, [7, 1])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("keep_fp8", [False, True], ids=["dequantized", "kept"])
class TestFormats:
    def test_logits_equal_a_reference_with_dequantized_weights(self, tmp_path, name, keep_fp8):
        expected = reference_logits(quantize(tmp_path, name), TOKENS)
        logits = logits_of(tmp_path, keep_fp8=keep_fp8)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)

    def test_layers_that_were_left_out_stay_float(self, tmp_path, name, keep_fp8):
        keep = ("layers.1.self_attn", "layers.0.mlp.down_proj")
        expected = reference_logits(quantize(tmp_path, name, keep), TOKENS)
        logits = logits_of(tmp_path, keep_fp8=keep_fp8)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_only_kept_weights_stay_in_8_bits(tmp_path, platform):
    if platform != "reference":
        pytest.skip("looks into the reference's packed weights")
    quantize(tmp_path, "block", keep=("layers.1.self_attn",))
    first, second = load_tiny(tmp_path, keep_fp8=True).model.layers
    assert first.self_attn.qkv_proj.packed.weight.dtype == torch.float8_e4m3fn
    assert first.self_attn.qkv_proj.packed.scale.shape == (4, 2)
    assert first.mlp.gate_up_proj.packed.scale.shape == (6, 2)
    assert second.self_attn.qkv_proj.packed.weight.dtype == torch.float32
    plain = load_tiny(tmp_path).model.layers[0]
    assert plain.self_attn.qkv_proj.packed.weight.dtype == torch.float32


def test_they_may_be_quantized_again(tmp_path):
    expected = reference_logits(quantize(tmp_path, "block"), TOKENS)
    logits = logits_of(tmp_path, quantization="int8", keep_fp8=True)
    assert 0 < (logits - expected).abs().mean() < 0.1 * expected.std()


def test_experts_are_dequantized(tmp_path):
    reference = tiny_checkpoint(CASES["qwen3-moe"], tmp_path)
    expected = reference_logits(reference, TOKENS)
    sizes = {}

    def change(tensors):
        for name in [n for n in tensors if ".experts." in n]:
            path = name.removesuffix(".weight")
            tensors |= {f"{path}.{k}": v for k, v in _block(tensors[name]).items()}
            sizes[name] = tensors[name].numel()

    edit_weights(tmp_path, change)
    edit_config(tmp_path, quantization_config=BLOCKS)
    logits = logits_of(tmp_path, keep_fp8=True)
    assert sizes
    assert 0 < (logits - expected).abs().mean() < 0.2 * expected.std()


def test_quantizing_by_block_rounds_as_stated(tmp_path, platform):
    if platform != "reference":
        pytest.skip("8-bit floats are refused on a CPU")
    reference = tiny_checkpoint(transformers.Qwen3Config(**SHAPE), tmp_path)
    for path, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            module.weight.data = dequantize_weight(*quantize_blocks(module.weight.data))
    expected = reference_logits(reference, TOKENS)
    logits = logits_of(tmp_path, quantization="fp8_block")
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_blocks_have_their_own_scales():
    weight = torch.ones(200, 300)
    weight[128:, 256:] = 1000.0
    weight[:128, 128:256] = 0.0
    values, scale = quantize_blocks(weight)
    expected = torch.tensor([[1.0, 448.0, 1.0], [1.0, 1.0, 1000.0]]) / 448
    torch.testing.assert_close(scale, expected)
    torch.testing.assert_close(dequantize_weight(values, scale), weight)


class TestRefusals:
    @pytest.mark.parametrize(
        ("stored", "message"),
        [
            ({"quant_method": "gptq"}, "quantized with 'gptq' are not supported"),
            (BLOCKS | {"weight_block_size": [64, 128]}, r"weight_block_size must be \[128, 128\]"),
            (BLOCKS | {"weight_block_size": 128}, r"weight_block_size must be \[128, 128\]"),
            (
                {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"g": {"weights": FLOAT_GROUP | {"num_bits": 4}}},
                },
                "must be 8-bit floats by tensor, channel, block; g has 4-bit float by channel",
            ),
            (
                CHANNELS | {"sparsity_config": {"format": "sparse-24-bitmask"}},
                "weights must be dense, sparsity_config has the format 'sparse-24-bitmask'",
            ),
            (
                CHANNELS | {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}},
                "transform_config of compressed-tensors is not supported",
            ),
        ],
    )
    def test_other_formats(self, stored, message):
        with pytest.raises(ValueError, match=message):
            stores_fp8({"quantization_config": stored})

    @pytest.mark.parametrize("quantization", [None, "fp8_block"])
    def test_projections_that_share_a_block(self, tmp_path, quantization):
        quantize(tmp_path, "block", intermediate_size=320)
        with pytest.raises(
            ValueError, match=r"multiples of 128 rows; .* gate_proj 320, up_proj 320"
        ):
            load_tiny(tmp_path, quantization=quantization, keep_fp8=True)
        assert logits_of(tmp_path).isfinite().all()  # dequantized, they need not be

    def test_a_projection_stored_in_two_ways(self, tmp_path):
        quantize(tmp_path, "block", keep=("up_proj",))
        with pytest.raises(ValueError, match="must be stored alike: gate_proj, up_proj"):
            load_tiny(tmp_path, keep_fp8=True)

    @pytest.mark.parametrize("keep_fp8", [False, True])
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda w, s: (w, None), "no scale for model.layers.1.mlp.up_proj.weight"),
            (lambda w, s: (w, s[:-1]), r"one per 128 x 128 block; it has shape \[2, 2\]"),
            (lambda w, s: (w.float(), s), "must be a matrix of float8_e4m3fn, .* of float32"),
        ],
    )
    def test_weights_and_scales_that_do_not_fit(self, tmp_path, change, message, keep_fp8):
        quantize(tmp_path, "block")
        path = "model.layers.1.mlp.up_proj"

        def damage(tensors):
            weight, scale = change(
                tensors[f"{path}.weight"], tensors.pop(f"{path}.weight_scale_inv")
            )
            tensors[f"{path}.weight"] = weight
            if scale is not None:
                tensors[f"{path}.weight_scale_inv"] = scale

        edit_weights(tmp_path, damage)
        with pytest.raises(ValueError, match=message):
            load_tiny(tmp_path, keep_fp8=keep_fp8)


def test_block_method_refuses_rows_within_a_block():
    class Layer:
        shards = (("q_proj", 64), ("k_proj", 64))

    with pytest.raises(ValueError, match="q_proj 64, k_proj 64"):
        fp8_block.check_rows(Layer(), 64)  # type: ignore[arg-type]
