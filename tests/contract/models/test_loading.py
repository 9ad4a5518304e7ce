"""What a checkpoint must bring, what may differ, and what loading makes of it."""

from __future__ import annotations

import json
import logging

import pytest
import safetensors.torch
import torch
import transformers

from tests.contract.models.harness import (
    PagedRun,
    load_tiny,
    reference_logits,
    resolve,
    tiny_checkpoint,
)
from tests.contract.models.test_families import _SHAPE, TOKENS, TOLERANCE
from xllm.modeling.models import resolve as resolve_family
from xllm.modeling.quantization import fp8
from xllm.modeling.quantization.int8 import quantize_rows
from xllm.modeling.weights.loader import load_model, model_targets

WEIGHTS = "model.safetensors"


@pytest.fixture
def reference(tmp_path):
    return tiny_checkpoint(transformers.LlamaConfig(**_SHAPE), tmp_path)


def edit_weights(folder, change) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    change(tensors)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)


def edit_config(folder, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def logits_of(folder, **options):
    return PagedRun(load_tiny(folder, **options)).feed(TOKENS, [len(TOKENS)])


class TestTiedEmbeddings:
    """ME-07: the config decides, four ways."""

    def test_tie_wins_over_a_stored_head(self, reference, tmp_path):
        edit_config(tmp_path, tie_word_embeddings=True)
        reference.lm_head.weight = reference.model.embed_tokens.weight
        expected = reference_logits(reference, TOKENS)
        torch.testing.assert_close(logits_of(tmp_path), expected, atol=TOLERANCE, rtol=0)

    def test_tied_without_a_stored_head(self, reference, tmp_path):
        edit_config(tmp_path, tie_word_embeddings=True)
        edit_weights(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
        reference.lm_head.weight = reference.model.embed_tokens.weight
        expected = reference_logits(reference, TOKENS)
        torch.testing.assert_close(logits_of(tmp_path), expected, atol=TOLERANCE, rtol=0)

    def test_tied_with_the_heads_name_alone(self, reference, tmp_path):
        """As ``safetensors.torch.save_model`` writes it."""
        edit_config(tmp_path, tie_word_embeddings=True)
        edit_weights(tmp_path, lambda tensors: tensors.pop("model.embed_tokens.weight"))
        reference.model.embed_tokens.weight = reference.lm_head.weight
        expected = reference_logits(reference, TOKENS)
        torch.testing.assert_close(logits_of(tmp_path), expected, atol=TOLERANCE, rtol=0)

    def test_untied_takes_the_stored_head(self, reference, tmp_path):
        expected = reference_logits(reference, TOKENS)
        torch.testing.assert_close(logits_of(tmp_path), expected, atol=TOLERANCE, rtol=0)

    def test_untied_without_a_head_is_an_error(self, reference, tmp_path):
        edit_weights(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
        with pytest.raises(ValueError, match=r"lacks lm_head.weight .*tie_word_embeddings"):
            load_tiny(tmp_path)


class TestVocabularyPadding:
    """ME-15: 248 real tokens in 256 rows, the padding rows the largest of all."""

    @pytest.fixture(params=[True, False], ids=["tied", "untied"])
    def padded(self, request, tmp_path):
        config = transformers.LlamaConfig(
            **_SHAPE | {"vocab_size": 256, "tie_word_embeddings": request.param}
        )
        reference = tiny_checkpoint(config, tmp_path)

        def raise_padding(tensors):
            name = "model.embed_tokens.weight" if request.param else "lm_head.weight"
            tensors[name][248:] *= 100

        edit_weights(tmp_path, raise_padding)
        return tmp_path, reference_logits(reference, TOKENS)[:, :248]

    def test_rows_beyond_the_tokenizer_give_no_logits(self, padded):
        folder, expected = padded
        model = load_model(resolve(folder, vocab_size=248), dtype=torch.float32)
        logits = PagedRun(model).feed(TOKENS, [len(TOKENS)])
        assert model.vocab_size == 248
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)

    @pytest.mark.parametrize("quantization", [None, "int8"])
    def test_rows_of_logits_begin_at_whole_vectors(self, padded, quantization):
        """The library's product of an odd number of tokens took five times as long on an H200."""
        folder, _ = padded
        files = resolve(folder, vocab_size=241)
        model = load_model(files, dtype=torch.bfloat16, quantization=quantization)
        hidden = torch.randn(3, model.config.hidden_size).bfloat16()
        logits = model.compute_narrow_logits(hidden)
        assert logits.shape == (3, 241) and logits.stride(1) == 1
        assert logits.stride(0) * logits.element_size() % 16 == 0
        head = safetensors.torch.load_file(folder / WEIGHTS)
        head = head.get("lm_head.weight", head["model.embed_tokens.weight"])[:241]
        expected = hidden.float() @ head.float().T
        torch.testing.assert_close(logits.float(), expected, atol=0.05, rtol=0.05)

    def test_rows_beyond_the_config_are_dropped(self, padded):
        folder, expected = padded
        edit_config(folder, vocab_size=248)
        torch.testing.assert_close(logits_of(folder), expected, atol=TOLERANCE, rtol=0)


class TestErrors:
    def test_missing_tensors_are_named(self, reference, tmp_path):
        edit_weights(tmp_path, lambda t: t.pop("model.layers.1.self_attn.k_proj.weight"))
        with pytest.raises(ValueError, match=r"lacks model.layers.1.self_attn.k_proj.weight$"):
            load_tiny(tmp_path)

    def test_many_missing_tensors_are_counted(self, reference, tmp_path):
        edit_weights(tmp_path, lambda t: [t.pop(name) for name in list(t) if "layers.2" in name])
        with pytest.raises(ValueError, match=r"lacks model.layers.2\S+,.* and 4 more"):
            load_tiny(tmp_path)

    def test_wrong_shape_names_the_tensor_and_both_shapes(self, reference, tmp_path):
        def cut(tensors):
            name = "model.layers.0.mlp.down_proj.weight"
            tensors[name] = tensors[name][:, :-1].contiguous()

        edit_weights(tmp_path, cut)
        message = r"model.layers.0.mlp.down_proj.weight has shape \[48, 63\].* \[48, 64\]"
        with pytest.raises(ValueError, match=message):
            load_tiny(tmp_path)

    def test_a_parameter_without_a_place_is_an_error(self, reference, tmp_path):
        name = "model.layers.0.self_attn.q_proj.bias"
        edit_weights(tmp_path, lambda t: t.update({name: torch.zeros(48)}))
        with pytest.raises(ValueError, match=rf"no place for {name}"):
            load_tiny(tmp_path)

    def test_integers_without_a_scheme_are_an_error(self, reference, tmp_path):
        name = "model.layers.0.mlp.up_proj.weight"
        edit_weights(tmp_path, lambda t: t.update({name: t[name].mul(100).to(torch.int8)}))
        with pytest.raises(ValueError, match=rf"{name} is stored as I8, not as floats"):
            load_tiny(tmp_path)

    def test_foreign_tensors_are_reported_and_skipped(self, reference, tmp_path, caplog):
        edit_weights(tmp_path, lambda t: t.update({"extra.scale": torch.zeros(3)}))
        with caplog.at_level(logging.WARNING):
            load_tiny(tmp_path)
        assert "does not use extra.scale" in caplog.text

    def test_damaged_file_is_named(self, reference, tmp_path):
        path = tmp_path / WEIGHTS
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(ValueError, match=rf"cannot read .*{WEIGHTS}"):
            load_tiny(tmp_path)

    def test_unknown_model_type_lists_the_known(self):
        known = "bert, gemma3_text, gpt_oss, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, "
        known += "qwen3_moe"
        with pytest.raises(ValueError, match=rf"unknown model_type 'mystery'; known: {known}"):
            resolve_family({"model_type": "mystery"})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"hidden_size": None}, "hidden_size must be a positive integer, got None"),
            ({"num_key_value_heads": 3}, "must be a multiple of num_key_value_heads"),
            ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer, got True"),
            ({"is_causal": False}, "is_causal False is not supported"),
            ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not"),
            ({"head_dim": 13}, r"head_dim \(13\) must be an even number of dimensions.*got 13"),
            ({"partial_rotary_factor": 0.25}, r"even number of dimensions, .* got 3"),
            ({"partial_rotary_factor": 1.5}, r"at most head_dim, got 18"),
            ({"head_dim": "12"}, "head_dim must be a positive integer, got '12'"),
            ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number above 0, got '1e-6'"),
            (
                {"model_type": "mistral", "sliding_window": "8"},
                "sliding_window must be a positive integer, got '8'",
            ),
            (
                {"model_type": "mistral", "layer_types": ["chunked_attention"] * 3},
                "layer_types must be of full_attention, sliding_attention, got chunked_attention",
            ),
            ({"quantization_config": {"quant_method": "awq"}}, "with 'awq' are not supported"),
            ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported; known: silu"),
        ],
    )
    def test_bad_config_fields_are_named(self, reference, tmp_path, changes, message):
        edit_config(tmp_path, **changes)
        with pytest.raises(ValueError, match=message):
            load_tiny(tmp_path)

    def test_more_context_than_the_model_allows_is_an_error(self, reference, tmp_path):
        with pytest.raises(ValueError, match=r"--max-model-len must be at most 64"):
            load_tiny(tmp_path, max_model_len=65)


