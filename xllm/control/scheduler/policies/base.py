"""What every scheduling policy offers."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol


class Phase(enum.Enum):
    """A kind of work that takes its share of the step's tokens."""

    DECODE = "decode"  # one token for every stream that runs
    CONTINUE = "continue"  # next chunk of prompts that are partly computed
    ADMIT = "admit"  # first chunk of waiting sequences


class RunningLoad(NamedTuple):
    """Sequences that hold a row."""

    num_decoding: int
    num_prefilling: int
    stalled_steps: int  # consecutive steps that left some decoding sequence without a token


class Policy(Protocol):
    """Decides what goes first when a step's tokens do not reach for all.

    ``groups_prompts`` lets prompts wait for others to fill a step with: see ``FullSteps``.

    Every phase is listed once, so none starves by omission; a policy that puts others before
    DECODE bounds ``stalled_steps``. Pure: equal arguments, equal answer.
    """

    groups_prompts: bool

    def order(self, waiting: int, running: RunningLoad, budget: int) -> tuple[Phase, ...]:
        """The phases in the order in which they draw from the budget.

        Args:
            waiting: sequences in the queue.
            running: what holds rows.
            budget: tokens of this step.
        """
        ...
