"""Loggers whose every record is one line, whatever a client managed to put into it."""

from __future__ import annotations

import logging
import re
import sys

_ROOT = "xllm"
# C0 and C1 control characters, DEL and the Unicode line separators.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def escape_controls(text: str) -> str:
    """``text`` with every control character written as an escape such as ``\\n`` or ``\\x1b``."""
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode("ascii"), text)


class OneLineFormatter(logging.Formatter):
    """``LEVEL time [logger] message``; a traceback's lines follow, each marked with a bar."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(asctime)s [%(name)s] %(message)s", "%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's own line."""
        return escape_controls(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """The traceback, marked line by line so that it cannot pass for records."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join("  | " + escape_controls(line) for line in lines)


def configure_logging(level: str = "info") -> None:
    """Send xllm's records (and those of the HTTP server) to stderr in one format.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter())
    for name, own_level in ((_ROOT, level.upper()), ("uvicorn", "WARNING"), ("asyncio", "WARNING")):
        target = logging.getLogger(name)
        target.handlers[:] = [handler]
        target.setLevel(own_level)
        target.propagate = False


def get_logger(name: str) -> logging.Logger:
    """The logger of a module. Arguments go through ``%``, prompts and keys do not go in at all."""
    return logging.getLogger(name)
