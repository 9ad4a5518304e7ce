import numpy as np
import pytest

from tests.fakes.engine_client import batch, row
from tests.unit.offline.engine import TOKENIZER
from xllm.core.messages.server import PromptLogprobs
from xllm.core.request.finish import FinishReason
from xllm.core.request.request import Request
from xllm.core.request.sampling import SamplingParams
from xllm.entrypoints.outputs import Collector
from xllm.frontend.intake import PreparedRequest
from xllm.frontend.output import OutputProcessor


def collect(batches, **fields):
    params = SamplingParams(max_tokens=8, **fields)
    request = Request(
        handle=1,
        request_id="r1",
        prompt_token_ids=np.array([20, 21, 22], np.int32),
        params=params,
        max_tokens=8,
        stop_token_ids=(),
        seed=0,
    )
    processor = OutputProcessor(TOKENIZER, (1,))
    collector = Collector(TOKENIZER.decode)
    answer = collector.open(PreparedRequest(request), processor.add(request, keep_entries=True))
    for each in batches:
        for touched in processor.process(each).touched:
            collector.read(touched)
    return collector.close(answer)


def test_logprobs_hold_the_alternatives_and_the_token_itself():
    steps = [
        batch(row(1, [50]), logprobs=2),
        batch(row(1, [60], FinishReason.LENGTH), logprobs=2),
    ]
    (answer,) = collect(steps, logprobs=2).outputs
    first, second = answer.logprobs
    # The fake's tokens are not among their own two best.
    assert set(first) == {50, 51, 52} and set(second) == {60, 61, 62}
    assert first[50].logprob == pytest.approx(-0.05)
    assert [first[51].rank, first[52].rank] == [1, 2]
    assert first[51].decoded_token == TOKENIZER.decode([51])
    assert answer.cumulative_logprob == pytest.approx(-0.11)


def test_without_logprobs_there_are_none():
    output = collect([batch(row(1, [50], FinishReason.LENGTH))])
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None
    assert output.prompt_logprobs is None


def test_the_first_prompt_token_has_no_logprob():
    part = PromptLogprobs(
        1,
        1,
        np.array([[21, 30], [22, 31]], np.int32),
        np.array([[-1.5, -0.5], [-2.5, -0.25]], np.float32),
        np.array([4, 5], np.int32),
    )
    steps = [batch(row(1, [50], FinishReason.LENGTH), prompt_logprobs=[part])]
    none, second, third = collect(steps, prompt_logprobs=1).prompt_logprobs
    assert none is None
    assert (second[21].logprob, second[21].rank, second[30].rank) == (-1.5, 4, 1)
    assert set(third) == {22, 31}


def test_the_token_that_ends_an_answer_is_kept_but_is_no_text():
    steps = [batch(row(1, [50])), batch(row(1, [1], FinishReason.STOP, stop_token=1))]
    (answer,) = collect(steps).outputs
    assert answer.token_ids == [50, 1]
    assert answer.text == TOKENIZER.decode([50])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
