"""The store of responses: bounded in bytes and in time."""

import pytest

from xllm.frontend.protocol import RequestError
from xllm.frontend.protocol.chat import ChatMessage
from xllm.frontend.protocol.responses import Reasoning, Response, TextConfig
from xllm.frontend.services.response_store import ResponseStore, StoredResponse


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def entry(name, text=""):
    response = Response(
        id=name, created_at=0, model="m", status="completed", output=[], background=False,
        store=True, tools=[], tool_choice="auto", parallel_tool_calls=True, text=TextConfig(),
        reasoning=Reasoning(), metadata={},
    )  # fmt: skip
    return StoredResponse(response, [], [ChatMessage(role="user", content=text)])


def held(store, *names):
    store.check()
    return [name for name in names if store.has(name)]


def test_the_oldest_make_room():
    probe = ResponseStore(1 << 20, 60)
    probe.put(entry("a", "x" * 500))
    store = ResponseStore(probe.num_bytes * 5 // 2, 60)
    for name in "abc":
        store.put(entry(name, "x" * 500))
    assert held(store, "a", "b", "c") == ["b", "c"]
    store.put(entry("b", "y" * 500))  # a new state of it: now c is the oldest
    store.put(entry("d", "x" * 500))
    assert held(store, "b", "c", "d") == ["b", "d"]
    store.put(entry("e", "x" * 5000))  # larger than the store: not kept, and pushes nothing out
    assert held(store, "b", "d", "e") == ["b", "d"]


def test_entries_live_for_their_time():
    clock = Clock()
    store = ResponseStore(10_000, 60, clock)
    store.put(entry("a"))
    clock.now = 30
    store.put(entry("b"))
    clock.now = 61
    assert held(store, "a", "b") == ["b"]
    with pytest.raises(RequestError) as caught:
        store.get("a", "previous_response_id")
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")


def test_a_deleted_response_is_gone():
    store = ResponseStore(10_000, 60)
    store.put(entry("a"))
    store.delete("a")
    assert (held(store, "a"), len(store), store.num_bytes) == ([], 0, 0)
    with pytest.raises(RequestError):
        store.delete("a")
