"""A request's own times: what is accepted, what is carried, what ends it."""

import asyncio

import pytest

from tests.fakes.engine_client import row
from tests.fakes.services import LENGTH, Stack, collect, run
from xllm.frontend.protocol import RequestError


def test_a_queued_request_ends_at_its_deadline():
    async def scenario():
        stack = Stack()
        task = stack.start("completion", prompt=["a", "b"], deadline_ms=30)
        await stack.request(1)
        done, still = (request.handle for request in stack.client.requests)
        stack.client.deliver(row(done, stack.ids("x"), LENGTH))
        with pytest.raises(RequestError) as caught:
            await task
        assert stack.client.aborted == [(still, -1, False)]
        assert stack.dispatcher.num_open == 0
        stack.dispatcher.check()
        return caught.value

    error = run(scenario())
    assert (error.status, error.code) == (504, "deadline_exceeded")
    assert "30 ms" in error.message


def test_a_stream_keeps_what_came_before_its_deadline():
    async def scenario():
        stack = Stack()
        task = stack.start("chat", stream=True, timeout=0.05)
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("so far")))
        stream = await task
        events = []
        with pytest.raises(RequestError) as caught:
            async for chunks in stream:
                events += chunks
        assert "".join(c.choices[0].delta.content or "" for c in events) == "so far"
        assert stack.client.aborted == [(handle, -1, False)]
        return caught.value

    assert run(scenario()).status == 504


@pytest.mark.parametrize("close", [False, True])
def test_no_clock_outlives_its_request(close):
    async def scenario():
        stack = Stack()
        fired = []
        stack.dispatcher.expire = lambda *args: fired.append(args)
        task = stack.start("completion", stream=True, deadline_ms=30)
        handle = await stack.request()
        stack.client.deliver(row(handle, stack.ids("x")))
        stream = await task
        if close:
            await stream.aclose()
        else:
            stack.client.deliver(row(handle, stack.ids("y"), LENGTH))
            await collect(stream)
        await asyncio.sleep(0.05)
        assert fired == []

    run(scenario())


def test_times_travel_with_the_request():
    async def scenario():
        stack = Stack()
        stack.start("chat", ttft_slo_ms=200, tpot_slo_ms=50.5, timeout=2).add_done_callback(str)
        await stack.request()
        return stack.client.requests[0].targets

    targets = run(scenario())
    assert (targets.ttft_slo_ms, targets.tpot_slo_ms, targets.deadline_ms) == (200, 50.5, 2000)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"deadline_ms": 1e30}, "deadline_ms"),
        ({"timeout": 86401}, "timeout"),
        ({"timeout": 1, "deadline_ms": 1000}, "timeout"),
        ({"ttft_slo_ms": 0}, "ttft_slo_ms"),
        ({"tpot_slo_ms": 1e9}, "tpot_slo_ms"),
    ],
)
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_impossible_times_are_refused(kind, fields, param):
    async def scenario():
        with pytest.raises(RequestError) as caught:
            await Stack().start(kind, **fields)
        return caught.value

    error = run(scenario())
    assert (error.status, error.param) == (400, param)
