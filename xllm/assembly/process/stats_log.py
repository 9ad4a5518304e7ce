"""The throughput line that a busy server logs now and then."""

from __future__ import annotations

import time

from xllm.core.messages.server import EngineStats
from xllm.core.observability.logging import get_logger

logger = get_logger(__name__)


class StatsLog:
    """Logs one line per interval while sequences run; driven by incoming stats, so idle is silent.

    Args:
        interval_seconds: least time between lines; 0 logs none.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._last = EngineStats()
        self._last_time = time.monotonic()

    def take(self, stats: EngineStats) -> None:
        """Log when it is time."""
        now = time.monotonic()
        elapsed = now - self._last_time
        if not self._interval_seconds or elapsed < self._interval_seconds:
            return
        last, self._last, self._last_time = self._last, stats, now
        if stats.num_steps == last.num_steps:
            return
        queries = stats.prefix_queries - last.prefix_queries
        hits = stats.prefix_hits - last.prefix_hits
        logger.info(
            "prompt %.0f tok/s, generation %.0f tok/s, running %d, waiting %d, "
            "KV cache %.1f %%, prefix hits %.1f %%, preempted %d",
            (stats.prompt_tokens - last.prompt_tokens) / elapsed,
            (stats.generation_tokens - last.generation_tokens) / elapsed,
            stats.num_running,
            stats.num_waiting,
            100 * stats.kv_usage,
            100 * hits / queries if queries else 0.0,
            stats.num_preemptions - last.num_preemptions,
        )
        steps, before = stats.worker, last.worker
        graphs = steps.decode_graph_steps + steps.mixed_graph_steps
        graphs -= before.decode_graph_steps + before.mixed_graph_steps
        if graphs and steps.idle_p99_us:  # measured where a device computes beside the host
            logger.info(
                "steps as graphs %.1f %%, device idle between decodes p50 %.0f us, p99 %.0f us",
                100 * graphs / (graphs + steps.eager_steps - before.eager_steps),
                steps.idle_p50_us,
                steps.idle_p99_us,
            )
