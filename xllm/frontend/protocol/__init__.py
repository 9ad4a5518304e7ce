"""Wire schemas of the OpenAI-compatible API and its errors, as msgspec structs.

Owns field names, types and the error envelope. Knows no tokenizer, limit or engine.
Public: ``decode_request``, ``RequestError``, ``ErrorResponse`` and one module per endpoint.
"""

from xllm.frontend.protocol.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatMessage,
)
from xllm.frontend.protocol.completions import Completion, CompletionRequest
from xllm.frontend.protocol.decode import decode_request
from xllm.frontend.protocol.errors import ErrorResponse, RequestError
from xllm.frontend.protocol.models import ModelCard, ModelList
from xllm.frontend.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from xllm.frontend.protocol.usage import Usage

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatCompletionRequest",
    "ChatMessage",
    "Completion",
    "CompletionRequest",
    "DetokenizeRequest",
    "DetokenizeResponse",
    "ErrorResponse",
    "ModelCard",
    "ModelList",
    "RequestError",
    "TokenizeRequest",
    "TokenizeResponse",
    "Usage",
    "decode_request",
]
