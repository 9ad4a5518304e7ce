import hashlib
import json

import pytest

from xllm.entrypoints.cli.bench import workloads

QWEN_VOCAB = 151936
# Figures are compared across versions and engines: these requests must never change.
PINNED = [
    ("sharegpt-like", 1000, QWEN_VOCAB, "d1e6ed6a85bc72d0"),
    ("sharegpt-like", 100, 49152, "312c5987c950bcf7"),
    ("fixed:128:128", 16, QWEN_VOCAB, "f2560f5e6d248e40"),
    ("shared-prefix", 256, QWEN_VOCAB, "428ae326d0d38778"),
]


def digest(requests):
    plain = [[request.prompt_token_ids, request.max_tokens] for request in requests]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


@pytest.mark.parametrize(("spec", "count", "vocab_size", "wanted"), PINNED)
def test_requests_are_those_of_every_earlier_run(spec, count, vocab_size, wanted):
    assert digest(workloads.load(spec, count, vocab_size)).startswith(wanted)


def test_another_seed_gives_other_requests():
    first = workloads.load("fixed:8:8", 4, 49152)
    assert workloads.load("fixed:8:8", 4, 49152, seed=1) != first


def test_shared_prefix_takes_its_lengths_from_the_name():
    requests = workloads.load("shared-prefix:20:3:5", 4, 49152)
    prompts = [request.prompt_token_ids for request in requests]
    assert {tuple(prompt[:20]) for prompt in prompts} == {tuple(prompts[0][:20])}
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert {(len(r.prompt_token_ids), r.max_tokens) for r in requests} == {(23, 5)}


def test_a_toy_vocabulary_has_no_ids_to_spare():
    (request,) = workloads.load("fixed:500:1", 1, 259)
    assert min(request.prompt_token_ids) >= 0 and max(request.prompt_token_ids) < 259


def test_a_repeated_run_keeps_lengths_and_changes_every_token():
    requests = workloads.load("sharegpt-like", 20, 49152)
    again = workloads.shifted(requests, 1, 49152)
    for before, after in zip(requests, again, strict=True):
        assert after.max_tokens == before.max_tokens
        pairs = zip(before.prompt_token_ids, after.prompt_token_ids, strict=True)
        assert all(a != b and 100 <= b < 47152 for a, b in pairs)
    assert workloads.shifted(requests, 0, 49152) == requests


def test_a_file_brings_its_own_requests(tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": [1, 2], "max_tokens": 3}\n{"prompt": [4], "max_tokens": 5}\n')
    assert workloads.load(str(path), 1, 100) == [workloads.BenchRequest([1, 2], 3)]


@pytest.mark.parametrize("line", ["[]", "{}", '{"prompt": "text", "max_tokens": 1}', "nonsense"])
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "requests.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"requests\.jsonl:1"):
        workloads.load(str(path), 1, 100)


@pytest.mark.parametrize(
    "spec", ["sharegpt", "fixed:1", "fixed:0:1", "fixed:a:b", "shared-prefix:1"]
)
def test_an_unknown_dataset_is_refused_by_name(spec):
    with pytest.raises(ValueError, match=spec):
        workloads.load(spec, 1, 49152)
