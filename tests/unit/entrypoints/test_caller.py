"""A traced request's tasks know their caller; nobody else's do."""

from typing import Any

from fake_stack import FakeStack, call

from xllm.core.config import ServerConfig
from xllm.core.observability.tracing import CALLER
from xllm.entrypoints.http.activity import Activity
from xllm.entrypoints.http.app import create_app

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def tell(body: Any) -> Any:
    caller = CALLER.get()
    return {"path": caller.path, "headers": caller.headers} if caller else {}


def answer(traced: bool, **headers: str) -> Any:
    app = create_app(FakeStack(tell), ServerConfig(), Activity(), traced=traced)  # type: ignore[arg-type]
    return call(app, "POST", "/v1/completions", json={"prompt": "x"}, headers=headers).json()


def test_path_and_trace_context_reach_the_service_and_nothing_else_does() -> None:
    expected = {"path": "/v1/completions", "headers": {"traceparent": PARENT}}
    assert answer(True, traceparent=PARENT, cookie="secret") == expected
    assert CALLER.get() is None


def test_without_traces_there_is_no_caller() -> None:
    assert answer(False, traceparent=PARENT) == {}