def test_sharded_checkpoint_loads_with_progress(tmp_path):
    reference = tiny_checkpoint(transformers.LlamaConfig(**_SHAPE), tmp_path)
    (tmp_path / WEIGHTS).unlink()
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    files = resolve(tmp_path)
    assert len(files.weights) > 2
    seen = []
    model = load_model(files, dtype=torch.float32, progress=lambda *p: seen.append(p))
    logits = PagedRun(model).feed(TOKENS, [len(TOKENS)])
    torch.testing.assert_close(logits, reference_logits(reference, TOKENS), atol=TOLERANCE, rtol=0)
    total = sum(4 * p.numel() for p in reference.parameters())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_half_precision_checkpoint_loads_into_float32(tmp_path):
    reference = tiny_checkpoint(transformers.LlamaConfig(**_SHAPE), tmp_path)
    reference.to(torch.bfloat16).save_pretrained(tmp_path)
    widened = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = reference_logits(widened, TOKENS)
    torch.testing.assert_close(logits_of(tmp_path), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_near_float32(reference, tmp_path, dtype):
    model = load_model(resolve(tmp_path), dtype=dtype)
    logits = PagedRun(model).feed(TOKENS, [7, 1])
    expected = reference_logits(reference, TOKENS)
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().mean() < 0.1 * expected.std()


class TestInt8:
    def test_logits_equal_a_reference_with_rounded_weights(self, tmp_path):
        """Exactly the stated rounding, in every linear layer, the tied head included."""
        config = transformers.LlamaConfig(**_SHAPE | {"tie_word_embeddings": True})
        reference = tiny_checkpoint(config, tmp_path)
        reference.lm_head.weight = torch.nn.Parameter(reference.lm_head.weight.clone())
        for module in reference.modules():
            if isinstance(module, torch.nn.Linear):
                weight, scale = quantize_rows(module.weight.data)
                module.weight.data = weight.float() * scale[:, None]
        expected = reference_logits(reference, TOKENS)
        logits = logits_of(tmp_path, quantization="int8")
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)

    def test_rows_of_zeros_and_extremes_round_trip(self):
        weight = torch.tensor([[0.0, 0.0], [127.0, -127.0], [1e-30, -5e-31], [3e38, 1.0]])
        quantized, scale = quantize_rows(weight)
        assert scale.isfinite().all() and (scale > 0).all()
        assert quantized[0].tolist() == [0, 0]
        assert quantized[1].tolist() == [127, -127]
        restored = quantized.float() * scale[:, None]
        assert ((restored - weight).abs() <= scale[:, None] / 2 + 1e-30).all()

    def test_models_with_experts_are_refused(self, tmp_path):
        from tests.contract.models.test_families import CASES

        tiny_checkpoint(CASES["mixtral"], tmp_path)
        with pytest.raises(ValueError, match="int8 does not support models with experts"):
            load_tiny(tmp_path, quantization="int8")

    def test_unknown_method_lists_the_known(self, reference, tmp_path):
        with pytest.raises(ValueError, match="unknown quantization 'int3'; known: fp8, fp8_block"):
            load_tiny(tmp_path, quantization="int3")


