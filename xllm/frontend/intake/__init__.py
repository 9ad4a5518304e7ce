"""Untrusted request fields to a validated, tokenized ``core.request.Request``. No asyncio.

Owns limits, sampling defaults and every check the engine relies on. Knows no stream, no engine.
Public: ``RequestFactory``, ``PoolingFactory``, what they take and make, ``SamplingDefaults``.
"""

from xllm.frontend.intake.defaults import SamplingDefaults, end_token_ids
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.limits import Limits
from xllm.frontend.intake.pooling import PoolingFactory, PoolingOptions

__all__ = [
    "Limits",
    "PoolingFactory",
    "PoolingOptions",
    "PreparedRequest",
    "RequestFactory",
    "SamplingDefaults",
    "end_token_ids",
]
