"""One service per API family: ``async handle(request) -> answer or stream of chunk lists``.

Owns the asyncio side of the frontend. Knows no HTTP and no engine beyond ``EngineClient``.
Public: the services, ``Conversations``, ``OutputDispatcher``, ``ChunkStream``, ``EngineClient``.
"""

from xllm.frontend.services.adapters import AdapterService
from xllm.frontend.services.answers.chunks import ChunkStream
from xllm.frontend.services.answers.conversation import Conversation, Conversations
from xllm.frontend.services.answers.dispatcher import OutputDispatcher
from xllm.frontend.services.answers.engine_client import EngineClient, OutputSink
from xllm.frontend.services.beam import BeamService
from xllm.frontend.services.chat import ChatService
from xllm.frontend.services.completions import CompletionService
from xllm.frontend.services.messages import MessageService
from xllm.frontend.services.models import ModelService
from xllm.frontend.services.pooling import PoolingService
from xllm.frontend.services.render import RenderService
from xllm.frontend.services.response_store import ResponseStore
from xllm.frontend.services.responses import ResponseService
from xllm.frontend.services.sample import SampleService
from xllm.frontend.services.tokenize import TokenizeService

__all__ = [
    "AdapterService",
    "BeamService",
    "ChatService",
    "ChunkStream",
    "CompletionService",
    "Conversation",
    "Conversations",
    "EngineClient",
    "MessageService",
    "ModelService",
    "OutputDispatcher",
    "OutputSink",
    "PoolingService",
    "RenderService",
    "ResponseService",
    "ResponseStore",
    "SampleService",
    "TokenizeService",
]