class TestFp8:
    @pytest.fixture(autouse=True)
    def plain_ops(self, platform):
        if platform != "reference":
            pytest.skip("8-bit floats are refused on a CPU")

    def test_logits_equal_a_reference_with_rounded_weights(self, tmp_path):
        """Exactly the stated rounding, in every linear layer but the head."""
        reference = tiny_checkpoint(transformers.LlamaConfig(**_SHAPE), tmp_path)
        for name, module in reference.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                weight, scale = fp8.quantize_rows(module.weight.data)
                module.weight.data = weight.float() * scale[:, None]
        expected = reference_logits(reference, TOKENS)
        logits = logits_of(tmp_path, quantization="fp8")
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)

    def test_rows_of_zeros_and_extremes_round_trip(self):
        weight = torch.tensor([[0.0, 0.0], [448.0, -448.0], [3e38, 1.0]])
        quantized, scale = fp8.quantize_rows(weight)
        assert scale.isfinite().all() and (scale > 0).all()
        assert torch.equal((quantized.float() * scale[:, None])[:2], weight[:2])
        assert quantized[2].tolist() == [448.0, 0.0]

    @pytest.mark.parametrize("form", ["{1}", "{0}_proj.{1}", "{0}_proj.output_scale"])
    def test_cache_scales_of_the_checkpoint_are_used(self, reference, tmp_path, form):
        """Keys and values that 8 bits cannot hold without them."""

        def enlarge(tensors):
            for name, tensor in tensors.items():
                for part, factor in (("q", 1e-4), ("k", 1e4), ("v", 1e4), ("o", 1e-4)):
                    if f".{part}_proj." in name:
                        tensor.mul_(factor)

        def add_scales(tensors):
            for layer in range(_SHAPE["num_hidden_layers"]):
                for part in "kv":
                    name = form.format(part, f"{part}_scale")
                    name = f"model.layers.{layer}.self_attn.{name}"
                    tensors[name] = torch.tensor([100.0])

        def error(**options):
            logits = PagedRun(load_tiny(tmp_path), **options).feed(TOKENS, [7, 1])
            return (logits - expected).abs().mean() / expected.std()

        expected = reference_logits(reference, TOKENS)
        edit_weights(tmp_path, enlarge)
        assert error(cache_dtype=torch.float8_e4m3fn) > 0.3
        edit_weights(tmp_path, add_scales)
        assert 0.001 < error(cache_dtype=torch.float8_e4m3fn) < 0.1
        assert error() < 0.001  # a cache of the model's own type needs none

    def test_a_cache_of_8_bit_floats_stays_near_float32(self, reference, tmp_path):
        run = PagedRun(load_tiny(tmp_path), cache_dtype=torch.float8_e4m3fn)
        logits, expected = run.feed(TOKENS, [7, 1]), reference_logits(reference, TOKENS)
        error = (logits - expected).abs().mean() / expected.std()
        assert 0.001 < error < 0.1

    def test_models_with_experts_are_refused(self, tmp_path):
        from tests.contract.models.test_families import CASES

        tiny_checkpoint(CASES["qwen3-moe"], tmp_path)
        with pytest.raises(ValueError, match="fp8 does not support models with experts"):
            load_tiny(tmp_path, quantization="fp8")


