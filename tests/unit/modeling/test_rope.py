"""Rotary scaling equals transformers' rules, and the served length decides where a rule asks."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from xllm.modeling.layers.rope_config import parse_rope
from xllm.modeling.layers.rotary import RotaryTable, inverse_frequencies
from xllm.modeling.models.config import model_max_len, resolve_max_model_len

HEAD_DIM = 64
LONG = [1.0 + i / 8 for i in range(HEAD_DIM // 2)]
SHORT = [1.0 + i / 64 for i in range(HEAD_DIM // 2)]

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 4096,
}
# name -> (scaling, max_position_embeddings)
SCALINGS = {
    "linear": ({"rope_type": "linear", "factor": 2.0}, 2048),
    "llama3 (ME-01)": (LLAMA3, 131072),
    "yarn (ME-02)": (YARN, 8192),
    "yarn with attention factor (ME-02)": (YARN | {"attention_factor": 0.7}, 8192),
    "yarn with mscale": (YARN | {"mscale": 0.8, "mscale_all_dim": 0.4}, 8192),
    "yarn untruncated, other betas": (
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        8192,
    ),
}


def hf_dict(scaling, max_position, theta=500_000.0):
    return {
        "model_type": "llama",
        "max_position_embeddings": max_position,
        "rope_parameters": {"rope_theta": theta, **scaling},
    }


def reference(scaling, max_position, seq_len=None):
    config = transformers.LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=max_position,
        rope_parameters={"rope_theta": 500_000.0, **scaling},
    )
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=seq_len)


@pytest.mark.parametrize("name", SCALINGS)
def test_inverse_frequencies_and_factor_equal_the_reference(name):
    scaling, max_position = SCALINGS[name]
    expected, expected_factor = reference(scaling, max_position)
    rope = parse_rope(hf_dict(scaling, max_position), HEAD_DIM)
    frequencies, factor = inverse_frequencies(rope, max_position)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


def test_old_and_new_config_layouts_mean_the_same():
    old = {
        "max_position_embeddings": 131072,
        "rope_theta": 500_000.0,
        "rope_scaling": {"type": "llama3"} | {k: v for k, v in LLAMA3.items() if k != "rope_type"},
    }
    assert parse_rope(old, HEAD_DIM) == parse_rope(hf_dict(LLAMA3, 131072), HEAD_DIM)


def test_scaling_that_was_added_to_the_new_layout_counts():
    """As model cards say for YaRN, on a config that transformers 5 has written."""
    both = hf_dict({"rope_type": "default"}, 8192)
    old = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert parse_rope(both | {"rope_scaling": old}, HEAD_DIM) == parse_rope(
        hf_dict(YARN, 8192), HEAD_DIM
    )


def test_lengths_may_be_written_as_floats():
    scaling = YARN | {"original_max_position_embeddings": 2048.0}
    assert parse_rope(hf_dict(scaling, 8192.0), HEAD_DIM) == parse_rope(
        hf_dict(YARN, 8192), HEAD_DIM
    )


def test_a_rotation_per_layer_type_is_refused_where_all_layers_share_one():
    nested = {"rope_parameters": {"full_attention": {"rope_theta": 1e6, **YARN}}}
    with pytest.raises(ValueError, match=r"rope_parameters must be the same .*full_attention"):
        parse_rope(nested, HEAD_DIM)
    assert parse_rope(nested, HEAD_DIM, layer_type="full_attention").theta == 1e6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, r"factor must be a number .*'4'"),
        ({"rope_scaling": [2.0]}, r"rope_scaling must be an object, got \[2.0\]"),
        ({"rope_theta": True}, "rope_theta must be a number above 0, got True"),
        ({"max_position_embeddings": "8k"}, "max_position_embeddings must be a positive integer"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0, None]}}, "long_factor must be a list"),
    ],
)
def test_fields_of_the_wrong_type_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_rope({"max_position_embeddings": 2048} | changes, HEAD_DIM)


@pytest.mark.parametrize(("max_len", "seq_len"), [(4096, 4096), (4097, 4097), (131072, 131072)])
def test_longrope_takes_the_list_of_the_served_length(max_len, seq_len):
    """ME-03. The rule: max_model_len above the original context takes the long factors."""
    expected, expected_factor = reference(LONGROPE, 131072, seq_len=seq_len)
    rope = parse_rope(hf_dict(LONGROPE, 131072), HEAD_DIM)
    frequencies, factor = inverse_frequencies(rope, max_len)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


def test_longrope_rotates_all_positions_with_one_list():
    """ME-03: no jump between the last position of the original context and the next one."""
    rope = parse_rope(hf_dict(LONGROPE | {"original_max_position_embeddings": 16}, 64), HEAD_DIM)
    cos, sin = RotaryTable(rope, max_len=64).cos_sin.chunk(2, dim=1)
    step = torch.atan2(sin, cos).diff(dim=0).remainder(2 * torch.pi)
    torch.testing.assert_close(step, step[:1].expand_as(step), atol=1e-4, rtol=0)


def test_longrope_refuses_a_factor_list_of_the_wrong_length():
    rope = parse_rope(hf_dict(LONGROPE | {"long_factor": [1.0, 2.0]}, 131072), HEAD_DIM)
    with pytest.raises(ValueError, match=r"long_factor must have 32 entries, got 2"):
        inverse_frequencies(rope, 131072)


def test_dynamic_scaling_uses_one_base_for_the_served_length():
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    rope = parse_rope(hf_dict(scaling, 2048), HEAD_DIM)
    expected, _ = reference(scaling, 2048, seq_len=4096)
    torch.testing.assert_close(inverse_frequencies(rope, 4096)[0], expected, rtol=1e-6, atol=0)


def test_partial_rotation_covers_the_leading_dimensions():
    rope = parse_rope(hf_dict({"partial_rotary_factor": 0.5}, 32), HEAD_DIM)
    assert RotaryTable(rope, max_len=8).cos_sin.shape == (8, HEAD_DIM // 2)


def test_unknown_rope_type_lists_the_known():
    rope = parse_rope(hf_dict({"rope_type": "spiral"}, 32), HEAD_DIM)
    with pytest.raises(ValueError, match=r"'spiral' is not supported; known: .*llama3"):
        inverse_frequencies(rope, 32)


def test_missing_parameter_is_named():
    rope = parse_rope(hf_dict({"rope_type": "linear"}, 32), HEAD_DIM)
    with pytest.raises(ValueError, match="linear needs factor"):
        inverse_frequencies(rope, 32)


@pytest.mark.parametrize(
    ("scaling", "max_position", "allowed"),
    [
        ({}, 2048, 2048),
        (LLAMA3, 131072, 131072),
        (YARN, 2048, 8192),  # ME-02: factor x original, whether or not the config says so too
        (YARN, 8192, 8192),
        (LONGROPE, 131072, 131072),
        ({"rope_type": "linear", "factor": 2.0}, 2048, 4096),
    ],
)
def test_allowed_length_follows_config_and_scaling(scaling, max_position, allowed):
    assert model_max_len(hf_dict(scaling, max_position)) == allowed


def test_gemma3_counts_positions_after_scaling():
    config = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    }
    assert model_max_len(config) == 131072


def test_more_than_the_config_allows_is_an_error_whatever_the_tokenizer_says():
    """ME-04: max_position_embeddings counts, the tokenizer's model_max_length does not."""
    config = hf_dict({}, 2048) | {"model_max_length": 131072}
    assert resolve_max_model_len(config, None) == 2048
    assert resolve_max_model_len(config, 100) == 100
    with pytest.raises(ValueError, match=r"--max-model-len must be at most 2048.*got 2049"):
        resolve_max_model_len(config, 2049)
