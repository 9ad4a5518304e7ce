import argparse
import json

import pytest

from tools import flags_reference, metrics_reference
from xllm.core.config.flags import add_flags, config_from, make_config, options, read_file

# A new option is a decision: add it here on purpose.
OPTIONS = {
    "model": "model served_model_name task tokenizer revision dtype quantization load_format "
    "max_model_len chat_template generation_config seed",
    "lora": "enable_lora lora_modules max_loras max_lora_rank",
    "cache": "block_size max_memory_utilization max_cache_size num_kv_tokens kv_cache_dtype "
    "enable_prefix_caching",
    "scheduler": "max_num_seqs max_num_batched_tokens scheduling priority_policy "
    "enable_chunked_prefill async_scheduling max_waiting",
    "execution": "device num_threads attention_backend tensor_parallel_size enforce_eager",
    "server": "host port api_key allowed_origins enable_admin enable_web root_path "
    "shutdown_timeout "
    "max_body_bytes max_n max_prompts max_logprobs max_beam_width max_stop max_logit_bias "
    "max_bad_words response_store_bytes response_store_ttl max_background_responses "
    "request_timeout tool_call_parser reasoning_parser enable_auto_tool_choice",
    "observability": "log_level log_format log_requests log_stats_interval compat_metrics "
    "otlp_traces_endpoint profiler_dir",
}


def parse(*arguments, defaults=None):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser, defaults=defaults)
    return config_from(parser.parse_args(arguments))


def test_the_list_of_options_is_pinned():
    found = {topic: [o.name for o in options([topic])] for topic in OPTIONS}
    assert found == {topic: names.split() for topic, names in OPTIONS.items()}


@pytest.mark.parametrize("tool", [flags_reference, metrics_reference], ids=lambda t: t.PAGE.name)
def test_the_reference_pages_are_current(tool):
    assert tool.PAGE.read_text() == tool.render(), f"run python {tool.__file__}"


def test_every_option_has_a_sentence():
    for option in options():
        assert option.info.help.endswith("."), option.name


def test_flag_beats_file_beats_default(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"max-num-seqs": 8, "block_size": 32}))
    config = parse("--config", str(path), "--max-num-seqs", "4")
    assert config.scheduler.max_num_seqs == 4
    assert config.cache.block_size == 32
    assert config.scheduler.max_num_batched_tokens == 0


def test_defaults_of_a_command_lose_against_the_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"block_size": 32}')
    defaults = {"block_size": 8, "max_num_seqs": 2}
    config = parse("--config", str(path), defaults=defaults)
    assert (config.cache.block_size, config.scheduler.max_num_seqs) == (32, 2)


def test_yaml_says_the_same_as_json(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text("model: here\nenable-prefix-caching: false\napi-key: [a, b]\n")
    config = parse("--config", str(path))
    assert config.model.model == "here"
    assert not config.cache.enable_prefix_caching
    assert config.server.api_key == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"no_such": 1}', "no_such"),
        pytest.param("[" * 5000, "not JSON", id="deep"),
        ('{"max_num_seqs": "8"}', "max_num_seqs"),
        ('{"max_num_seqs": true}', "max_num_seqs"),
        ('{"enable_prefix_caching": 1}', "enable_prefix_caching"),
        ('{"max_num_seqs": 0}', "--max-num-seqs"),
        ("[]", "mapping"),
        ("{", "JSON"),
    ],
)
def test_a_bad_file_is_refused_naming_the_key(tmp_path, text, named):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=named):
        parse("--config", str(path))


def test_the_model_is_positional_or_a_flag():
    assert parse("here").model.model == "here"
    assert parse("--model", "here").model.model == "here"
    assert parse().model.model == "smollm2"


def test_booleans_have_both_forms():
    assert parse("--no-enable-prefix-caching").cache.enable_prefix_caching is False
    assert parse("--enable-prefix-caching").cache.enable_prefix_caching is True
    assert parse().scheduler.async_scheduling is None


def test_a_list_is_repeated_or_json():
    config = parse(
        "--api-key", "a", "--api-key", "b", "--allowed-origins", '["http://x", "http://y"]'
    )
    assert config.server.api_key == ["a", "b"]
    assert config.server.allowed_origins == ["http://x", "http://y"]


def test_an_alias_sets_the_same_option():
    assert parse("--gpu-memory-utilization", "0.5").cache.max_memory_utilization == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 0),
        ("block_size", 0),
        ("max_memory_utilization", 1.5),
        ("max_memory_utilization", float("nan")),
        ("shutdown_timeout", float("inf")),
        ("dtype", "int3"),
        ("port", 65536),
        ("otlp_traces_endpoint", "localhost:4318"),
    ],
)
def test_a_senseless_value_is_refused_naming_the_flag(name, value):
    with pytest.raises(ValueError, match="^--" + name.replace("_", "-")):
        make_config({name: value})


def test_a_folder_for_profiles_that_nothing_could_start_is_refused():
    with pytest.raises(ValueError, match=r"^--profiler-dir needs --enable-admin"):
        make_config({"profiler_dir": "/traces"})
    config = make_config({"profiler_dir": "/traces", "enable_admin": True})
    assert config.observability.profiler_dir == "/traces"


@pytest.mark.parametrize(
    "option", [o for o in options() if o.kind in (int, float)], ids=lambda o: o.name
)
def test_no_number_but_the_seed_may_be_negative(option):
    if option.name == "seed":
        make_config({"seed": -5})
        return
    with pytest.raises(ValueError, match=f"^{option.flag} must be at least"):
        make_config({option.name: -5})


def test_an_unknown_option_lists_the_known():
    with pytest.raises(ValueError, match=r"'max_len'.*max_model_len"):
        make_config({"max_len": 1})


def test_a_misspelt_option_is_answered_with_the_one_that_was_meant(tmp_path):
    with pytest.raises(ValueError, match=r"^unknown option 'max_num_seq' \(did you mean max_num_s"):
        make_config({"max_num_seq": 1})
    file = tmp_path / "c.json"
    file.write_text('{"max-num-seq": 1}')
    with pytest.raises(ValueError, match=r"'max-num-seq' \(did you mean max-num-seqs\?\)$"):
        read_file(file, {option.name: option for option in options()})
