"""Model arguments become files, or an error that says what is wrong."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

from xllm.core.config.model import ModelConfig
from xllm.modeling.weights.bundled import BUNDLED, BundledModel, Wheel
from xllm.modeling.weights.source import resolve_model

CONFIG = {"model_type": "llama", "eos_token_id": 7}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 5}, "merges": []},
    "added_tokens": [{"id": 9, "content": "<s>"}],
}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    write(path / "config.json", CONFIG)
    safetensors.torch.save_file({"w": torch.zeros(2)}, path / "model.safetensors")
    return path


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def resolve(path, **options):
    return resolve_model(ModelConfig(model=str(path), **options))


def test_folder_gives_its_parts(folder):
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"chat_template": "T", "bos_token": "<s>"})
    write(folder / "generation_config.json", {"temperature": 0.6, "eos_token_id": [7, 8]})
    files = resolve(folder)
    assert files.config == CONFIG
    assert files.format == "safetensors"
    assert files.weights == (str(folder / "model.safetensors"),)
    assert files.tokenizer_file == str(folder / "tokenizer.json")
    assert files.vocab_size == 10
    assert files.tokenizer_config["bos_token"] == "<s>"
    assert files.chat_template == "T"
    assert files.eos_token_ids == (7, 8)


def test_tokens_of_the_config_count_too(folder):
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"added_tokens_decoder": {"3": {}, "12": {}}})
    assert resolve(folder).vocab_size == 13


def test_eos_comes_from_the_model_config_without_a_generation_config(folder):
    assert resolve(folder).eos_token_ids == (7,)


@pytest.mark.parametrize("value", ["</s>", [7, "8"], True])
def test_end_tokens_that_are_no_ids_are_named(folder, value):
    write(folder / "generation_config.json", {"eos_token_id": value})
    with pytest.raises(ValueError, match="eos_token_id must be an id or a list of ids, got"):
        _ = resolve(folder).eos_token_ids


def test_template_file_wins_over_the_tokenizer_config(folder):
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"chat_template": "old"})
    write(folder / "chat_template.jinja", "new")
    assert resolve(folder).chat_template == "new"


def test_default_is_taken_from_named_templates(folder):
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"chat_template": named})
    assert resolve(folder).chat_template == "D"


def test_a_template_for_tools_is_taken_by_its_name(folder):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"chat_template": named})
    files = resolve(folder)
    assert (files.chat_template, files.tool_template) == ("D", "T")
    write(folder / "chat_template.jinja", "new D")
    assert resolve(folder).tool_template is None  # files win as a whole
    (folder / "additional_chat_templates").mkdir()
    write(folder / "additional_chat_templates" / "tool_use.jinja", "new T")
    files = resolve(folder)
    assert (files.chat_template, files.tool_template) == ("new D", "new T")
    write(folder / "own.jinja", "own")
    assert resolve(folder, chat_template=str(folder / "own.jinja")).tool_template is None


def test_older_checkpoints_name_special_tokens_in_their_own_file(folder):
    write(folder / "tokenizer.json", TOKENIZER)
    write(folder / "tokenizer_config.json", {"bos_token": None, "eos_token": "</e>"})
    write(folder / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>"})
    config = resolve(folder).tokenizer_config
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</e>")
    write(folder / "tokenizer_config.json", {"bos_token": None, "added_tokens_decoder": {}})
    assert resolve(folder).tokenizer_config["bos_token"] is None


def test_chat_template_option_wins(folder, tmp_path):
    write(tmp_path / "own.jinja", "own")
    assert resolve(folder, chat_template=str(tmp_path / "own.jinja")).chat_template == "own"
    with pytest.raises(ValueError, match="--chat-template: cannot read"):
        resolve(folder, chat_template=str(tmp_path / "absent"))


def test_tokenizer_option_replaces_tokenizer_and_template(folder, tmp_path):
    other = tmp_path / "tokenizer"
    other.mkdir()
    write(other / "tokenizer.json", {"model": {"vocab": [["x", 0.0]] * 4}})
    write(other / "chat_template.json", {"chat_template": "other"})
    files = resolve(folder, tokenizer=str(other))
    assert files.tokenizer_file == str(other / "tokenizer.json")
    assert (files.vocab_size, files.chat_template) == (4, "other")


def test_index_decides_which_shards_count(folder):
    safetensors.torch.save_file({"v": torch.zeros(2)}, folder / "b.safetensors")
    safetensors.torch.save_file({"u": torch.zeros(2)}, folder / "unused.safetensors")
    shards = {"w": "model.safetensors", "v": "b.safetensors"}
    write(folder / "model.safetensors.index.json", {"weight_map": shards})
    names = [path.rsplit("/", 1)[1] for path in resolve(folder).weights]
    assert names == ["b.safetensors", "model.safetensors"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.safetensors", "lacks absent.safetensors"),
        ("../x.safetensors", "outside its folder"),
        (3, "weight_map of model.safetensors.index.json must give every tensor a file"),
    ],
)
def test_bad_shard_names_are_errors(folder, name, message):
    write(folder / "model.safetensors.index.json", {"weight_map": {"w": name}})
    with pytest.raises(ValueError, match=message):
        resolve(folder)


def test_missing_config_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json"):
        resolve(tmp_path)


def test_damaged_config_is_named(folder):
    write(folder / "config.json", "{")
    with pytest.raises(ValueError, match=r"cannot read .*config.json"):
        resolve(folder)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="pickled weights are not read"):
        resolve(folder)


def test_dummy_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    files = resolve(folder, load_format="dummy")
    assert (files.format, files.weights) == ("dummy", ())


def test_a_multimodal_model_that_is_not_read_is_named(folder):
    write(folder / "config.json", {"model_type": "mistral3", "text_config": CONFIG})
    with pytest.raises(ValueError, match=r"model_type 'mistral3' has a text_config .*: gemma3"):
        resolve(folder)


def test_unknown_name_says_what_was_looked_for():
    with pytest.raises(ValueError, match=r"'nonsense' is no local folder.*smollm2.*owner/name"):
        resolve("nonsense")


@pytest.mark.parametrize("name", ["./nonsense", "../nonsense/model", "/nonsense/model.gguf", "~/x"])
def test_a_path_that_is_not_there_is_said_to_be_so(name):
    with pytest.raises(ValueError, match=rf"there is no '{name}'"):
        resolve(name)


def test_a_bundled_model_may_bring_sampling_defaults(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XLLM_CACHE", str(tmp_path / "cache"))
    wheel = Wheel("tiny", "1.0", sha256="", num_bytes=0, members=())
    tiny = BundledModel("tiny", "", "", "", (wheel,), "", {}, {"temperature": 0.2, "top_k": 5})
    monkeypatch.setitem(BUNDLED, "tiny", tiny)
    write(folder / "generation_config.json", {"top_k": 9})
    (tmp_path / "cache" / "models").mkdir(parents=True)
    folder.rename(tmp_path / "cache" / "models" / "tiny-1.0")
    assert resolve("tiny").generation_config == {"temperature": 0.2, "top_k": 9}
    by_path = resolve(tmp_path / "cache" / "models" / "tiny-1.0")
    assert by_path.generation_config == {"top_k": 9}


def test_hub_id_offline_is_a_clear_error(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("someone/some-model", "someone/some-model/file.gguf"):
        with pytest.raises(ValueError, match="cannot get 'someone/some-model'"):
            resolve(name)


def test_a_revision_of_a_bundled_model_is_an_error_before_it_is_fetched(monkeypatch, tmp_path):
    monkeypatch.setenv("XLLM_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"--revision is for models of .* hub: 'minilm' is a bun"):
        resolve("minilm", revision="main")
    with pytest.raises(ValueError, match="'minilm' is a bundled model"):
        resolve("minilm", revision="main", tokenizer=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_revision_of_a_local_path_is_warned_about(folder, caplog, monkeypatch, tmp_path):
    assert resolve(folder, revision="v2").format == "safetensors"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"--revision v2 has no effect: model '{folder}' is a local path"
    import huggingface_hub.constants

    caplog.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="cannot get 'someone/tokenizer'"):
        resolve(folder, revision="v2", tokenizer="someone/tokenizer")
    assert not caplog.records, "there it says which tokenizer"


def test_resolution_imports_no_torch():
    import subprocess
    import sys

    code = "import sys, xllm.modeling.weights.source; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
