"""The plain loop: schedule, execute, commit."""

from __future__ import annotations

from xllm.control.engine.lifecycle import EngineLoopBase
from xllm.core.messages.server import ToServer


class EngineLoop(EngineLoopBase):
    """One step at a time. For devices that compute inside ``execute``."""

    def step(self) -> list[ToServer]:
        """Run one step if there is one; the messages that it brought.

        Raises:
            EngineDeadError: the worker cannot go on.
        """
        with self._stats.timed():
            plan = self._scheduler.schedule()
            if plan is None:
                self._await_grammars()
                return self._messages(self._scheduler.flush())
            try:
                result = self._worker.execute(plan).result()
            except Exception as error:
                return self._messages(self._fail_step(plan, error))
            return self._messages(self._scheduler.commit(plan, result))
