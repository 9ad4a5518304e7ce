"""Sparse feed-forward blocks: a router and stacked experts.

Owns the experts' stacked weights and how checkpoints fill them; how they are multiplied is an op.
"""

from xllm.modeling.layers.moe.block import SparseMLP
from xllm.modeling.layers.moe.config import ExpertsConfig
from xllm.modeling.layers.moe.experts import Experts, Router

__all__ = ["Experts", "ExpertsConfig", "Router", "SparseMLP"]
