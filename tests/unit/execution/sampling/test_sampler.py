from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.unit.execution.sampling.helpers import Bench
from xllm.execution.sampling.rng import exponential, row_keys

NAN = float("nan")


def test_greedy_takes_the_first_largest_logit():
    bench = Bench(4)
    bench.add(0, [0], temperature=0.0)
    assert int(bench.sample([0], torch.tensor([[1.0, 3.0, 3.0, 2.0]])).token_ids) == 1


def test_nan_row_fails_alone():
    bench = Bench(5)
    for row in range(3):
        bench.add(row, [0], temperature=[0.0, 1.0, 0.8][row], top_k=[0, 0, 2][row], seed=7)
    torch.manual_seed(1)
    logits = torch.randn(3, 5)
    clean = bench.sample([0, 1, 2], logits)
    for row in range(3):
        bench.add(row, [0], temperature=[0.0, 1.0, 0.8][row], top_k=[0, 0, 2][row], seed=7)
    for bad in range(3):
        broken = logits.clone()
        broken[bad] = NAN
        bench.lengths[:] = 1
        samples = bench.sample([0, 1, 2], broken)
        good = [row for row in range(3) if row != bad]
        assert not torch.isfinite(samples.best_logits[bad])
        assert torch.isfinite(samples.best_logits[good]).all()
        assert torch.equal(samples.token_ids[good], clean.token_ids[good])
        assert 0 <= int(samples.token_ids[bad]) < 5


def test_a_single_nan_or_infinity_fails_the_row():
    bench = Bench(4)
    for row in (0, 1):
        bench.add(row, [0], temperature=row * 1.0)
    logits = torch.tensor([[0.0, NAN, 9.0, 1.0], [0.0, float("inf"), 1.0, 1.0]])
    best = bench.sample([0, 1], logits).best_logits
    assert not torch.isfinite(best).any()


def test_banning_every_token_fails_the_row():
    bench = Bench(4)
    bench.add(0, [0], allowed_token_ids=[2], bad_words=((2,),))
    best = bench.sample([0], torch.zeros(1, 4)).best_logits
    assert best.tolist() == [float("-inf")]


def test_padded_vocabulary_is_never_sampled_nor_a_logprob():
    bench = Bench(248)
    bench.add(0, [0], temperature=0.0, logprobs=5)
    bench.add(1, [0], temperature=5.0, logprobs=5)
    bench.add(2, [0], temperature=5.0, top_p=0.99, logprobs=5)
    torch.manual_seed(2)
    logits = torch.randn(3, 256)
    logits[:, 248:] = 50.0
    for _ in range(20):
        samples = bench.sample([0, 1, 2], logits)
        assert int(samples.token_ids.max()) < 248
        assert int(samples.logprobs.token_ids.max()) < 248
        assert (samples.logprobs.logprobs > -15).all()


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-7])
def test_tiny_temperature_equals_greedy(temperature):
    bench = Bench(1000)
    bench.add(0, [0], temperature=temperature, seed=3)
    torch.manual_seed(3)
    for _ in range(20):
        logits = torch.randn(1, 1000) * 30
        assert int(bench.sample([0], logits).token_ids) == int(logits.argmax())


def test_tiny_top_p_equals_greedy_even_among_equal_logits():
    bench = Bench(3000)
    bench.add(0, [0], top_p=1e-6, seed=3)
    logits = torch.zeros(1, 3000)
    logits[0, [70, 900, 2000]] = 4.0
    assert {int(bench.sample([0], logits).token_ids) for _ in range(20)} == {70}


def test_top_k_beyond_the_vocabulary_is_off_and_harmless_beside_greedy():
    bench = Bench(50)
    bench.add(0, [0], temperature=0.0)
    bench.add(1, [0], top_k=10_000_000, seed=4)
    bench.add(2, [0], seed=4)
    torch.manual_seed(4)
    tokens = bench.sample([0, 1, 2], torch.randn(1, 50).expand(3, 50)).token_ids
    assert tokens[1] == tokens[2]


def test_top_k_one_equals_greedy():
    bench = Bench(500)
    bench.add(0, [0], top_k=1, temperature=3.0)
    logits = torch.randn(1, 500)
    assert int(bench.sample([0], logits).token_ids) == int(logits.argmax())


def test_a_row_draws_the_same_in_any_batch_and_at_any_row():
    torch.manual_seed(5)
    logits = torch.randn(7, 5000).bfloat16().float()  # bfloat16 makes many ties
    params = [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 40},
        {"temperature": 1.2, "top_p": 0.9},
        {"temperature": 0.7, "min_p": 0.05},
        {"temperature": 0.0},
        {"temperature": 1.5, "top_k": 1500, "top_p": 0.95, "min_p": 0.001},
        {"temperature": 2.0, "top_p": 0.999},
    ]
    together = Bench(5000)
    for i, p in enumerate(params):
        together.add(i, [1, 2], seed=100 + i, **p)
    batch = [together.sample(list(range(7)), logits).token_ids.tolist() for _ in range(8)]
    for i, p in enumerate(params):
        solo = Bench(5000)
        solo.add(40, [1, 2], seed=100 + i, **p)
        alone = [int(solo.sample([40], logits[i : i + 1]).token_ids) for _ in range(8)]
        assert alone == [step[i] for step in batch], p


