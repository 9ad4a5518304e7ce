"""The store of responses: bounded in bytes and in time."""

import tracemalloc

import pytest

from xllm.frontend.protocol import RequestError
from xllm.frontend.protocol.chat import ChatMessage, FunctionCall, ToolCall
from xllm.frontend.protocol.responses import (
    FunctionCallItem,
    MessageItem,
    OutputText,
    Reasoning,
    ReasoningItem,
    ReasoningText,
    Response,
    TextConfig,
)
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
        store.messages("a", "previous_response_id")
    assert (caught.value.status, caught.value.param) == (404, "previous_response_id")


def test_what_is_read_is_what_was_put_and_a_copy():
    store = ResponseStore(1 << 20, 60)
    made = entry("a", "x")
    made.response.output = [
        ReasoningItem(id="r", status="completed", content=[ReasoningText("why")]),
        FunctionCallItem(id="f", status="incomplete", call_id="c", name="g", arguments='{"a":'),
        MessageItem(id="m", status="completed", content=[OutputText("é😀")]),
    ]
    made.response.metadata = {"k": "v"}
    made.response.tools = [{"type": "function", "name": "g", "parameters": {"maximum": 10**30}}]
    made.response.tool_choice = {"type": "function", "name": "g"}
    made.input_items = [{"id": "i", "type": "message", "content": [{"type": "input_text"}]}]
    call = ToolCall(FunctionCall("g", {"a": [1, None]}), "c")
    made.messages = [*made.messages, ChatMessage(role="assistant", tool_calls=[call])]
    store.put(made)
    assert store.response("a") == made.response
    assert store.input_items("a") == made.input_items
    assert store.messages("a", "previous_response_id") == made.messages
    made.response.status = "cancelled"
    assert store.response("a").status == "completed"


@pytest.mark.parametrize("kind", ["many small", "long texts", "many turns"])
def test_the_bound_is_one_of_memory(kind):
    """Not of the text's length: a turn of three letters is an object of hundreds of bytes."""
    most = 4 << 20
    store = ResponseStore(most, 60)
    tracemalloc.start()
    try:
        for i in range(60 if kind == "many turns" else 8000):
            made = entry(f"resp_{i:032x}", "y" * 5000 if kind == "long texts" else "")
            if kind == "many turns":
                made.messages = [ChatMessage(role="user", content=str(j)) for j in range(10_000)]
            store.put(made)
            del made
        store.check()
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert most * 0.6 < store.num_bytes <= most
    assert held_bytes < most * 1.1


def test_a_deleted_response_is_gone():
    store = ResponseStore(10_000, 60)
    store.put(entry("a"))
    store.delete("a")
    assert (held(store, "a"), len(store), store.num_bytes) == ([], 0, 0)
    with pytest.raises(RequestError):
        store.delete("a")
