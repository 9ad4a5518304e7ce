"""Sampling: logits of a step's rows to tokens, logprobs and failures.

Owns the ordered processor pipeline, the counter-based random numbers and the filters.
Does not own token rows or the model; ``Sampler`` and ``SamplingStep`` are the public names.
"""

from xllm.execution.sampling.sampler import Sampler, Samples
from xllm.execution.sampling.step import RowRequest, SamplingStep

__all__ = ["RowRequest", "Sampler", "Samples", "SamplingStep"]
