"""Rendered requests are what the engine would be given."""

import msgspec
import pytest

from tests.fakes.services import Stack, run
from xllm.frontend.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    RequestError,
    decode_request,
)


def render(schema, **fields):
    stack = Stack()
    body = decode_request(schema, msgspec.json.encode(fields))
    service = stack.render.chat if schema is ChatCompletionRequest else stack.render.completion
    shown = run(service(body))
    assert stack.client.requests == []
    return stack, msgspec.to_builtins(shown)


def test_a_conversation_is_shown_as_text_and_ids():
    messages = [{"role": "user", "content": "Hi"}]
    stack, shown = render(
        ChatCompletionRequest, messages=messages, max_tokens=5, stop_token_ids=[7]
    )
    assert shown["text"] == "[user]Hi[assistant]"
    assert shown["token_ids"] == stack.ids(shown["text"])
    assert shown["num_tokens"] == len(shown["token_ids"])
    assert (shown["max_tokens"], shown["stop_token_ids"]) == (5, [1, 7])
    assert shown["sampling_params"]["max_tokens"] == 5


def test_every_prompt_is_shown():
    stack, shown = render(CompletionRequest, prompt=["one", "two"])
    assert [each["text"] for each in shown["prompts"]] == ["one", "two"]
    assert [each["token_ids"] for each in shown["prompts"]] == [stack.ids("one"), stack.ids("two")]
    _, shown = render(CompletionRequest, prompt=[5, 6])
    assert (shown["prompts"][0]["text"], shown["prompts"][0]["token_ids"]) == (None, [5, 6])


def test_what_would_be_refused_is_refused():
    with pytest.raises(RequestError) as caught:
        render(CompletionRequest, prompt="x", n=10**6)
    assert (caught.value.status, caught.value.param) == (400, "n")
