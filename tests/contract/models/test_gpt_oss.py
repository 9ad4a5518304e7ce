"""What gpt-oss has beside its place in the table of families: 4-bit experts, its config."""

from __future__ import annotations

import json
import math

import pytest
import safetensors.torch
import torch
import transformers
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from tests.contract.models.harness import (
    PagedRun,
    load_tiny,
    reference_logits,
    tiny_checkpoint,
)
from tests.contract.models.test_families import TOKENS, TOLERANCE, _gpt_oss
from xllm.hardware.kernels import ops
from xllm.modeling.models.config import model_max_len
from xllm.modeling.models.llm.gpt_oss import from_hf_config
from xllm.modeling.quantization import load_method
from xllm.modeling.weights.stacked import StackedCheckpoint, dequantize_mxfp4

WEIGHTS = "model.safetensors"
EXPERTS = "model.layers.{}.mlp.experts."


def quantized(folder):
    """Replace the experts of a saved model by random ones in MXFP4, in both."""
    config = _gpt_oss(hidden_size=64, intermediate_size=32)
    reference = tiny_checkpoint(config, folder)
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    generator = torch.Generator().manual_seed(1)
    for index, layer in enumerate(reference.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            stored = EXPERTS.format(index) + name
            count, inputs, outputs = tensors.pop(stored).shape
            shape = (count, outputs, inputs // 32)
            blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(120, 126, shape, generator=generator, dtype=torch.uint8)
            tensors |= {f"{stored}_blocks": blocks, f"{stored}_scales": scales}
            parameter = getattr(layer.mlp.experts, name)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    path = folder / "config.json"
    stored_config = json.loads(path.read_text()) | {
        "quantization_config": {"quant_method": "mxfp4"}
    }
    path.write_text(json.dumps(stored_config))
    return reference, tensors


class TestMxfp4:
    def test_logits_equal_the_references(self, tmp_path):
        reference, _ = quantized(tmp_path)
        expected = reference_logits(reference, TOKENS)
        assert expected.std() > 0.3
        logits = PagedRun(load_tiny(tmp_path)).feed(TOKENS, [9, 1])
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)

    def test_experts_come_one_at_a_time(self, tmp_path):
        _, tensors = quantized(tmp_path)
        checkpoint = StackedCheckpoint([str(tmp_path / WEIGHTS)])
        read = dict(checkpoint.tensors(checkpoint.shapes()))
        assert {name: tuple(t.shape) for name, t in read.items()} == checkpoint.shapes()
        assert checkpoint.shapes()[EXPERTS.format(1) + "5.gate_up_proj"] == (64, 64)
        assert not any(name.endswith(("_blocks", "_scales")) for name in read)
        stored = sum(t.numel() * t.element_size() for t in tensors.values())
        assert sum(checkpoint.num_bytes(name) for name in read) == stored

    def test_every_byte_and_scale_is_expanded_exactly(self):
        blocks = torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(253, 1)
        scales = torch.arange(1, 254, dtype=torch.uint8).repeat_interleave(16)
        expected = convert_moe_packed_tensors(
            blocks[None, :, None], scales[None, :, None], dtype=torch.float32
        )
        values = dequantize_mxfp4(blocks[:, None], scales[:, None])
        assert values.dtype == torch.bfloat16
        assert torch.equal(values.float(), expected[0].T)

    def test_the_smallest_scale_is_no_zero(self):
        blocks = torch.full((1, 1, 16), 0x42, dtype=torch.uint8)  # 1, then 2
        values = dequantize_mxfp4(blocks, torch.zeros(1, 1, dtype=torch.uint8)).double()
        assert values[0, :2].tolist() == [2.0**-127, 2.0**-126]

    @pytest.mark.parametrize(("gone", "left"), [("_scales", "blocks"), ("_blocks", "scales")])
    def test_one_without_the_other_is_an_error(self, tmp_path, gone, left):
        _, tensors = quantized(tmp_path)
        tensors.pop(EXPERTS.format(0) + f"down_proj{gone}")
        safetensors.torch.save_file(tensors, tmp_path / WEIGHTS)
        with pytest.raises(ValueError, match=rf"experts.down_proj_{left} .*down_proj{gone}"):
            load_tiny(tmp_path)


def test_the_activation_equals_the_references_beyond_its_clamp():
    config = _gpt_oss()
    experts = GptOssExperts(config)
    gate_up = torch.randn(50, 2, 40, generator=torch.Generator().manual_seed(0)) * 10
    gate_up[0, :, :3] = torch.tensor([math.nan, 7.0, -7.0])
    expected = experts._apply_gate(gate_up.transpose(1, 2).flatten(1))
    actual = ops.act_and_mul(gate_up.flatten(1), "clamped_swiglu")
    torch.testing.assert_close(actual, expected, equal_nan=True)


def test_another_clamp_is_refused(tmp_path):
    tiny_checkpoint(_gpt_oss(swiglu_limit=5.0), tmp_path)
    with pytest.raises(ValueError, match=r"swiglu_limit must be 7.0, got 5.0"):
        load_tiny(tmp_path)


def test_the_published_config_is_understood():
    """Field for field what openai/gpt-oss-20b has, its shape apart."""
    shape = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4}
    config = shape | {
        "model_type": "gpt_oss",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "hidden_act": "silu",
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-05,
        "rope_theta": 150000,
        "initial_context_length": 4096,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": False,
    }
    assert model_max_len(config) == 131072
    built = from_hf_config(
        config, method=load_method(None), dtype=torch.float32, max_len=256
    ).config
    hf = transformers.GptOssConfig(**config)
    assert built.windows == (128, 0, 128, 0)
    assert built.ropes[0].theta == hf.rope_parameters["rope_theta"] == 150000
    assert not built.ropes[0].truncate and built.rms_norm_eps == 1e-5
    without = {k: v for k, v in config.items() if k != "layer_types"}
    assert from_hf_config(
        without, method=load_method(None), dtype=torch.float32, max_len=256
    ).config.windows == (128, 0, 128, 0)
