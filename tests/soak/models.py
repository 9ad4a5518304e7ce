"""Random models against transformers, for as long as you like.

    python -m tests.soak.models --minutes 10 [--seed N]

Random configs of every decoder family (heads, windows, rotary scaling, biases, experts, caps) with
random weights, over random splits of a random prompt, on the CPU's kernels: float32 logits must be
those of transformers. Prints the number of models, and on a failure the seed that repeats it.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.contract.models.harness import PagedRun, load_tiny, reference_logits, tiny_checkpoint
from tests.soak.runner import soak
from xllm.hardware.kernels import ops

MAX_LEN = 128
TOLERANCE = 2e-4
_FAMILIES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "mixtral": transformers.MixtralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen2_moe": transformers.Qwen2MoeConfig,
    "qwen3": transformers.Qwen3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "gemma3": transformers.Gemma3TextConfig,
    "gpt_oss": transformers.GptOssConfig,
}


def random_config(draw: random.Random) -> transformers.PretrainedConfig:
    """A small model of any family. Sizes are multiples of 4, which transformers' experts need."""
    family = draw.choice(list(_FAMILIES))
    num_kv_heads, group = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    num_heads = num_kv_heads * group
    head_dim = draw.choice([4, 6, 8, 12, 16, 18, 24])
    hidden_size = 4 * num_heads * draw.choice([1, 2, 3])
    if family in ("qwen2", "qwen2_moe"):  # whose heads share the hidden size
        head_dim = hidden_size // num_heads
    window = draw.choice([None, 3, 7, 16])
    fields: dict[str, Any] = {
        "vocab_size": draw.choice([100, 131]),
        "hidden_size": hidden_size,
        "intermediate_size": draw.choice([24, 40, 64]),
        "num_hidden_layers": draw.choice([1, 2, 4]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": draw.choice([1e-6, 1e-3]),
        "tie_word_embeddings": draw.random() < 0.3,
        "attention_bias": draw.random() < 0.4,
        "sliding_window": window,
        "rope_parameters": _rotation(draw, head_dim),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family.startswith("qwen"):
        fields |= {"use_sliding_window": window is not None, "sliding_window": window or 4096}
        fields |= {"max_window_layers": draw.choice([0, 1, 2])}
    if family in ("mixtral", "gpt_oss"):
        fields |= {"num_local_experts": draw.choice([3, 8]), "num_experts_per_tok": 2}
    if family.endswith("_moe"):
        fields |= _sparse(draw)
    if family == "llama":
        fields |= {"mlp_bias": draw.random() < 0.4}
        fields |= {"hidden_act": draw.choice(["silu", "gelu", "gelu_pytorch_tanh"])}
    if family == "gpt_oss":
        fields |= {"sliding_window": window or 5}
    if family == "gemma3":
        kinds = ("full_attention", "sliding_attention")
        local = {"rope_type": "default", "rope_theta": 1e4}
        fields |= {
            "sliding_window": window or 5,
            "layer_types": [draw.choice(kinds) for _ in range(fields["num_hidden_layers"])],
            "rope_parameters": dict(zip(kinds, (fields["rope_parameters"], local), strict=True)),
            "query_pre_attn_scalar": draw.choice([8, 24, 256]),
            "final_logit_softcapping": draw.choice([None, 4.0]),
        }
    return _FAMILIES[family](**fields)


def _sparse(draw: random.Random) -> dict[str, Any]:
    return {
        "num_experts": draw.choice([3, 8]),
        "num_experts_per_tok": draw.choice([1, 2, 3]),
        "moe_intermediate_size": draw.choice([8, 24]),
        "shared_expert_intermediate_size": draw.choice([8, 24]),
        "norm_topk_prob": draw.random() < 0.5,
        "decoder_sparse_step": draw.choice([1, 2]),
        "mlp_only_layers": draw.choice([[], [0]]),
        "qkv_bias": draw.random() < 0.5,
    }


def _rotation(draw: random.Random, head_dim: int) -> dict[str, Any]:
    kind = draw.choice(["default", "linear", "yarn", "llama3", "longrope"])
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": draw.choice([1e3, 1e4, 5e5])}
    if kind == "default":
        return rope
    rope["factor"] = draw.choice([1.5, 2.0, 4.0])
    if kind != "linear":
        rope["original_max_position_embeddings"] = draw.choice([16, 32, 64])
    if kind == "yarn":
        more = {"beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.1, "mscale": 0.9}
        rope |= {name: value for name, value in more.items() if draw.random() < 0.4}
        if "mscale" in rope:
            rope["mscale_all_dim"] = 0.7
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": draw.choice([2.0, 4.0])}
    if kind == "longrope":
        for name, largest in (("short_factor", 2.0), ("long_factor", 4.0)):
            rope[name] = [draw.uniform(1.0, largest) for _ in range(head_dim // 2)]
    return rope


def compare(seed: int, folder: Path) -> None:
    """One model and prompt.

    Raises:
        AssertionError: the logits differ.
    """
    draw = random.Random(seed)
    config = random_config(draw)
    reference = tiny_checkpoint(config, folder, seed)
    tokens = [draw.randrange(3, 100) for _ in range(draw.choice([10, 40, 90]))]
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    served = None
    if rope["rope_type"] == "longrope":  # transformers chooses by the prompt, xLLM by this
        original = rope["original_max_position_embeddings"]
        served = MAX_LEN if len(tokens) > original else original
    model = load_tiny(folder, max_model_len=served)
    tokens = tokens[: model.config.max_len]
    sizes = [draw.choice([1, 7, len(tokens)]), draw.choice([1, 5])]
    logits = PagedRun(model, max_tokens=MAX_LEN).feed(tokens, sizes)
    expected = reference_logits(reference, tokens)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0, msg=str(config))


def live(seed: int) -> dict[str, int]:
    """One model's comparison."""
    with tempfile.TemporaryDirectory() as folder:
        compare(seed, Path(folder))
    return {}


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    ops.use_platform("cpu")
    soak(__doc__, live)
