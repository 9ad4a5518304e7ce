"""Prompts first: early first tokens, paid for by running streams within a bound."""

from __future__ import annotations

from xllm.control.scheduler.policies.base import Phase, RunningLoad

MAX_STALLED_STEPS = 8


class Policy:
    """Started prompts, then new ones, then decodes.

    After ``MAX_STALLED_STEPS`` steps in a row that left a stream without its token, one step
    serves the streams first.
    """

    groups_prompts = False

    def order(self, waiting: int, running: RunningLoad, budget: int) -> tuple[Phase, ...]:
        """See ``base.Policy``."""
        if running.stalled_steps >= MAX_STALLED_STEPS:
            return Phase.DECODE, Phase.CONTINUE, Phase.ADMIT
        return Phase.CONTINUE, Phase.ADMIT, Phase.DECODE
