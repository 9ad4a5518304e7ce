"""Running streams first: a prefill takes the tokens that they leave over."""

from __future__ import annotations

from xllm.control.scheduler.policies.base import Phase, RunningLoad


class Policy:
    """Decodes, then started prompts, then new ones: steady inter-token times."""

    groups_prompts = True

    def order(self, waiting: int, running: RunningLoad, budget: int) -> tuple[Phase, ...]:
        """See ``base.Policy``."""
        return Phase.DECODE, Phase.CONTINUE, Phase.ADMIT
