"""The handle on an engine process."""

import asyncio

from xllm.assembly.process.launcher import EngineProcess


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
