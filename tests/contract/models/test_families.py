"""Every family equals transformers: float32 logits within 1e-4, over any split of the prompt."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.contract.models.harness import PagedRun, load_tiny, reference_logits, tiny_checkpoint
from xllm.modeling.models import resolve
from xllm.modeling.quantization import load_method

TOLERANCE = 1e-4
TOKENS = [3, 17, 94, 41, 5, 9, 77, 23, 60, 11, 2, 88, 31, 54, 19, 70, 8, 42, 99, 1, 65, 37]

_SHAPE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _llama(**changes):
    return transformers.LlamaConfig(**_SHAPE | changes)


def _mistral(**changes):
    return transformers.MistralConfig(**_SHAPE | changes)


def _qwen2(**changes):
    return transformers.Qwen2Config(**_SHAPE | changes)


def _qwen3(**changes):
    return transformers.Qwen3Config(**_SHAPE | {"head_dim": 16} | changes)


def _mixtral(**changes):
    shape = _SHAPE | {"num_local_experts": 6, "num_experts_per_tok": 2}
    return transformers.MixtralConfig(**shape | changes)


_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}


def _qwen3_moe(**changes):
    return transformers.Qwen3MoeConfig(**_SHAPE | {"head_dim": 16} | _EXPERTS | changes)


def _qwen2_moe(**changes):
    shared = {"shared_expert_intermediate_size": 56}
    return transformers.Qwen2MoeConfig(**_SHAPE | _EXPERTS | shared | changes)


def _gpt_oss(**changes):
    """The rotation is YaRN without rounded borders, from 16 to 64 tokens."""
    shape = _SHAPE | {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 4}
    experts = {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40}
    rope = _YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}
    return transformers.GptOssConfig(**shape | experts | {"rope_parameters": rope} | changes)


def _gemma3(**changes):
    shape = _SHAPE | {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 4}
    return transformers.Gemma3TextConfig(**shape | {"query_pre_attn_scalar": 24} | changes)


CASES = {
    "llama": _llama(),
    "llama-no-gqa-tied": _llama(num_key_value_heads=4, tie_word_embeddings=True),
    "llama-one-kv-head": _llama(num_key_value_heads=1),
    "llama-biases": _llama(attention_bias=True, mlp_bias=True),
    "llama-wide-head": _llama(head_dim=32),  # ME-08: 4 heads of 32 on a hidden size of 48
    "llama3-rope": _llama(rope_parameters=_LLAMA3),
    "llama-yarn": _llama(rope_parameters=_YARN),
    "llama-linear-rope": _llama(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    ),
    "mistral-full": _mistral(sliding_window=None),
    "mistral-window-4": _mistral(sliding_window=4),  # ME-06
    "qwen2": _qwen2(),
    "qwen2-upper-layers-slide": _qwen2(
        use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen2-tied": _qwen2(tie_word_embeddings=True),
    "qwen3": _qwen3(),
    "qwen3-biases-tied": _qwen3(attention_bias=True, tie_word_embeddings=True),
    "mixtral": _mixtral(),
    "mixtral-window-4": _mixtral(sliding_window=4),
    "qwen3-moe": _qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-weights-as-they-are": _qwen3_moe(norm_topk_prob=False),
    "qwen3-moe-slides-head-size-left-out": transformers.Qwen3MoeConfig(
        **_SHAPE | _EXPERTS, use_sliding_window=True, sliding_window=5
    ),
    "qwen3-moe-some-layers": _qwen3_moe(decoder_sparse_step=2, mlp_only_layers=[0]),
    # ME-10: weights normalized or not, with a shared expert here and without one above.
    "qwen2-moe": _qwen2_moe(norm_topk_prob=True),
    "qwen2-moe-weights-as-they-are": _qwen2_moe(norm_topk_prob=False),
    "qwen2-moe-some-layers": _qwen2_moe(decoder_sparse_step=2, mlp_only_layers=[0]),
    "qwen2-moe-slides": _qwen2_moe(
        use_sliding_window=True, sliding_window=5, max_window_layers=2, qkv_bias=False
    ),
    "gpt-oss": _gpt_oss(),
    "gpt-oss-without-attention-biases": _gpt_oss(attention_bias=False, num_key_value_heads=4),
    "gemma3": _gemma3(),
    "gemma3-logits-softcap": _gemma3(final_logit_softcapping=3.0),
    "gemma3-scaled-full-layers": _gemma3(
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    ),
}
SPLITS = {
    "whole": [len(TOKENS)],
    "chunks": [5, 1, 7, 4],
    "prefill-then-decode": [13, 1],
}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    reference = tiny_checkpoint(CASES[request.param], folder)
    return load_tiny(folder), reference_logits(reference, TOKENS)


@pytest.mark.parametrize("split", SPLITS)
def test_logits_equal_the_reference(pair, split):
    model, expected = pair
    logits = PagedRun(model).feed(TOKENS, SPLITS[split])
    assert expected.std() > 0.3, "the comparison would not notice much"
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_rows_of_one_batch_do_not_see_each_other(pair):
    """ME-17: a decoding row and a chunk of another in one step, each equal to the reference."""
    model, expected = pair
    run = PagedRun(model, num_rows=2)
    alone = run.feed(TOKENS[:15], [15], row=1)
    mixed = run.step({1: TOKENS[15:16], 0: TOKENS})
    torch.testing.assert_close(alone, expected[:15], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(mixed[1], expected[15:16], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(mixed[0], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        (transformers.MistralConfig, ("sliding_window",)),
        (transformers.MixtralConfig, ("rope_parameters", "rms_norm_eps")),
        (transformers.GptOssConfig, ("sliding_window", "rms_norm_eps", "layer_types")),
    ],
)
def test_fields_that_a_config_leaves_out_are_the_familys(config, left_out):
    full = config(**_SHAPE, use_sliding_window=False).to_dict()
    family = resolve(full)

    def built(values):
        return family.from_hf_config(values, method=load_method(None), dtype=torch.float32).config

    assert built({k: v for k, v in full.items() if k not in left_out}) == built(full)


def test_gemma3_caps_attention_scores_where_configured(tmp_path):
    """transformers declares the field and its formula, but does not pass one to the other."""
    from transformers import masking_utils
    from transformers.models.gemma3 import modeling_gemma3

    def capped(module, *args, **kwargs):
        cap = module.config.attn_logit_softcapping
        return modeling_gemma3.eager_attention_forward(module, *args, softcap=cap, **kwargs)

    transformers.AttentionInterface.register("eager_capped", capped)
    masking_utils.AttentionMaskInterface.register("eager_capped", masking_utils.eager_mask)
    reference = tiny_checkpoint(_gemma3(attn_logit_softcapping=0.5), tmp_path)
    uncapped = reference_logits(reference, TOKENS)
    reference.set_attn_implementation("eager_capped")
    expected = reference_logits(reference, TOKENS)
    assert (expected - uncapped).abs().max() > 0.01
    logits = PagedRun(load_tiny(tmp_path)).feed(TOKENS, SPLITS["chunks"])
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
