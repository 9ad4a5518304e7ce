"""Output processing: text, entries, counts and ends, the same for every grouping of tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.fakes import tokenizers as fakes
from tests.fakes.engine_client import batch, row
from xllm.core.messages.server import Failure, PromptLogprobs, Started
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.output import OutputProcessor
from xllm.frontend.protocol import RequestError

TOKENIZER = fakes.byte_level()
EOS, END = 1, 2


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def make_request(handle=1, prompt="the", **params):
    return Request(
        handle=handle,
        request_id=f"r{handle}",
        prompt_token_ids=np.array(encode(prompt), np.int32),
        params=SamplingParams(max_tokens=None, **params),
        max_tokens=100,
    )


def run(tokens, sizes, finish=FinishReason.LENGTH, stop_token=-1, logprobs=None, **params):
    """Feed tokens in groups; returns the merged delta, the state, and what was stopped."""
    processor = OutputProcessor(TOKENIZER, eos_token_ids=[EOS])
    state = processor.add(make_request(logprobs=logprobs, **params))
    stopped = []
    position = 0
    for i, size in enumerate(sizes):
        last = i == len(sizes) - 1
        group = tokens[position : position + size]
        position += size
        done = processor.process(
            batch(
                row(
                    1,
                    group,
                    finish if last else FinishReason.NONE,
                    stop_token=stop_token if last else -1,
                ),
                logprobs=logprobs,
            )
        )
        stopped += done.stopped
        processor.check()
    assert position == len(tokens)
    return state.take()[0], state, stopped


def groupings(n):
    yield [1] * n
    yield [n]
    rng = random.Random(n)
    for _ in range(5):
        sizes = []
        while sum(sizes) < n:
            sizes.append(min(rng.randrange(1, 5), n - sum(sizes)))
        yield sizes


def test_a_stop_string_cuts_the_same_however_many_tokens_a_step_brings():
    tokens = encode("one two three four five")
    results = []
    for sizes in groupings(len(tokens)):
        delta, state, stopped = run(tokens, sizes, stop=["two"], logprobs=1)
        results.append(
            (delta.text, [e.token_id for e in delta.entries], state.choices[0].num_tokens)
        )
        assert (delta.finish_reason, delta.stop_reason) == ("stop", "two")
        assert stopped in ([(1, 0)], [])
    assert results[0][0] == "one "
    assert all(result == results[0] for result in results)


def test_the_engine_is_told_of_a_stop_string_once_unless_it_had_ended_by_itself():
    tokens = encode("a two b")
    first = tokens.index(encode(" two")[-1]) if encode(" two")[-1] in tokens else 3
    _, _, stopped = run(tokens, [first + 1, len(tokens) - first - 1], stop=["two"])
    assert stopped == [(1, 0)]
    _, _, stopped = run(tokens, [len(tokens)], stop=["two"])
    assert stopped == []


def test_tokens_after_a_stop_string_are_ignored():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(stop=["two"]))
    processor.process(batch(row(1, encode("two"))))
    processor.process(batch(row(1, encode("x"), FinishReason.LENGTH)))
    assert [d.text for d in state.take()] == [""]
    assert processor.num_open == 0


@pytest.mark.parametrize("include", [True, False])
def test_entries_end_with_the_text(include):
    tokens = encode("a two b")
    delta, _, _ = run(
        tokens, [len(tokens)], stop=["two"], include_stop_str_in_output=include, logprobs=0
    )
    joined = b"".join(TOKENIZER.bytes_of(e.token_id) for e in delta.entries).decode()
    assert delta.text == ("a two" if include else "a ")
    assert joined.startswith(delta.text)
    assert delta.offsets[-1] < len(delta.text)


def test_entries_of_a_split_character_come_with_the_character():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(logprobs=0))
    tokens = encode("a😀")
    seen = []
    for i, token in enumerate(tokens):
        last = i == len(tokens) - 1
        finish = FinishReason.LENGTH if last else FinishReason.NONE
        processor.process(batch(row(1, [token], finish), logprobs=0))
        seen += [(d.text, len(d.entries), d.offsets) for d in state.take()]
    assert seen == [("a", 1, [0]), ("😀", 4, [1, 1, 1, 1])]


@pytest.mark.parametrize("sizes", [[1] * 5, [5]])
def test_no_entry_of_a_character_that_a_stop_string_cuts_off_is_shown(sizes):
    delta, _, _ = run(encode("a😀"), sizes, stop=["😀"], logprobs=0)
    assert (delta.text, len(delta.entries)) == ("a", 1)


def test_held_back_text_holds_its_entries_back_and_releases_both_at_the_end():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(stop=["two!"], logprobs=0))
    processor.process(batch(row(1, encode("a two")), logprobs=0))
    held = state.take()[0]
    assert held.text == "a "
    assert b"".join(TOKENIZER.bytes_of(e.token_id) for e in held.entries) in (b"a", b"a ")
    processor.process(batch(row(1, (), FinishReason.LENGTH)))
    rest = state.take()[0]
    assert held.text + rest.text == "a two"
    joined = b"".join(TOKENIZER.bytes_of(e.token_id) for e in [*held.entries, *rest.entries])
    assert joined == b"a two"


@pytest.mark.parametrize(("stop_token", "reason"), [(EOS, None), (END, END)])
def test_a_stop_token_ends_the_text_without_being_text(stop_token, reason):
    tokens = [*encode("hi"), stop_token]
    for sizes in groupings(len(tokens)):
        delta, state, _ = run(
            tokens, sizes, FinishReason.STOP, stop_token, skip_special_tokens=False, logprobs=0
        )
        assert (delta.text, delta.finish_reason, delta.stop_reason) == ("hi", "stop", reason)
        assert state.num_generated_tokens == len(tokens)
        assert delta.token_ids == tokens
        assert len(delta.entries) == len(tokens) - 1


def test_a_stop_token_is_text_when_asked_for():
    delta, _, _ = run(
        [*encode("hi"), *encode("!")],
        [3],
        FinishReason.STOP,
        encode("!")[0],
        include_stop_str_in_output=True,
    )
    assert delta.text == "hi!"


def test_stop_strings_are_not_matched_before_min_tokens():
    tokens = encode("xaxaxa")
    delta, state, _ = run(tokens, [1] * len(tokens), stop=["xa"], min_tokens=3)
    assert (delta.text, state.choices[0].num_tokens) == ("xaxa", 6)
    spread, _, _ = run(tokens, [len(tokens)], stop=["xa"], min_tokens=3)
    assert spread.text == delta.text


def test_a_truncated_character_ends_the_text_as_a_replacement():
    delta, _, _ = run(encode("a😀")[:-1], [4])
    assert delta.text == "a\ufffd"


@pytest.mark.parametrize("stop", [None, ["zz"], ["\ufffd"]])
def test_streamed_text_joins_to_the_whole_for_random_tokens(stop):
    rng = random.Random(5)
    for _ in range(200):
        tokens = [rng.randrange(3, TOKENIZER.vocab_size) for _ in range(rng.randrange(1, 20))]
        results = set()
        for sizes in groupings(len(tokens)):
            for logprobs in (None, 0):
                delta, state, _ = run(tokens, sizes, stop=stop or [], logprobs=logprobs)
                results.add((delta.text, delta.finish_reason, state.num_generated_tokens))
        assert len(results) == 1
        if stop is None:
            assert results.pop()[0] == TOKENIZER.decode(tokens)


def test_unread_parts_merge_into_one_delta():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request())
    for token in encode("hello the world"):
        processor.process(batch(row(1, [token])))
    assert [d.text for d in state.take()] == ["hello the world"]
    assert state.take() == []


def test_choices_advance_apart_and_the_answer_ends_with_the_last():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(n=2))
    processor.process(batch(row(1, encode("a"), choice=1), row(1, encode("b"), choice=0)))
    assert [(d.index, d.text) for d in state.take()] == [(0, "b"), (1, "a")]
    processor.process(batch(row(1, (), FinishReason.LENGTH, choice=1)))
    assert [(d.index, d.finish_reason) for d in state.take()] == [(1, "length")]
    assert not state.finished
    processor.process(batch(row(1, (), FinishReason.STOP, choice=0)))
    assert state.finished
    assert processor.num_open == 0


def test_prompt_logprobs_come_in_order_and_a_repeated_stretch_counts_once():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(prompt="hell", prompt_logprobs=1))
    ids = state.request.prompt_token_ids
    long = processor.add(make_request(handle=2, prompt="abcd", prompt_logprobs=1))
    prompt = long.request.prompt_token_ids

    def part(start, stop):
        return PromptLogprobs(
            2,
            start,
            np.array([[t, t + 1] for t in prompt[start:stop]], np.int32),
            np.full((stop - start, 2), -1.0, np.float32),
            np.ones(stop - start, np.int32),
        )

    processor.process(batch(prompt_logprobs=[part(3, 4), part(1, 3), part(1, 3)]))
    assert [e.token_id for e in long.prompt_logprobs] == prompt.tolist()
    assert [e.logprob for e in long.prompt_logprobs] == [None, -1.0, -1.0, -1.0]
    assert [e.token_id for e in state.prompt_logprobs] == ids[:1].tolist()


def test_started_facts_reach_the_usage():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request(n=2))
    processor.process(batch(started=[Started(1, 0, 16, 0.5), Started(1, 1, 99, 9.0)]))
    assert (state.num_cached_tokens, state.queue_seconds) == (16, 0.5)


def test_a_failure_fails_its_request_with_the_engines_status_and_no_other():
    processor = OutputProcessor(TOKENIZER)
    bad, good = processor.add(make_request(1)), processor.add(make_request(2))
    failure = Failure(1, -1, "prompt needs 9 blocks, the cache has 7", status=400, param="prompt")
    processor.process(batch(row(2, encode("a")), failures=[failure]))
    with pytest.raises(RequestError, match="9 blocks") as caught:
        bad.take()
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    assert good.take()[0].text == "a"


def test_one_failed_choice_ends_the_others_too():
    processor = OutputProcessor(TOKENIZER)
    processor.add(make_request(n=2))
    done = processor.process(batch(failures=[Failure(1, 1, "logits are NaN")]))
    assert done.failed == [1]
    assert processor.num_open == 0


def test_an_exception_in_one_answer_fails_that_answer_alone(monkeypatch):
    processor = OutputProcessor(TOKENIZER)
    bad, good = processor.add(make_request(1)), processor.add(make_request(2))

    def broken(*args):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(bad.choices[0], "push", broken)
    done = processor.process(batch(row(1, encode("a")), row(2, encode("b"))))
    assert done.failed == [1]
    with pytest.raises(RequestError) as caught:
        bad.take()
    assert caught.value.status == 500
    assert "secret" not in caught.value.message
    assert good.take()[0].text == "b"


def test_outputs_for_discarded_requests_are_ignored():
    processor = OutputProcessor(TOKENIZER)
    processor.add(make_request())
    assert processor.discard(1)
    assert not processor.discard(1)
    assert processor.process(batch(row(1, encode("a")))).touched == []


def test_the_engines_death_ends_every_answer_with_503():
    processor = OutputProcessor(TOKENIZER)
    state = processor.add(make_request())
    assert processor.fail_all("the engine is dead") == [state]
    with pytest.raises(RequestError) as caught:
        state.take()
    assert caught.value.status == 503
