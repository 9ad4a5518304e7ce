"""The probe: places of a prompt found, and the distribution there shown."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from tests.fakes import tokenizers
from tests.fakes.engine_client import batch, row
from tests.fakes.services import LENGTH, Stack, run
from xllm.core.messages.server import PromptLogprobs
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.protocol.decode import decode_request
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.sample import SampleRequest
from xllm.frontend.services import SampleService


def literal(value):
    return {"type": "literal", "value": value}


def positions(*values):
    return {"type": "positions", "positions": values}


async def _ask(stack, body):
    service = SampleService(stack.factory, stack.dispatcher, ServedModels("tiny"))
    request = decode_request(SampleRequest, msgspec.json.encode(body))
    task = asyncio.ensure_future(service.sample(request))
    while not stack.client.requests and not task.done():
        await asyncio.sleep(0)
    if stack.client.requests:
        (asked,) = stack.client.requests
        ids, width = asked.prompt_token_ids, asked.params.prompt_logprobs + 1
        # Position p: the token itself with -p, then tokens p, p+1, ... with -p - 0.1, ...
        table = np.array([[t, *range(p, p + width - 1)] for p, t in enumerate(ids)][1:], np.int32)
        values = -np.arange(1, len(ids))[:, None] - np.arange(width)[None] / 10
        part = PromptLogprobs(
            *(asked.handle, 1, table, values.astype(np.float32)),
            np.arange(1, len(ids), dtype=np.int32),
        )
        ended = batch(row(asked.handle, finish=LENGTH), prompt_logprobs=[part])
        stack.client._sink.deliver(ended)
    return msgspec.json.decode(msgspec.json.encode(await task))


def ask(stack=None, **body):
    stack = stack or Stack()
    answer = run(_ask(stack, body))
    stack.dispatcher.check()
    assert stack.dispatcher.num_open == 0
    return answer


def refusal(**body) -> RequestError:
    stack = Stack()
    with pytest.raises(RequestError) as caught:
        run(_ask(stack, body))
    assert not stack.client.requests, "nothing may reach the engine"
    assert caught.value.status == 400
    return caught.value


def test_every_occurrence_of_a_literal_is_shown():
    stack = Stack()
    answer = ask(stack, prompt="two hello world hello", selector=literal("hello"), logprobs=2)
    ids = stack.ids("two hello world hello")
    (hello,) = stack.ids("hello")
    places = [i for i, token in enumerate(ids) if token == hello]
    assert len(places) == 2
    assert answer["object"] == "sample_completion" and answer["model"] == "tiny"
    assert [choice["position"] for choice in answer["choices"]] == places
    for choice, place in zip(answer["choices"], places, strict=True):
        assert (choice["token_id"], choice["token"]) == (hello, "hello")
        assert (choice["logprob"], choice["rank"]) == (-place, place)
        assert [c["token_id"] for c in choice["top_logprobs"]] == [place, place + 1]
    assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
    (request,) = stack.client.requests
    assert request.max_tokens == 0, "nothing is generated"


@pytest.mark.parametrize(
    ("asked", "places"), [((1, 3), [1, 3]), ((-1,), [3]), ((3, 1, -1), [1, 3])]
)
def test_places_by_number(asked, places):
    answer = ask(prompt=[5, 6, 7, 8], selector=positions(*asked))
    assert [choice["position"] for choice in answer["choices"]] == places
    assert [choice["token_id"] for choice in answer["choices"]] == [5 + place for place in places]
    assert all(len(choice["top_logprobs"]) == 5 for choice in answer["choices"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "hello", "selector": literal("two")}, "selector selects nothing"),
        ({"prompt": "hello", "selector": literal("")}, "selector.value must not be empty"),
        ({"prompt": "hello", "selector": literal("hello")}, "selector selects the first token"),
        ({"prompt": [5, 6], "selector": literal("x")}, "selector: a literal needs a prompt"),
        (
            {"prompt": [5, 6], "selector": positions(1, 1, 1)},
            "selector.positions must have at most 2",
        ),
        ({"prompt": [5, 6], "selector": positions(2)}, "selector.positions must be below 2"),
        ({"prompt": [5, 6], "selector": positions(-3)}, "selector.positions must be below 2"),
        ({"prompt": [5, 6], "selector": positions()}, "selector selects nothing"),
        ({"prompt": [5, 6], "selector": positions(1), "logprobs": 0}, "logprobs must be between"),
        ({"prompt": [5, 6], "selector": positions(1), "logprobs": 21}, "logprobs must be between"),
        ({"prompt": [5, 6], "selector": {"type": "regex"}}, "selector"),
        ({"prompt": [5, 6]}, "selector is required"),
        ({"prompt": [5] * 257, "selector": positions(1)}, "prompt has 257 tokens"),
    ],
)
def test_what_cannot_be_probed_is_refused(body, message):
    assert refusal(**body).message.startswith(message)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("text", ["Hello wide world", "Hello é 🙂 world"])
@pytest.mark.parametrize("special", [True, False])
def test_the_token_at_a_character_holds_that_character(kind, text, special):
    tokenizer = getattr(tokenizers, kind)(adds_bos=True)
    ids = tokenizer.encode(text, add_special_tokens=special)
    places = tokenizer.token_at(text, range(len(text)), add_special_tokens=special)
    assert places == sorted(places) and places[0] >= int(special)
    for char, place in zip(text, places, strict=True):
        piece = tokenizer.bytes_of(ids[place])
        assert piece and (char.encode()[:1] in piece or char.isspace())
