"""The same tokens whatever the engine does to get there: float32, greedy and seeded draws."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.contract.equivalence.tiny_engine import (
    EOS,
    MAX_LEN,
    SAMPLED,
    TinyEngine,
    Truth,
    request,
)

_VARIANTS = {
    "batch 16": {},
    "batch 16, overlap": {"overlap": True},
    "no prefix cache": {"prefix_caching": False},
    "no prefix cache, overlap": {"prefix_caching": False, "overlap": True},
    "chunk 16": {"step_tokens": 16},
    "chunk 16, overlap": {"step_tokens": 16, "overlap": True},
    "prefill first": {"scheduling": "prefill_first", "step_tokens": 32},
    "four rows": {"max_rows": 4},
}


@pytest.mark.parametrize("options", _VARIANTS.values(), ids=_VARIANTS)
def test_batched_equals_alone(truth: Truth, options: dict[str, Any]):
    assert TinyEngine(truth.files, **options).run(truth.requests) == truth.tokens


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("step_tokens", [512, 16], ids=["whole prompt", "chunk 16"])
def test_prefix_hits_equal_misses(truth: Truth, overlap: bool, step_tokens: int):
    engine = TinyEngine(truth.files, overlap=overlap, step_tokens=step_tokens)
    assert engine.run(truth.requests) == truth.tokens
    hits = engine.stats.prefix_hits
    assert engine.run(truth.requests) == truth.tokens
    assert engine.stats.prefix_hits > hits


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["prefix cache", "no prefix cache"])
@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("step_tokens", [512, 16], ids=["whole prompt", "chunk 16"])
def test_preempted_equals_undisturbed(
    truth: Truth, overlap: bool, step_tokens: int, prefix_caching: bool
):
    engine = TinyEngine(
        truth.files,
        overlap=overlap,
        step_tokens=step_tokens,
        prefix_caching=prefix_caching,
        num_kv_tokens=MAX_LEN * 3 // 2,
    )
    assert engine.run(truth.requests) == truth.tokens
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("num_kv_tokens", [16 * MAX_LEN, MAX_LEN * 3 // 2], ids=["roomy", "tight"])
def test_four_choices_equal_four_solo_requests(truth: Truth, overlap: bool, num_kv_tokens: int):
    prompt = truth.requests[6].prompt_token_ids.tolist()
    make = functools.partial(request, prompt=prompt, max_tokens=24)
    engine = TinyEngine(truth.files, overlap=overlap, num_kv_tokens=num_kv_tokens)
    greedy = engine.run([make(0, n=4, temperature=0.0)])
    alone = engine.run([make(1, temperature=0.0)])[1, 0]
    assert greedy == {(0, choice): alone for choice in range(4)}
    drawn = engine.run([make(2, n=4, seed=70, **SAMPLED)])
    for choice in range(4):
        solo = TinyEngine(truth.files, prefix_caching=False)
        tokens = solo.run([make(3, seed=70 + choice, **SAMPLED)])
        assert drawn[2, choice] == tokens[3, 0]
    assert len({tuple(t) for t in drawn.values()}) > 1


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("chunk", [7, 16])
def test_prompt_logprobs_do_not_depend_on_chunks_or_cache(
    truth: Truth, chunk: int, warm: bool, overlap: bool
):
    """KV-38."""
    prompt = np.random.default_rng(7).integers(0, EOS, 100).tolist()

    def scored(step_tokens: int, warm: bool = False) -> tuple[np.ndarray, ...]:
        engine = TinyEngine(truth.files, step_tokens=step_tokens, overlap=overlap)
        if warm:  # the whole prompt is cached
            engine.run([request(1, prompt, 4)])
        engine.run([request(0, prompt, 0, prompt_logprobs=3)])
        parts = [part for batch in engine.batches for part in batch.prompt_logprobs]
        assert [part.start for part in parts] == [1, *np.cumsum(_sizes(parts))[:-1] + 1]
        columns = ("token_ids", "logprobs", "ranks")
        return tuple(np.concatenate([getattr(p, c) for p in parts]) for c in columns)

    whole, chunked = scored(512), scored(chunk, warm)
    assert whole[0].shape == (len(prompt) - 1, 4)
    assert whole[0][:, 0].tolist() == prompt[1:]
    assert np.array_equal(whole[0], chunked[0])
    np.testing.assert_allclose(whole[1], chunked[1], atol=1e-4)
    assert np.array_equal(whole[2], chunked[2])


def _sizes(parts: list[Any]) -> list[int]:
    return [len(part.ranks) for part in parts]