def test_a_seeded_row_goes_on_alike_after_preemption():
    torch.manual_seed(6)
    logits = torch.randn(1, 300)
    bench = Bench(300)
    bench.add(0, [1, 2, 3], seed=11)
    undisturbed = [int(bench.sample([0], logits).token_ids) for _ in range(12)]
    resumed = Bench(300)
    resumed.add(0, [1, 2, 3], seed=11)
    tokens = [int(resumed.sample([0], logits).token_ids) for _ in range(5)]
    resumed.sampler.remove(0)
    resumed.add(8, [1, 2, 3], tuple(tokens), seed=11)
    tokens += [int(resumed.sample([8], logits).token_ids) for _ in range(7)]
    assert tokens == undisturbed
    assert len(set(tokens)) > 3


def test_different_seeds_draw_differently():
    bench = Bench(300)
    for row in range(8):
        bench.add(row, [0], seed=row)
    assert len(set(bench.sample(list(range(8)), torch.zeros(8, 300)).token_ids.tolist())) > 4


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**63 + 5])
def test_any_64_bit_seed_works(seed):
    bench = Bench(10)
    bench.add(0, [0], seed=seed)
    assert 0 <= int(bench.sample([0], torch.zeros(1, 10)).token_ids) < 10


def _reference(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities by the textbook: temperature, min-p, top-k, top-p over what is left."""
    p = np.exp(logits / temperature - np.max(logits / temperature))
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.7, "top_k": 6, "top_p": 0.95},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params):
    logits = np.array([1.5, 0.3, -0.7, 2.1, 0.9, -1.2, 0.1, 1.1], np.float32)
    expected = _reference(logits.astype(np.float64), **params)
    counts = np.zeros(8)
    num_rows, num_steps = 4000, 50
    bench = Bench(8, max_rows=num_rows)
    for row in range(num_rows):
        bench.add(row, [0], seed=1000 + row, **params)
    batch = torch.from_numpy(logits).expand(num_rows, 8)
    rows = list(range(num_rows))
    for _ in range(num_steps):
        counts += np.bincount(bench.sample(rows, batch).token_ids, minlength=8)
    assert (counts[expected == 0] == 0).all()
    kept = expected > 0
    assert stats.chisquare(counts[kept], counts.sum() * expected[kept]).pvalue > 1e-3


def test_exponential_draws_are_uniform_and_independent_of_neighbours():
    keys = torch.from_numpy(row_keys(np.arange(8), np.full(8, 3)))
    draws = exponential(keys, torch.arange(20_000, dtype=torch.int32)).numpy()
    assert stats.kstest(draws.ravel(), "expon").pvalue > 1e-3
    uniform = np.exp(-draws)
    pairs = np.histogram2d(uniform[:, :-1].ravel(), uniform[:, 1:].ravel(), bins=16)[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3
    rows = np.histogram2d(uniform[0], uniform[1], bins=16)[0]
    assert stats.chisquare(rows.ravel()).pvalue > 1e-3
    later = exponential(
        torch.from_numpy(row_keys(np.arange(8), np.full(8, 4))),
        torch.arange(20_000, dtype=torch.int32),
    ).numpy()
    steps = np.histogram2d(uniform.ravel(), np.exp(-later).ravel(), bins=16)[0]
    assert stats.chisquare(steps.ravel()).pvalue > 1e-3


def test_logprobs_are_raw_with_rank_and_alternatives():
    bench = Bench(6)
    bench.add(0, [0], temperature=0.0, logit_bias={5: 100.0}, logprobs=2)
    bench.add(1, [0], temperature=0.0)
    bench.add(2, [0], temperature=0.0, logprobs=0)
    logits = torch.tensor([[1.0, 4.0, 2.0, 0.0, 3.0, -1.0]]).repeat(3, 1)
    samples = bench.sample([0, 1, 2], logits)
    assert samples.token_ids.tolist() == [5, 1, 1]
    assert samples.logprob_entries.tolist() == [0, 2]
    assert samples.logprob_counts.tolist() == [2, 0]
    found = samples.logprobs
    assert found.token_ids.tolist()[0] == [5, 1, 4]
    assert found.token_ids[1, 0] == 1
    assert found.ranks.tolist() == [6, 1]
    expected = logits[0].log_softmax(0)[[5, 1, 4]]
    torch.testing.assert_close(found.logprobs[0], expected)


def test_logprobs_of_more_alternatives_than_tokens_are_clipped():
    bench = Bench(3)
    bench.add(0, [0], temperature=0.0, logprobs=20)
    assert bench.sample([0], torch.zeros(1, 3)).logprobs.token_ids.shape == (1, 4)
