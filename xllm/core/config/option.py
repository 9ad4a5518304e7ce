"""How a config field describes itself: default, one sentence, and what the flag accepts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class OptionInfo:
    """What ``flags`` needs to know beyond the field's name, type and default."""

    help: str
    choices: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    aliases: tuple[str, ...] = ()
    positional: bool = False
    hidden: bool = False


def option(default: Any, help: str, **info: Any) -> Any:
    """A dataclass field with a help sentence.

    Args:
        default: the default value; a list or dict is copied per instance.
        help: one sentence for people, ending in a full stop.
        **info: the other fields of ``OptionInfo``; ``low``/``high`` are inclusive bounds.
    """
    metadata = {"option": OptionInfo(help, **info)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_bounds(config: Any) -> None:
    """Check every field of a config dataclass against its own bounds and choices.

    Raises:
        ValueError: names the flag, the value and the limit.
    """
    for field in dataclasses.fields(config):
        info: OptionInfo | None = field.metadata.get("option")
        value = getattr(config, field.name)
        if info is None or value is None:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{flag} must be a finite number, got {value}")
        if info.choices is not None and value not in info.choices:
            raise ValueError(f"{flag} must be one of {', '.join(info.choices)}, got {value!r}")
        if info.low is not None and value < info.low:
            raise ValueError(f"{flag} must be at least {info.low:g}, got {value}")
        if info.high is not None and value > info.high:
            raise ValueError(f"{flag} must be at most {info.high:g}, got {value}")
