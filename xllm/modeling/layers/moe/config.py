"""The shape of a sparse block. No torch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsConfig:
    """What a sparse block needs to know beyond the hidden size and the activation.

    Raises:
        ValueError: a token would have more experts than there are.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int  # of one expert
    normalize: bool  # the chosen experts' weights sum to one
    biased: bool = False  # router and experts, which are then stored as ``BiasedExperts`` says
    shared_intermediate_size: int = 0  # of one more MLP that sees every token; 0: there is none

    def __post_init__(self) -> None:
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(
                f"config.json: num_experts_per_tok ({self.num_experts_per_token}) must be at most "
                f"the number of experts ({self.num_experts})"
            )
