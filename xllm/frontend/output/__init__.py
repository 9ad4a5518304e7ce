"""Engine outputs to text: detokenizing, stop strings, logprobs, usage. No asyncio, no JSON.

Owns the state of every open answer. Knows no API shape and no engine.
Public: ``OutputProcessor``, ``AnswerState``, ``ChoiceDelta``, ``TokenEntry``.
"""

from xllm.frontend.output.answer import AnswerState
from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.output.processor import OutputProcessor, Processed

__all__ = ["AnswerState", "ChoiceDelta", "OutputProcessor", "Processed", "TokenEntry"]
