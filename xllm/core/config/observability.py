"""Logs and metrics."""

from __future__ import annotations

import dataclasses

from xllm.core.config.option import check_bounds, option


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ObservabilityConfig:
    """What is logged and counted."""

    log_level: str = option(
        "info", "Least severe level that is logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = option(
        "text", "Lines for people, or one JSON object per line.", choices=("text", "json")
    )
    log_requests: bool = option(
        False,
        "Log one line per request, without its text.",
        aliases=("--enable-log-requests",),
    )
    log_stats_interval: float = option(
        10.0, "Seconds between throughput lines while requests run; 0 logs none.", low=0
    )
    compat_metrics: str | None = option(
        None, "Export the metrics under another engine's names too.", choices=("vllm",)
    )

    otlp_traces_endpoint: str | None = option(
        None,
        "URL of an OTLP/HTTP collector that gets a trace of each request, such as "
        "http://localhost:4318/v1/traces.",
    )
    profiler_dir: str | None = option(
        None,
        "Folder for the traces of /start_profile; needs --enable-admin, which serves that route.",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"--otlp-traces-endpoint must start with http:// or https://, got {endpoint!r}"
            )
