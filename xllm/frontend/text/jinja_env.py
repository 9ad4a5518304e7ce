"""The one Jinja environment: sandboxed, with what published chat templates expect to find."""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` marks training targets; here it means nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's contents, rendered in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Says so at once where the usual one makes an unsafe attribute an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """An attribute of the host."""
        raise SecurityError(f"access to attribute {attribute!r} is unsafe")


def make_environment() -> jinja2.Environment:
    """An immutable sandbox: templates reach no attribute, method or module of the host."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment
