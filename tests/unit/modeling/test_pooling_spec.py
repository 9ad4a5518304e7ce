import json

import pytest

from tests.fakes.bert import SIZE, write_config, write_sentence_transformers
from xllm.core.config.model import ModelConfig
from xllm.modeling.weights.source import resolve_model


def spec(folder, task="auto", **config):
    write_config(folder, **config)
    return resolve_model(ModelConfig(model=str(folder), task=task, load_format="dummy")).pooling


@pytest.mark.parametrize(
    ("config", "task", "method"),
    [
        ({"architectures": ["BertModel"]}, "embed", "cls"),
        ({"architectures": ["BertForMaskedLM"]}, "embed", "cls"),
        ({"architectures": None}, "embed", "cls"),
        ({"architectures": ["BertForSequenceClassification"]}, "classify", "cls"),
        ({"model_type": "qwen3", "architectures": ["Qwen3Model"]}, "embed", "last"),
        (
            {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
            *("classify", "last"),
        ),
    ],
)
def test_the_architecture_decides(tmp_path, config, task, method):
    found = spec(tmp_path, **config)
    assert (found.task, found.method) == (task, method)
    assert found.whole_prompts == (config.get("model_type", "bert") == "bert")


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_encoders_say_how_many_token_types_they_have(tmp_path, task):
    assert spec(tmp_path, task, type_vocab_size=1).num_token_types == 1
    found = spec(tmp_path, task, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert found.num_token_types is None


@pytest.mark.parametrize("architectures", [["Qwen3ForCausalLM"], None])
def test_a_generator_pools_only_when_asked(tmp_path, architectures):
    config = {"model_type": "qwen3", "architectures": architectures}
    assert spec(tmp_path, **config) is None
    assert spec(tmp_path, "generate", **config) is None
    found = spec(tmp_path, "embed", **config)
    assert (found.method, found.normalize, found.size) == ("last", True, SIZE)


@pytest.mark.parametrize(
    ("mode", "method", "whole"),
    [("mean_tokens", "mean", True), ("cls_token", "cls", True), ("lasttoken", "last", False)],
)
def test_sentence_transformers_files_win(tmp_path, mode, method, whole):
    write_config(tmp_path)
    write_sentence_transformers(tmp_path, mode, normalize=False, max_len=16)
    found = spec(tmp_path, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert (found.task, found.method, found.whole_prompts) == ("embed", method, whole)
    assert (found.normalize, found.max_len) == (False, 16)


def test_the_newer_pooling_file_is_read(tmp_path):
    write_config(tmp_path)
    write_sentence_transformers(tmp_path)
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    assert spec(tmp_path).method == "last"


def test_a_generation_task_does_not_fit_an_encoder(tmp_path):
    with pytest.raises(ValueError, match="--task generate: bert models are encoders"):
        spec(tmp_path, "generate")


@pytest.mark.parametrize("mode", ["max_tokens", "weightedmean_tokens"])
def test_other_poolings_are_refused(tmp_path, mode):
    write_config(tmp_path)
    write_sentence_transformers(tmp_path, mode)
    with pytest.raises(ValueError, match=r"1_Pooling/config.json: pooling must be one of"):
        spec(tmp_path)


@pytest.mark.parametrize(
    "name", ["BertForTokenClassification", "BertForQuestionAnswering", "Qwen2ForRewardModel"]
)
def test_other_heads_are_refused_and_what_is_below_them_can_be_asked_for(tmp_path, name):
    with pytest.raises(ValueError, match=f"the head of {name} is not supported; --task embed"):
        spec(tmp_path, architectures=[name])
    assert spec(tmp_path, "embed", architectures=[name]).task == "embed"


def test_texts_are_lowercased_where_the_files_say_so(tmp_path):
    assert not spec(tmp_path).lowercase
    config = {"max_seq_length": 16, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(config))
    found = spec(tmp_path)
    assert (found.max_len, found.lowercase) == (16, True)


def test_a_default_prompt_is_said_not_to_be_used(tmp_path, caplog):
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    spec(tmp_path)
    assert not caplog.records
    prompts["default_prompt_name"] = "query"
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    spec(tmp_path)
    assert "the default prompt 'query' is not put before texts" in caplog.text


def test_other_modules_are_refused(tmp_path):
    write_config(tmp_path)
    modules = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"modules.json: modules of type Dense"):
        spec(tmp_path)


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({}, ("LABEL_0", "LABEL_1"), "softmax"),
        ({"id2label": {"0": "no", "1": "yes"}}, ("no", "yes"), "softmax"),
        ({"id2label": {"0": "relevant"}}, ("relevant",), "sigmoid"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1"), "sigmoid"),
        ({"id2label": {"0": "x"}, "problem_type": "regression"}, ("x",), "identity"),
        (
            {
                "id2label": {"0": "x"},
                "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
            },
            *(("x",), "identity"),
        ),
    ],
)
def test_labels_and_activation(tmp_path, config, labels, activation):
    found = spec(tmp_path, architectures=["BertForSequenceClassification"], **config)
    assert (found.labels, found.activation, found.size) == (labels, activation, len(labels))


def test_an_unknown_activation_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the activation .my\.Cube. is not supported"):
        spec(tmp_path, "classify", sbert_ce_default_activation_function="my.Cube")


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [({}, None), ({"is_matryoshka": True}, ()), ({"matryoshka_dimensions": [8, 16]}, (8, 16))],
)
def test_matryoshka_sizes(tmp_path, config, dimensions):
    assert spec(tmp_path, **config).dimensions == dimensions
