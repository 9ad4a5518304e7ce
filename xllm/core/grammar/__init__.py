"""Grammars that constrain sampling: compiling and caching them, off whatever loop asks.

The only place that knows the library (llguidance, extra ``structured``), for the frontend, which
validates with it, and for the worker, which samples with it. Imports it on first use, torch never.
Public: ``Vocabulary``, ``GrammarCompiler``, ``GrammarError``, ``GrammarCache``, ``Compilation``,
``Grammar``, ``RowMatcher``, ``MaskFiller``, ``num_threads``.
"""

from xllm.core.grammar.cache import Compilation, GrammarCache
from xllm.core.grammar.compiler import Grammar, GrammarCompiler, GrammarError, RowMatcher
from xllm.core.grammar.masks import MaskFiller, num_threads
from xllm.core.grammar.vocabulary import Vocabulary

__all__ = [
    "Compilation",
    "Grammar",
    "GrammarCache",
    "GrammarCompiler",
    "GrammarError",
    "MaskFiller",
    "RowMatcher",
    "Vocabulary",
    "num_threads",
]
