"""The handle on an engine process."""

import asyncio
import socket
import subprocess
import sys

from xllm.assembly.process.launcher import EngineProcess
from xllm.assembly.process.spawn import SpawnedEngine


def test_a_process_whose_start_was_cut_short_is_ended() -> None:
    async def scenario() -> None:
        exits: list[str] = []
        for turns in range(4):  # of the loop, before the start is cancelled
            engine = EngineProcess(exits.append, "cpu")
            starting = asyncio.create_task(engine.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            assert engine.alive == (turns > 0)
            await engine.close()
            assert not engine.alive
        assert exits == []

    asyncio.run(scenario())


def test_a_process_that_is_killed_over_an_unread_ping_leaves_no_error_behind() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            deaf = [sys.executable, "-c", "import time; time.sleep(60)"]
            process = subprocess.Popen(deaf, pass_fds=(theirs.fileno(),))
        exits: list[str] = []
        engine = EngineProcess(exits.append, "cpu", SpawnedEngine(process, ours))
        await engine.start()
        assert await engine.ping(0.01) is None
        engine.kill()
        ended, _ = await asyncio.wait(engine._tasks, timeout=10)
        assert len(ended) == 2 and [task.exception() for task in ended] == [None, None]
        assert len(exits) == 1 and "SIGKILL" in exits[0]
        await engine.close()

    asyncio.run(scenario())
