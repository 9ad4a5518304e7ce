from __future__ import annotations

import pytest
import torch

from tests.unit.execution.sampling.helpers import Bench
from xllm.execution.sampling.pipeline import registry
from xllm.execution.sampling.processors import ORDER

INF = float("inf")


def test_every_processor_file_has_its_place_in_the_order():
    assert sorted(ORDER) == registry.names()


def test_presence_and_frequency_count_output_tokens_only():
    bench = Bench(3)
    bench.add(0, [0], (1, 1), presence_penalty=0.5, frequency_penalty=0.25)
    logits = bench.processed([0], torch.tensor([[2.0, 1.0, 0.0]]))
    assert logits.tolist() == [[2.0, 0.0, 0.0]]


def test_repetition_penalty_counts_prompt_and_output():
    bench = Bench(4)
    bench.add(0, [0], (1, 1), repetition_penalty=2.0)
    logits = bench.processed([0], torch.tensor([[2.0, 1.0, 0.0, 3.0]]))
    assert logits.tolist() == [[1.0, 0.5, 0.0, 3.0]]


def test_repetition_penalty_pushes_negative_logits_down():
    bench = Bench(2)
    bench.add(0, [0, 1], repetition_penalty=2.0)
    logits = bench.processed([0], torch.tensor([[-1.0, 1.0]]))
    assert logits.tolist() == [[-2.0, 0.5]]


def test_penalized_short_row_equals_its_solo_result():
    torch.manual_seed(0)
    logits = torch.randn(2, 16)
    params = {"presence_penalty": 1.0, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
    solo = Bench(16)
    solo.add(5, [0], (3,), **params)
    expected = solo.processed([5], logits[:1])
    both = Bench(16)
    both.add(5, [0], (3,), **params)
    both.add(2, [4] * 40, (0, 1, 2), **params)
    assert torch.equal(both.processed([5, 2], logits)[:1], expected)


def test_sampled_tokens_are_counted_as_they_come():
    bench = Bench(3)
    bench.add(0, [0], temperature=0.0, frequency_penalty=1.0)
    logits = torch.tensor([[0.0, 2.5, 2.0]])
    tokens = [int(bench.sample([0], logits).token_ids) for _ in range(5)]
    assert tokens == [1, 2, 1, 2, 1]


def test_penalty_counts_are_rebuilt_when_a_row_resumes_elsewhere():
    bench = Bench(3)
    bench.add(0, [0], temperature=0.0, frequency_penalty=1.0)
    logits = torch.tensor([[0.0, 2.5, 2.0]])
    first = [int(bench.sample([0], logits).token_ids) for _ in range(3)]
    bench.sampler.remove(0)
    bench.add(9, [0], tuple(first), temperature=0.0, frequency_penalty=1.0)
    assert first + [int(bench.sample([9], logits).token_ids) for _ in range(2)] == [1, 2, 1, 2, 1]


def test_a_freed_row_leaves_no_penalty_behind():
    bench = Bench(3)
    bench.add(0, [0], (1,), presence_penalty=2.0)
    bench.sampler.remove(0)
    bench.add(0, [0], temperature=0.0)
    assert bench.processed([0], torch.tensor([[2.0, 1.0, 0.0]])).tolist() == [[2.0, 1.0, 0.0]]


def test_penalty_slots_grow_with_the_rows_that_need_them():
    bench = Bench(8)
    for row in range(12):
        bench.add(row, [row % 8], repetition_penalty=2.0)
    logits = bench.processed(list(range(12)), torch.ones(12, 8))
    expected = torch.ones(12, 8)
    expected[torch.arange(12), torch.arange(12) % 8] = 0.5
    assert torch.equal(logits, expected)


def test_logit_bias_is_added_to_its_row_only():
    bench = Bench(4)
    bench.add(0, [0], logit_bias={1: 5.0, 3: -2.0})
    bench.add(1, [0])
    logits = bench.processed([1, 0], torch.zeros(2, 4))
    assert logits.tolist() == [[0, 0, 0, 0], [0, 5, 0, -2]]


def test_only_allowed_tokens_remain():
    bench = Bench(4)
    bench.add(0, [0], allowed_token_ids=[1, 3, 3])
    bench.add(1, [0])
    logits = bench.processed([0, 1], torch.ones(2, 4))
    assert logits.tolist() == [[-INF, 1, -INF, 1], [1, 1, 1, 1]]


def test_min_tokens_bans_every_ender_until_reached():
    bench = Bench(12)
    bench.add(0, [5], temperature=0.0, min_tokens=5, suppress=(2, 7, 9))
    logits = torch.zeros(1, 12)
    logits[0, [2, 7, 9]] = torch.tensor([5.0, 4.0, 3.0])
    for _ in range(5):
        assert (bench.processed([0], logits)[0, [2, 7, 9]] == -INF).all()
        assert int(bench.sample([0], logits).token_ids) not in (2, 7, 9)
    assert int(bench.sample([0], logits).token_ids) == 2


def test_single_token_bad_word_is_always_banned():
    bench = Bench(4)
    bench.add(0, [0], bad_words=((2,),))
    assert bench.processed([0], torch.zeros(1, 4)).tolist() == [[0, 0, -INF, 0]]


def test_pair_is_banned_only_after_its_first_token_was_generated():
    new, york = 1, 2
    bench = Bench(4)
    bench.add(0, [new], bad_words=((new, york),))  # "New" in the prompt does not count
    bench.add(1, [0], (new,), bad_words=((new, york),))
    bench.add(2, [0], (york,), bad_words=((new, york),))
    banned = bench.processed([0, 1, 2], torch.zeros(3, 4)) == -INF
    assert banned.tolist() == [[False] * 4, [False, False, True, False], [False] * 4]


def test_bad_words_that_end_alike_do_not_undo_each_other():
    bench = Bench(6)
    bench.add(0, [0], (1, 2), bad_words=((2, 5), (3, 5), (1, 2, 5), (4, 4, 4, 4, 4, 5), (3,)))
    banned = bench.processed([0], torch.zeros(1, 6)) == -INF
    assert banned.tolist() == [[False, False, False, True, False, True]]


def test_a_ban_wins_over_any_bias():
    bench = Bench(4)
    bench.add(0, [0], logit_bias={2: 100.0}, min_tokens=3, max_tokens=9, suppress=(2,))
    assert bench.processed([0], torch.zeros(1, 4))[0, 2] == -INF


def test_rows_without_features_stage_nothing():
    bench = Bench(4)
    bench.add(0, [0], logit_bias={2: 1.0})
    bench.add(1, [0])
    assert bench.sampler.stage(bench.step([1])).processors == []


@pytest.mark.parametrize(
    "params",
    [{"logit_bias": {4: 1.0}}, {"allowed_token_ids": [-1]}, {"bad_words": ((4,),)}],
    ids=["bias", "allowed", "bad_words"],
)
def test_ids_outside_the_vocabulary_are_refused(params):
    with pytest.raises(ValueError, match=r"vocabulary size 4|below 4"):
        Bench(4).add(0, [0], **params)
