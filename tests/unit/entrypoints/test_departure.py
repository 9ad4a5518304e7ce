"""Work inside of ``UntilDisconnect`` ends when the client goes away, and only then."""

import asyncio
import inspect

import anyio
import pytest
from fake_stack import BODY_PATH, FakeStack, app_of, call
from starlette.requests import ClientDisconnect

from xllm.entrypoints.http.departure import UntilDisconnect


class _Client:
    def __init__(self):
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}


def test_departure_cancels_the_work_and_is_told():
    async def main():
        client = _Client()
        ended = []

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)

        asyncio.get_running_loop().call_soon(client.gone.set)
        with pytest.raises(ClientDisconnect):
            async with UntilDisconnect(client.receive):
                await work()
        assert ended
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # nothing is left to cancel this task again

    asyncio.run(main())


def test_work_that_ends_first_ends_the_watch():
    async def main():
        client = _Client()
        async with UntilDisconnect(client.receive):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 2  # the watch is being cancelled
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        client.gone.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())


@pytest.mark.parametrize("first", ["client", "work"])
def test_a_client_that_leaves_in_the_turn_in_which_the_work_ends_cancels_nothing_later(first):
    async def main():
        client, done = _Client(), asyncio.Event()

        async def request():
            ended = False
            try:
                async with UntilDisconnect(client.receive):
                    await asyncio.sleep(0)  # the watch begins to wait
                    await done.wait()
                    ended = True
            except ClientDisconnect:
                assert not ended
            for _ in range(4):
                await asyncio.sleep(0)  # what comes next is not cancelled

        task = asyncio.create_task(request())
        for _ in range(3):
            await asyncio.sleep(0)
        events = [client.gone, done] if first == "client" else [done, client.gone]
        for event in events:
            event.set()
        await task
        assert task.cancelling() == 0

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError, TimeoutError, asyncio.CancelledError])
def test_other_errors_pass(error):
    async def main():
        with pytest.raises(error):
            async with UntilDisconnect(_Client().receive):
                raise error

    asyncio.run(main())


def test_a_cancellation_from_outside_stays_one_even_when_the_client_leaves_too():
    async def main():
        client = _Client()

        async def work():
            async with UntilDisconnect(client.receive):
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        client.gone.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_no_request_waits_for_a_thread(monkeypatch):
    """Plain functions would run on threads, and their results wait for the busy event loop."""

    async def refuse(function, *args, **kwargs):
        raise AssertionError(f"{function} runs on a thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    app = app_of(FakeStack())
    assert call(app, "POST", BODY_PATH, json={"prompt": "x"}).status_code == 200
    assert len(app.state.routes) > 20
    for route in app.state.routes:
        assert inspect.iscoroutinefunction(inspect.unwrap(route.endpoint)), route.path
