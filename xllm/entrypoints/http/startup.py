"""What people see while a server starts: phases with seconds, a progress bar, a ready line."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time

from xllm.core.config import XllmConfig
from xllm.core.messages.server import EngineProgress, EngineReady
from xllm.core.observability.logging import escape_controls, get_logger
from xllm.version import __version__

logger = get_logger(__name__)

_BAR_WIDTH = 30
# Greedy and short: a small model may err when it draws, and need not come to an end by itself.
_SHORT = '"max_tokens": 100, "temperature": 0'
_EXAMPLES = {
    "generate": (
        "/v1/completions",
        f'{{"model": "NAME", "prompt": "The capital of France is", {_SHORT}}}',
    ),
    "chat": (
        "/v1/chat/completions",
        '{"model": "NAME", "messages": [{"role": "user", "content": '
        f'"What is the capital of France?"}}], {_SHORT}}}',
    ),
    "embed": ("/v1/embeddings", '{"model": "NAME", "input": "Hello!"}'),
    "classify": ("/v1/classify", '{"model": "NAME", "input": "Hello!"}'),
}


class StartupReport:
    """Writes the start-up story to stderr; a bar only where a terminal can show one.

    Args:
        log_format: ``text`` writes lines for people, ``json`` makes each a record of the log.
    """

    def __init__(self, log_format: str = "text") -> None:
        self._is_log = log_format == "json"
        self._begin = time.monotonic()
        self._phase = ""
        self._phase_begin = self._begin
        self._terminal = sys.stderr.isatty() and not self._is_log

    def banner(self, config: XllmConfig) -> None:
        """The first line."""
        self._line(f"xLLM {__version__}: {escape_controls(config.model.model)}")

    def progress(self, message: EngineProgress) -> None:
        """A phase has begun, or got further."""
        if message.phase != self._phase:
            self.end_phase()
            self._phase, self._phase_begin = message.phase, time.monotonic()
        if self._terminal:
            bar = ""
            if message.fraction >= 0:
                filled = "#" * round(_BAR_WIDTH * min(message.fraction, 1.0))
                bar = f" [{filled:.<{_BAR_WIDTH}}] {message.fraction:4.0%}"
            self._write(f"\r\x1b[K  {message.phase}{bar}")

    def ready(self, ready: EngineReady, config: XllmConfig, url: str, chats: bool) -> None:
        """The last lines: capacity, addresses and what to try next.

        Args:
            ready: the engine's sizes and task.
            config: what was asked for.
            url: scheme, host and port.
            chats: the model has a chat template.
        """
        self.end_phase()
        if ready.num_kv_tokens:
            self._line(
                f"  KV cache: {ready.num_kv_tokens:,} tokens, "
                f"{ready.max_concurrency:.1f} sequences of {ready.max_model_len:,} tokens at once"
            )
        seconds = time.monotonic() - self._begin
        task = "chat" if chats and ready.task == "generate" else ready.task
        page = "chat page: /, " if config.server.enable_web and task == "chat" else ""
        self._line(f"ready in {seconds:.1f} s: {url}/v1  ({page}health: /health)")
        if config.observability.log_level not in ("debug", "info"):
            return  # such as the server that a chat starts for itself
        key = " -H 'Authorization: Bearer KEY'" if config.server.api_key else ""
        path, body = _EXAMPLES[task]
        name = json.dumps(config.model.api_name)[1:-1]
        named = shlex.quote(body.replace("NAME", name))
        self._line(f"try: curl {url}{path} -H 'Content-Type: application/json'{key} -d {named}")

    def end_phase(self) -> None:
        """Say how long the phase took that ran, if one did."""
        if self._phase:
            seconds = time.monotonic() - self._phase_begin
            clear = "\r\x1b[K" if self._terminal else ""
            self._line(f"{clear}  {self._phase}: {seconds:.1f} s")
            self._phase = ""

    def _line(self, text: str) -> None:
        if self._is_log:
            logger.info("%s", text.strip())
        else:
            self._write(text + "\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a reader that left or a full disk stops no server
            sys.stderr.write(text)
            sys.stderr.flush()
