"""``response_format``, ``structured_outputs`` and their older names to one grammar.

Programs that constrain an answer themselves (forced tool calls) build a
``StructuredOutputsParams``, say ``StructuredOutputsParams(json=schema, after_text="</think>")`` or
``StructuredOutputsParams(grammar=lark)``, and put ``to_grammar(Form(params, "tool_choice"))``
into ``Request.structured_output``; the field named there is the one that errors blame.
"""

from __future__ import annotations

import dataclasses
import json
import re
from decimal import Decimal
from typing import Any

import msgspec

from xllm.core.grammar.compiler import GrammarError, ebnf_to_lark
from xllm.core.request.structured import StructuredOutput, StructuredOutputsParams
from xllm.frontend.intake.structural_tag import tags_to_lark
from xllm.frontend.protocol.sampling import CommonFields, ResponseFormat

MAX_GRAMMAR_BYTES = 256 << 10
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_OBJECTS = 4096  # compiling takes time quadratic in their number
MAX_MULTIPLE = 100_000  # of multipleOf, in units of its last decimal: compiled to as many states
MAX_CHOICES = 4096
MAX_PATTERN_PROPERTIES = 128  # compiling takes time cubic in their number
MAX_GRAMMAR_PARTS = 4096  # rules and groups of Lark: the compiling thread's stack is for so many
# The library reads numbers as doubles: integers beyond this are not told apart, and a range that
# ends at the least one of 64 bits sends it into a recursion without an end.
MAX_EXACT = 1 << 53

