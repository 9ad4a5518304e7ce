"""Structural tags: free text in which everything between certain tags follows a schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from xllm.core.grammar.compiler import GrammarError, json_options

MAX_TAGS = 128


class TagStructure(msgspec.Struct, frozen=True):
    """``begin``, then a JSON value of ``schema``, then ``end``."""

    begin: str
    schema: Any = True
    end: str = ""


class StructuralTag(msgspec.Struct, frozen=True):
    """Whenever the text shows a trigger, one of the structures that begin with it must follow."""

    structures: list[TagStructure]
    triggers: list[str]


def tags_to_lark(value: Any, check_schema: Callable[[Any], Any]) -> str:
    """A Lark grammar for a structural tag, given as JSON text or value.

    Raises:
        GrammarError: it is malformed, or has too many tags.
    """
    try:
        if isinstance(value, str):
            tag = msgspec.json.decode(value, type=StructuralTag)
        else:
            tag = msgspec.convert(value, StructuralTag)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = str(error).replace("`", "")
        raise GrammarError(f"structural_tag: {problem}") from None
    _check(tag)
    lines = []
    for number, trigger in enumerate(dict.fromkeys(tag.triggers)):
        bodies = [_body(s, trigger, check_schema) for s in _of_trigger(tag, trigger)]
        lines.append(f"tag_{number}: trigger_{number} ({' | '.join(bodies)})")
        # Lazy: the text before a tag ends where the trigger is first complete.
        lines.append(f"trigger_{number}[lazy]: TEXT {_quoted(trigger)}")
    tags = " | ".join(f"tag_{number}" for number in range(len(lines) // 2))
    return "\n".join([f"start: ({tags})* TEXT", "TEXT: /(.|\\n)*/", *lines]) + "\n"


def _check(tag: StructuralTag) -> None:
    if not tag.structures or not tag.triggers:
        raise GrammarError("structural_tag must have structures and triggers")
    if max(len(tag.structures), len(tag.triggers)) > MAX_TAGS:
        raise GrammarError(f"structural_tag may have at most {MAX_TAGS} structures or triggers")
    if not all(tag.triggers):
        raise GrammarError("structural_tag must not have an empty trigger")
    for structure in tag.structures:
        if not any(structure.begin.startswith(trigger) for trigger in tag.triggers):
            raise GrammarError(
                f"structural_tag: no trigger begins the structure {structure.begin[:64]!r}"
            )
    for trigger in tag.triggers:
        if not _of_trigger(tag, trigger):
            raise GrammarError(f"structural_tag: no structure begins with {trigger[:64]!r}")


def _of_trigger(tag: StructuralTag, trigger: str) -> list[TagStructure]:
    return [structure for structure in tag.structures if structure.begin.startswith(trigger)]


def _body(structure: TagStructure, trigger: str, check_schema: Callable[[Any], Any]) -> str:
    """What follows the trigger."""
    options = {"x-guidance": json_options(compact=False)}
    schema = {**check_schema(structure.schema), **options}
    rest = structure.begin[len(trigger) :]
    parts = [
        _quoted(rest) if rest else "",
        f"%json {json.dumps(schema)}",
        _quoted(structure.end) if structure.end else "",
    ]
    return " ".join(filter(None, parts))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
