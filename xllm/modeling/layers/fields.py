"""Fields of a config, checked by type. No torch: start-up checks read them too."""

from __future__ import annotations

from typing import Any


def positive_int(values: dict[str, Any], name: str, default: int | None) -> int:
    """A positive integer, or as a float; ``default``, if there is one, where the field is missing
    or null.

    Raises:
        ValueError: it is missing and has no default, or it is no positive integer.
    """
    value = values.get(name)
    value = default if value is None else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"config.json: {name} must be a positive integer, got {value!r}")
    return value


def positive_number(values: dict[str, Any], name: str, default: float) -> float:
    """A number above 0; ``default`` where the field is missing or null.

    Raises:
        ValueError: it is something else.
    """
    value = values.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"config.json: {name} must be a number above 0, got {value!r}")
    return float(value)
