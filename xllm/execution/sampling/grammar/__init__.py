"""Grammars in the sampler: which tokens each constrained row may take next.

Owns the rows' matchers and the masks of a step. Does not compile: ``core.grammar`` does.
Public: ``GrammarMask``.
"""

from xllm.execution.sampling.grammar.mask import GrammarMask

__all__ = ["GrammarMask"]
