"""Every mistake gets the same four-key envelope and the right status."""

import logging
from typing import Any

import pytest
from fake_stack import FakeStack, app_of, call, error_of

from xllm.frontend.protocol.errors import RequestError

COMPLETIONS = "/v1/completions"


def raising(error: Exception) -> FakeStack:
    async def handle(body: Any) -> Any:
        raise error

    return FakeStack(handle)


@pytest.mark.parametrize("body", [b'{"prompt": "x", "ma', b"", b"[1,2]", b'"text"', b"\xff\xfe"])
def test_a_broken_body_is_400(body: bytes) -> None:
    response = call(app_of(FakeStack()), "POST", COMPLETIONS, content=body)
    assert response.status_code == 400
    error_of(response)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/V1/completions", 404),
        ("POST", "/v1//completions", 404),
        ("GET", COMPLETIONS, 405),
        ("POST", "/health", 405),
        ("GET", "/docs", 404),
        ("GET", "/docs", 404),
    ],
)
def test_what_is_not_served_says_so(method: str, path: str, status: int) -> None:
    response = call(app_of(FakeStack()), method, path)
    assert response.status_code == status
    assert path in error_of(response)["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/nowhere", None),
        ("/v1/v1/nowhere", None),
        ("/V1/completions", None),
    ],
)
def test_a_base_url_without_v1_or_with_two_is_told_the_route(path: str, meant: str | None) -> None:
    response = call(app_of(FakeStack()), "POST", path)
    assert response.status_code == 404
    message = error_of(response)["message"]
    assert message.endswith(f"{path} (did you mean {meant}?)" if meant else path)


def test_a_service_error_keeps_its_fields() -> None:
    stack = raising(RequestError(404, "no such model", param="model", code="model_not_found"))
    response = call(app_of(stack), "POST", COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 404
    assert error_of(response) == {
        "message": "no such model",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_a_request_too_deep_to_walk_is_400() -> None:
    async def walk(body: object) -> object:
        return await walk(body)

    response = call(app_of(FakeStack(walk)), "POST", COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 400
    assert "nested too deeply" in error_of(response)["message"]


def test_a_full_queue_is_429_with_retry_after() -> None:
    response = call(
        app_of(raising(RequestError(429, "full"))), "POST", COMPLETIONS, json={"prompt": "x"}
    )
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1


def test_an_unforeseen_error_is_500_and_shows_nothing_of_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack = raising(KeyError("secret detail"))
    with caplog.at_level(logging.ERROR):
        response = call(app_of(stack), "POST", COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert len(caplog.records) == 1


def test_a_request_that_takes_too_long_is_504_and_its_work_is_cancelled() -> None:
    import asyncio

    cancelled = []

    async def handle(body: Any) -> Any:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    app = app_of(FakeStack(handle), request_timeout=0.05)
    response = call(app, "POST", COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 504
    error_of(response)
    assert cancelled == [True]


def test_while_loading_api_calls_are_503_with_retry_after() -> None:
    stack = FakeStack()
    stack.services, stack.state = None, "loading"
    app = app_of(stack)
    for method, path in (("POST", COMPLETIONS), ("GET", "/v1/models"), ("POST", "/tokenize")):
        response = call(app, method, path, json={})
        assert response.status_code == 503
        assert "retry-after" in response.headers
        error_of(response)
    for path in ("/health", "/ready", "/ping"):
        assert call(app, "GET", path).status_code == 503


def test_while_draining_work_is_refused_and_what_is_kept_can_be_fetched() -> None:
    stack = FakeStack()
    stack.draining, stack.state = True, "draining"
    app = app_of(stack)
    for path in (COMPLETIONS, "/v1/responses", "/tokenize"):
        response = call(app, "POST", path, json={"model": "m"})
        assert response.status_code == 503 and "retry-after" in response.headers
        error_of(response)
    assert call(app, "GET", "/v1/models").status_code == 200
