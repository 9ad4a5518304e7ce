"""API-32: the answer's own processing raises; every endpoint says so, whole or streamed."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from fake_stack import FakeStack, app_of, client_of, error_of

from tests.fakes.engine_client import row
from tests.fakes.services import LENGTH, Stack
from xllm.core.request.finish import FinishReason
from xllm.frontend.parsers import Parsed, TextDelta

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
    "/v1/responses": {"input": "Hi"},
    "/v1/completions": {"prompt": "Hi"},
}


class BrokenParser:
    """Takes a first piece, then raises."""

    called = False

    def __init__(self) -> None:
        self._num_pieces = 0

    def feed(self, text: str) -> Parsed:
        self._num_pieces += 1
        if self._num_pieces > 1:
            raise LookupError("secret detail")
        return Parsed([TextDelta("content", text)])

    def finish(self) -> Parsed:
        raise LookupError("secret detail")


async def ask(path: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Stack]:
    """The response to a request whose answer cannot be read."""
    real, web = Stack(), FakeStack()
    web.services.chat, web.services.completions = real.chat, real.completions
    web.services.messages, web.services.responses = real.messages, real.responses
    made = real.factory.from_chat
    monkeypatch.setattr(
        real.factory, "from_chat", lambda b: dataclasses.replace(made(b), new_parser=BrokenParser)
    )
    async with client_of(app_of(web)) as client:
        task = asyncio.ensure_future(client.post(path, json={**BODIES[path], "stream": stream}))
        handle = await real.request()
        for index, text in enumerate(("one", " two")):
            if index and path == "/v1/completions":
                monkeypatch.setattr(
                    "xllm.frontend.output.choice.Detokenizer.push", lambda *args: 1 / 0
                )
            finish = LENGTH if index else FinishReason.NONE
            real.client.deliver(row(handle, real.ids(text), finish))
            for _ in range(20):
                await asyncio.sleep(0)
        monkeypatch.undo()
        return await task, real


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_read_is_an_error(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    response, stack = asyncio.run(ask(path, stream, monkeypatch))
    assert "secret" not in response.text
    if stream:
        assert response.status_code == 200
        events = [e for e in response.text.split("\n\n") if e]
        told = [json.loads(e.partition("data: ")[2]) for e in events if "[DONE]" not in e]
        assert len(told) == len(events), "a stream that failed does not end as usual"
        failed = [
            e for e in told if e.get("error") or e.get("type") in ("error", "response.failed")
        ]
        assert failed == told[-1:]
        assert "one" in response.text
    elif path == "/v1/messages":
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "api_error"
    else:
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
    assert stack.dispatcher.num_open == 0
