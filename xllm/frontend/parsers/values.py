"""Plain text of formats that are not JSON to values of the tool's schema types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Schema = Mapping[str, Any]
_FLAGS = {"true": True, "false": False}


def to_json(value: Any) -> str:
    """JSON text of plain values."""
    return msgspec.json.encode(value).decode()


def to_value(text: str, schema: Schema | None) -> Any:
    """The value that ``text`` means where ``schema`` is asked for.

    A parameter that may be a string is one, unless it may also be something else and the text is
    JSON of that kind. Text that is no value of the asked type stays text: the caller sees what the
    model wrote.
    """
    types = _types(schema)
    if types == {"string"}:
        return text
    bare = text.strip()
    if types & {"boolean"} and bare.lower() in _FLAGS:
        return _FLAGS[bare.lower()]
    if types & {"null"} and bare.lower() in ("null", "none"):
        return None
    try:
        value = msgspec.json.decode(bare)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text
    return value if not types or _type_of(value) & types else text


def _types(schema: Schema | None, depth: int = 0) -> set[str]:
    """Types that a schema allows; empty where it does not say."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {t for t in given if isinstance(t, str)}
    if isinstance(choices := schema.get("enum"), list) and choices:
        return {t for choice in choices for t in _type_of(choice)}
    found: set[str] = set()
    for name in ("anyOf", "oneOf"):
        for option in schema.get(name) or ():
            found |= _types(option, depth + 1)
    return found


def _type_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}
