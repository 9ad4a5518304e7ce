"""From intake over the scheduler to the text: what ends an answer, with a scripted model."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeEngine
from tests.unit.frontend.test_intake import completion, make_factory
from xllm.core.config.files import ModelFiles
from xllm.core.request.finish import FinishReason
from xllm.frontend.intake import end_token_ids
from xllm.frontend.output import OutputProcessor

SEED = 5
# Ids 2 and 7 end a text of this model, as its generation config says.
FILES = ModelFiles(
    name="m", folder="/", config={}, format="dummy", generation_config={"eos_token_id": [2, 7]}
)


def answer(script, overlap, **fields):
    """Text, finish reason, stop reason and number of tokens of a model's scripted answer."""
    factory = make_factory()
    tokenizer = factory.tokenizer
    eos = end_token_ids(FILES, tokenizer)
    assert {2, 7} <= set(eos)
    factory = make_factory(eos_token_ids=eos)
    tokens = [
        t for part in script for t in (tokenizer.encode(part) if isinstance(part, str) else [part])
    ]
    engine = FakeEngine(overlap=overlap, vocab_size=1000, worker={"scripts": {SEED: tokens}})
    processor = OutputProcessor(tokenizer, eos)
    (request,) = completion(factory, seed=SEED, max_tokens=40, **fields)
    state = processor.add(request)
    engine.loop.submit(request)
    while engine.scheduler.has_work:
        for batch in engine.loop.step():
            for handle, choice in processor.process(batch).stopped:
                engine.loop.abort(handle, choice, stopped=True)
        engine.scheduler.check()
    (delta,) = state.take()
    assert engine.loop.stats().kv_usage == 0.0 and processor.num_open == 0
    return delta.text, delta.finish_reason, delta.stop_reason, state.choices[0].num_tokens


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        (["hello", 2, "more"], {}, ("hello", "stop", None, 2)),
        (["hello", 7, "more"], {}, ("hello", "stop", None, 2)),
        (["hello", 2, "more"], {"stop": ["X"]}, ("hello", "stop", None, 2)),
        (["hello", 7, "more"], {"stop": ["X"]}, ("hello", "stop", None, 2)),
        (["aXb", 7, "more"], {"stop": ["X"]}, ("a", "stop", "X", 2)),
        (["a", 9, 2], {"stop_token_ids": [9]}, ("a", "stop", 9, 2)),
        (["a", 2, 9], {"stop_token_ids": [9]}, ("a", "stop", None, 2)),
        (["a", 2, "b", 7, "c", 9, "d"], {"stop_token_ids": [9], "ignore_eos": True}, None),
    ],
)  # fmt: skip
def test_the_models_ends_and_the_requests_own_all_count(script, fields, expected, overlap):
    """TOK-29: a request's stops add to the model's, of which there are several."""
    text, finish, reason, num_tokens = answer(script, overlap, **fields)
    if expected is None:
        assert (finish, reason, num_tokens) == (FinishReason.STOP.name.lower(), 9, 6)
    else:
        assert (text, finish, reason, num_tokens) == expected
