"""xLLM: an LLM inference engine in Python.

``from xllm import LLM, SamplingParams`` runs a model offline; ``xllm serve MODEL`` starts an
OpenAI-compatible server. Attributes load lazily so that ``import xllm`` stays free of torch.
"""

from typing import TYPE_CHECKING, Any

from xllm.version import __version__

if TYPE_CHECKING:
    from xllm.core.request.sampling import SamplingParams
    from xllm.core.request.structured import StructuredOutputsParams
    from xllm.entrypoints.beam import BeamSearchParams
    from xllm.entrypoints.offline import LLM, AsyncLLM, LoRARequest

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "LoRARequest",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in ("LLM", "AsyncLLM", "LoRARequest"):
        from xllm.entrypoints import offline

        return getattr(offline, name)
    if name == "BeamSearchParams":
        from xllm.entrypoints.beam import BeamSearchParams

        return BeamSearchParams
    if name == "SamplingParams":
        from xllm.core.request.sampling import SamplingParams

        return SamplingParams
    if name == "StructuredOutputsParams":
        from xllm.core.request.structured import StructuredOutputsParams

        return StructuredOutputsParams
    raise AttributeError(f"module 'xllm' has no attribute {name!r}")
