"""A GGUF file gives the same logits as the reference checkpoint it was made from."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import transformers

from tests.contract.models.harness import (
    PagedRun,
    load_tiny,
    reference_logits,
    resolve,
    tiny_checkpoint,
)
from tests.contract.models.test_families import _YARN, CASES, TOKENS, TOLERANCE
from xllm.modeling.weights.gguf import GgufCheckpoint
from xllm.modeling.weights.loader import load_model

ARCH_NUMBERS = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
# The format has no field for query_pre_attn_scalar: it is the head dimension.
GEMMA3 = transformers.Gemma3TextConfig(
    **CASES["gemma3"].to_diff_dict() | {"query_pre_attn_scalar": 16}
)
BETAS = {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.2}
ARCHITECTURES = {
    "llama": ("llama", CASES["llama"]),
    "llama, tied": ("llama", CASES["llama-no-gqa-tied"]),
    "llama, biases": (
        "llama",
        transformers.LlamaConfig(**CASES["llama"].to_diff_dict() | {"attention_bias": True}),
    ),
    "llama, llama3 rope": ("llama", CASES["llama3-rope"]),
    "llama, linear rope": ("llama", CASES["llama-linear-rope"]),
    "llama, yarn": ("llama", CASES["llama-yarn"]),
    "qwen3, yarn with all its fields": (
        "qwen3",
        transformers.Qwen3Config(
            **CASES["qwen3"].to_diff_dict() | {"rope_parameters": _YARN | BETAS}
        ),
    ),
    "mistral": ("llama", CASES["mistral-full"]),
    "mistral, window": ("llama", CASES["mistral-window-4"]),
    "qwen2": ("qwen2", CASES["qwen2"]),
    "qwen3": ("qwen3", CASES["qwen3"]),
    "mixtral": ("llama", CASES["mixtral"]),
    "qwen3-moe": ("qwen3moe", CASES["qwen3-moe"]),
    "gemma3": ("gemma3", GEMMA3),
}


def write_gguf(path, arch: str, reference, quantize=None, metadata=None) -> None:
    """What llama.cpp's converter would write for ``reference``, and more ``metadata``: values by
    their keys."""
    config = reference.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    writer.add_key_length(head_dim)
    if experts := getattr(config, "num_local_experts", 0):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if inner := getattr(config, "moe_intermediate_size", 0):
            writer.add_expert_feed_forward_length(inner)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if rope.get("rope_type") in ("linear", "yarn"):
        write_scaling(writer, rope)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(reference, head_dim))
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(config.vocab_size)])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(ARCH_NUMBERS[arch], 99)
    for name, tensor in _converted(reference.state_dict()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, suffix = name.rpartition(".")
        value = stored_form(arch, name, tensor, config).numpy()
        target = f"{names.get_name(stem)}.{suffix}"
        if quantize is not None and value.ndim == 2:
            packed = gguf.quants.quantize(value, quantize)
            writer.add_tensor(target, packed, raw_dtype=quantize)
        else:
            writer.add_tensor(target, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_scaling(writer, rope) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
    writer.add_rope_scaling_factor(rope["factor"])
    fields = {
        "original_max_position_embeddings": writer.add_rope_scaling_orig_ctx_len,
        "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
        "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
        "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
    }
    for name, add in fields.items():
        if rope.get(name) is not None:
            add(rope[name])


def _converted(state_dict):
    """Names as llama.cpp's table of tensors knows them; experts stay stacked, gate and up apart."""
    for name, tensor in state_dict.items():
        stem = name.removesuffix("_proj")
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                yield stem.replace("gate_up", f"{part}_proj") + ".weight", half.contiguous()
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", tensor
        else:
            yield name, tensor


def stored_form(arch, name, tensor, config):
    if arch == "gemma3" and name.endswith("norm.weight"):
        return tensor + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = heads.get(name.split(".")[-2])
    if arch == "llama" and num_heads:
        halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
        return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()
    return tensor


def rope_divisors(reference, head_dim: int) -> np.ndarray:
    plain = 1.0 / 10_000.0 ** (torch.arange(0, head_dim, 2) / head_dim)
    return (plain / reference.model.rotary_emb.inv_freq).numpy().astype(np.float32)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_the_reference(name, tmp_path):
    arch, config = ARCHITECTURES[name]
    reference = tiny_checkpoint(config, tmp_path / "reference")
    write_gguf(tmp_path / "model.gguf", arch, reference)
    logits = PagedRun(load_tiny(tmp_path / "model.gguf")).feed(TOKENS, [9, 1])
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_a_factor_without_a_type_is_linear(key, tmp_path):
    reference = tiny_checkpoint(CASES["llama"], tmp_path / "reference")
    write_gguf(tmp_path / "model.gguf", "llama", reference, metadata={key: 2.0})
    rope = load_tiny(tmp_path / "model.gguf").config.ropes[0]
    assert (rope.rope_type, rope.factor) == ("linear", 2.0)


