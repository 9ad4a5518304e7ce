"""Configuration: one frozen dataclass per topic, resolved once into a new ``XllmConfig``.

Fields carry their own help sentence; flags, ``--help`` and the reference page are generated from
them (``flags``). Nothing writes to a config after ``assembly.resolve``.
"""

from xllm.core.config.cache import CacheConfig
from xllm.core.config.execution import ExecutionConfig
from xllm.core.config.lora import LoraConfig
from xllm.core.config.model import ModelConfig
from xllm.core.config.observability import ObservabilityConfig
from xllm.core.config.root import XllmConfig
from xllm.core.config.scheduler import SchedulerConfig
from xllm.core.config.server import ServerConfig

__all__ = [
    "CacheConfig",
    "ExecutionConfig",
    "LoraConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "SchedulerConfig",
    "ServerConfig",
    "XllmConfig",
]
