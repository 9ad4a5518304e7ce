"""All topics together."""

from __future__ import annotations

import dataclasses

from xllm.core.config.cache import CacheConfig
from xllm.core.config.execution import ExecutionConfig
from xllm.core.config.lora import LoraConfig
from xllm.core.config.model import ModelConfig
from xllm.core.config.observability import ObservabilityConfig
from xllm.core.config.scheduler import SchedulerConfig
from xllm.core.config.server import ServerConfig


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class XllmConfig:
    """Everything that was asked for. Each component receives only its own slice."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    execution: ExecutionConfig = dataclasses.field(default_factory=ExecutionConfig)
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    observability: ObservabilityConfig = dataclasses.field(default_factory=ObservabilityConfig)

    def __post_init__(self) -> None:
        if self.observability.profiler_dir is not None and not self.server.enable_admin:
            raise ValueError(
                "--profiler-dir needs --enable-admin: only the server's /start_profile, an "
                "administration route, starts a profile"
            )