# Field of a body -> kind of constraint; the former names of vLLM, then those of SGLang.
_ALIASES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
_FORMATS = "text, json_object, json_schema or structural_tag"
_BOUNDS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
# The library takes nothing but white space between the two; a mere text may say "%json".
_EMBEDDED_SCHEMA = re.compile(r"%json\s*(?=\{)")
_TO_ESCAPE = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What form an answer must have, and the field that says so."""

    params: StructuredOutputsParams
    field: str


def asked_form(body: CommonFields) -> Form | None:
    """The form that a body asks for, under whichever name; None for plain text.

    Raises:
        ValueError: several, or a malformed one; the message starts with the field's name.
    """
    forms = [_of_response_format(body.response_format), _of_structured_outputs(body)]
    for field, kind in _ALIASES.items():
        value = getattr(body, field)
        if value is not None:
            forms.append(Form(_convert(field, {kind: value}), field))
    found = [form for form in forms if form is not None]
    if len(found) > 1:
        raise ValueError(f"{found[1].field} excludes {found[0].field}: give one of them")
    return found[0] if found else None


def asks_for_grammar(body: CommonFields) -> bool:
    """Whether ``asked_form`` has more to do than to look."""
    form = body.response_format
    named = any(getattr(body, field) is not None for field in _ALIASES)
    return named or body.structured_outputs is not None or bool(form and form.type != "text")


def to_grammar(form: Form) -> StructuredOutput:
    """The grammar of a form, checked for size but not compiled.

    Raises:
        ValueError: it is malformed or too large; the message starts with ``form.field``.
    """
    params, field = form.params, form.field
    if params.whitespace_pattern is not None:
        raise ValueError(
            f"{field}.whitespace_pattern is not supported: optional white space is bounded already"
        )
    try:
        kind, text = _lower(params)
    except GrammarError as error:
        raise ValueError(f"{field}: {error}") from None
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise ValueError(f"{field} must have at most {MAX_GRAMMAR_BYTES} bytes, got {num_bytes}")
    return StructuredOutput(
        kind,  # type: ignore[arg-type]
        text,
        params.disable_any_whitespace,
        params.after_token_ids,
        params.after_text,
    )


def check_schema(schema: Any) -> dict[str, Any]:
    """A JSON schema, given as text or value, within the limits of size.

    Raises:
        GrammarError: it is none, or too deep or large to compile in reasonable time.
    """
    if isinstance(schema, str):
        if len(schema) > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"a schema may have at most {MAX_GRAMMAR_BYTES} bytes")
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise GrammarError(f"the schema is not valid JSON: {error}") from None
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError("a JSON schema must be an object")
    _check_size(schema)
    return schema


def _lower(params: StructuredOutputsParams) -> tuple[str, str]:
    """Kind and text of the grammar that enforces the one constraint that is given."""
    if params.json is not None:
        return "json_schema", msgspec.json.encode(check_schema(params.json)).decode()
    if params.regex is not None:
        if not params.regex:
            raise GrammarError("the regular expression must not be empty")
        return "regex", params.regex
    if params.choice is not None:
        return "regex", _choices(params.choice)
    if params.grammar is not None:
        if not params.grammar.strip():
            raise GrammarError("the grammar must not be empty")
        if len(params.grammar) > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"a grammar may have at most {MAX_GRAMMAR_BYTES} bytes")
        is_ebnf = "::=" in params.grammar
        lark = ebnf_to_lark(params.grammar) if is_ebnf else params.grammar
        _check_lark(lark)
        return "lark", lark
    if params.structural_tag is not None:
        return "lark", tags_to_lark(params.structural_tag, check_schema)
    return "json_schema", '{"type":"object"}'


def _choices(choices: tuple[str, ...]) -> str:
    if not choices or not all(choices):
        raise GrammarError("choices must not be empty")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"at most {MAX_CHOICES} choices are possible, got {len(choices)}")
    return "|".join(_TO_ESCAPE.sub(r"\\\g<0>", choice) for choice in dict.fromkeys(choices))


def _of_response_format(form: ResponseFormat | None) -> Form | None:
    if form is None or form.type == "text":
        return None
    value: dict[str, Any]
    if form.type == "json_object":
        value = {"json_object": True} if form.schema is None else {"json": form.schema}
    elif form.type == "json_schema":
        value = {"json": _schema_of(form)}
    elif form.type == "structural_tag":
        value = {"structural_tag": {"structures": form.structures, "triggers": form.triggers}}
    else:
        raise ValueError(f"response_format.type must be {_FORMATS}, got {form.type[:64]!r}")
    return Form(_convert("response_format", value), "response_format")


def _schema_of(form: ResponseFormat) -> Any:
    wrapped = form.json_schema
    if wrapped is None and form.schema is not None:
        return form.schema
    if not isinstance(wrapped, dict):
        raise ValueError("response_format.json_schema must be an object with a schema")
    if not isinstance(schema := wrapped.get("schema"), dict | bool):
        raise ValueError("response_format.json_schema.schema must be a JSON schema object")
    return schema


def _of_structured_outputs(body: CommonFields) -> Form | None:
    value = body.structured_outputs
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("structured_outputs must be an object")
    inner = {key: entry for key, entry in value.items() if not key.startswith("after_")}
    return Form(_convert("structured_outputs", inner), "structured_outputs")


def _convert(field: str, value: dict[str, Any]) -> StructuredOutputsParams:
    try:
        return msgspec.convert(value, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        problem = str(error).replace("`", "").removeprefix("structured_outputs ")
        raise ValueError(f"{field}: {problem}") from None


def _check_size(schema: dict[str, Any]) -> None:
    num_objects = num_patterns = 0
    todo: list[tuple[Any, int, bool]] = [(schema, 1, False)]
    while todo:
        value, depth, is_literal = todo.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise GrammarError(f"a schema may be nested at most {MAX_SCHEMA_DEPTH} deep")
        if isinstance(value, dict):
            num_objects += 1
            _check_multiple(value.get("multipleOf"))
            _check_bounds(value)
            patterns = value.get("patternProperties")
            num_patterns += len(patterns) if isinstance(patterns, dict) else 0
            todo += [
                (entry, depth + 1, is_literal or key in ("const", "enum"))
                for key, entry in value.items()
            ]
        elif isinstance(value, list):
            todo += [(entry, depth + 1, is_literal) for entry in value]
        elif is_literal and isinstance(value, int | float) and abs(value) > MAX_EXACT:
            raise GrammarError("const and enum may have numbers from -2**53 to 2**53 only")
    if num_patterns > MAX_PATTERN_PROPERTIES:
        raise GrammarError(
            f"a schema may have at most {MAX_PATTERN_PROPERTIES} patternProperties, got "
            f"{num_patterns}"
        )
    if num_objects > MAX_SCHEMA_OBJECTS:
        raise GrammarError(
            f"a schema may have at most {MAX_SCHEMA_OBJECTS} objects in it, got {num_objects}"
        )


def _check_multiple(value: object) -> None:
    if isinstance(value, int | float):
        _, digits, exponent = Decimal(str(value)).normalize().as_tuple()
        whole = int("".join(map(str, digits))) * 10 ** min(max(0, int(exponent)), 9)
        if whole > MAX_MULTIPLE:
            raise GrammarError(f"multipleOf may have a value of at most {MAX_MULTIPLE}")


def _check_bounds(schema: dict[str, Any]) -> None:
    """Refuse a range of which no integer is exact."""
    for key, sign in _BOUNDS.items():
        value = schema.get(key)
        if isinstance(value, int | float) and sign * value > MAX_EXACT:
            limit = "at most 2**53" if sign > 0 else "at least -2**53"
            raise GrammarError(f"{key} must be {limit}")


def _check_lark(text: str) -> None:
    """Hold a grammar's nesting, and the schemas in it, to what can be compiled.

    Rules that refer to each other are as deep as there are rules. Marks inside of texts and
    expressions count too: it is an upper bound that needs no parser.
    """
    num_parts = sum(map(text.count, ":([{"))
    if num_parts > MAX_GRAMMAR_PARTS:
        raise GrammarError(
            f"a grammar may have at most {MAX_GRAMMAR_PARTS} colons and opening brackets, got "
            f"{num_parts}"
        )
    for match in _EMBEDDED_SCHEMA.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            raise GrammarError("%json must be followed by a JSON schema") from None
        check_schema(schema)