class TestDummy:
    def files(self, folder):
        return resolve(folder, format="dummy", weights=())

    def test_same_seed_gives_the_same_model(self, reference, tmp_path):
        def logits(seed):
            model = load_model(self.files(tmp_path), dtype=torch.float32, seed=seed)
            return PagedRun(model).feed(TOKENS, [len(TOKENS)])

        first = logits(1)
        assert first.isfinite().all() and first.std() > 0
        assert torch.equal(first, logits(1))
        assert not torch.equal(first, logits(2))

    def test_layers_differ_from_each_other(self, reference, tmp_path):
        from xllm.modeling.weights.dummy import DummyCheckpoint

        model = load_model(self.files(tmp_path), dtype=torch.float32)
        targets = {name: target for name, (target, _) in model_targets(model).items()}
        checkpoint = DummyCheckpoint(targets, seed=0)
        tensors = dict(checkpoint.tensors(checkpoint.shapes()))
        first, second = (tensors[f"model.layers.{i}.mlp.up_proj.weight"] for i in (0, 1))
        assert not torch.equal(first, second)
        assert torch.equal(tensors["model.norm.weight"], torch.ones(48))


def test_multimodal_checkpoint_loads_its_text_part(tmp_path):
    """Names as published: the language model below its own prefix, vision beside it."""
    from tests.contract.models.test_families import CASES

    reference = tiny_checkpoint(CASES["gemma3"], tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    nested = {"model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    tensors = safetensors.torch.load_file(tmp_path / WEIGHTS)
    published = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    published["vision_tower.patch.weight"] = torch.zeros(3)
    safetensors.torch.save_file(published, tmp_path / WEIGHTS)
    torch.testing.assert_close(
        logits_of(tmp_path), reference_logits(reference, TOKENS), atol=TOLERANCE, rtol=0
    )