def test_sliding_layers_may_be_listed(tmp_path):
    reference = tiny_checkpoint(CASES["gemma3"], tmp_path / "reference")
    slides = [True, False, True, True, False, False, True]
    metadata = {"gemma3.attention.sliding_window_pattern": slides}
    write_gguf(tmp_path / "model.gguf", "gemma3", reference, metadata=metadata)
    windows = load_tiny(tmp_path / "model.gguf").config.windows
    assert [bool(window) for window in windows] == slides


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"split.count": 3}, "is one of 3 parts of a split GGUF file"),
        ({"llama.pooling_type": 1}, r"llama.pooling_type must be 3 \(the last token\), got 1"),
        ({"llama.attention.value_length": 16}, r"value_length must be key_length \(12\), got 16"),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, "head_count_kv must be a positive integer"),
        (
            {"llama.rope.scaling.factor": 2.0, "llama.rope.scaling.yarn_ext_factor": 0.5},
            "yarn_ext_factor is not supported, got 0.5",
        ),
    ],
)
def test_metadata_that_is_not_read_is_refused(metadata, message, tmp_path, monkeypatch):
    reference = tiny_checkpoint(CASES["llama"], tmp_path / "reference")
    if "llama.attention.head_count_kv" in metadata:
        monkeypatch.setattr(gguf.GGUFWriter, "add_head_count_kv", lambda *args: None)
    write_gguf(tmp_path / "model.gguf", "llama", reference, metadata=metadata)
    with pytest.raises(ValueError, match=message):
        resolve(tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantized_tensors_are_dequantized_in_reference_order(kind, tmp_path):
    """Rows of llama's q and k are reordered while packed: the values must follow."""
    shape = {"hidden_size": 64, "head_dim": 16}  # whole blocks of 32
    config = transformers.LlamaConfig(**CASES["llama"].to_diff_dict() | shape)
    reference = tiny_checkpoint(config, tmp_path / "reference")
    number = gguf.GGMLQuantizationType[kind]
    write_gguf(tmp_path / "model.gguf", "llama", reference, quantize=number)
    checkpoint = GgufCheckpoint(str(tmp_path / "model.gguf"))
    stored = reference.state_dict()
    for name, tensor in checkpoint.tensors(checkpoint.shapes()):
        value = stored[name].numpy()
        if value.ndim == 2:
            value = gguf.quants.dequantize(gguf.quants.quantize(value, number), number)
        np.testing.assert_array_equal(tensor.numpy(), value)


def test_metadata_becomes_the_config(tmp_path):
    reference = tiny_checkpoint(CASES["gemma3"], tmp_path / "reference")
    templates = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    write_gguf(tmp_path / "model.gguf", "gemma3", reference, metadata=templates)
    files = resolve(tmp_path)  # a folder with one GGUF file
    assert files.format == "gguf"
    assert files.config["model_type"] == "gemma3_text"
    assert files.config["tie_word_embeddings"] is True
    assert files.config["sliding_window"] == 4
    assert files.eos_token_ids == (2,)
    assert (files.chat_template, files.tool_template) == ("D", "T")
    assert files.vocab_size == 100
    assert files.gguf_file == files.weights[0]


def test_a_file_that_pools_is_served_for_embeddings(tmp_path):
    reference = tiny_checkpoint(CASES["qwen3"], tmp_path / "reference")
    write_gguf(tmp_path / "model.gguf", "qwen3", reference)
    assert resolve(tmp_path / "model.gguf").pooling is None
    write_gguf(tmp_path / "model.gguf", "qwen3", reference, metadata={"qwen3.pooling_type": 3})
    found = resolve(tmp_path / "model.gguf").pooling
    assert (found.task, found.method, found.normalize) == ("embed", "last", True)


def test_unsupported_architecture_lists_the_known(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"'mamba' is not supported; known: gemma3, llama"):
        resolve(tmp_path / "model.gguf")


def test_truncated_tensors_are_refused(tmp_path):
    reference = tiny_checkpoint(CASES["llama"], tmp_path / "reference")
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", reference)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="beyond the end of the file"):
        load_model(resolve(path), dtype=torch.float32)
