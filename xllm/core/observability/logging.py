"""Loggers whose every record is one line, whatever a client managed to put into it."""

from __future__ import annotations

import datetime
import json
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


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (UTC), ``level``, ``logger``, ``message``.

    A traceback is one string, ``exception``. A record made with ``extra={"fields": {...}}`` has
    these keys too, so that a request's id and figures need not be parsed out of its message.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record's line; JSON escapes what could break it."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_FORMATTERS = {"text": OneLineFormatter, "json": JsonFormatter}


def configure_logging(level: str = "info", form: str = "text") -> None:
    """Send xllm's records (and those of the HTTP server) to stderr in one format.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        form: ``text`` or ``json``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    for name, own_level in ((_ROOT, level.upper()), ("uvicorn", "WARNING"), ("asyncio", "WARNING")):
        target = logging.getLogger(name)
        target.handlers[:] = [handler]
        target.setLevel(own_level)
        target.propagate = False


def get_logger(name: str) -> logging.Logger:
    """The logger of a module. Arguments go through ``%``, prompts and keys do not go in at all."""
    return logging.getLogger(name)
