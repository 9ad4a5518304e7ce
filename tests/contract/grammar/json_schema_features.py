"""One entry per feature of JSON schema: what is enforced, and what is refused with a 400.

``tools/json_schema_reference.py`` writes docs/reference/structured-output.md from it.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Feature:
    """A schema that uses one feature; valid and invalid instances, as compact JSON text.

    Without instances the schema is refused.
    """

    name: str
    schema: Any
    valid: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    note: str = ""

    @property
    def refused(self) -> bool:
        """Whether no answer is constrained by it."""
        return not self.valid


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


_INT, _STR = {"type": "integer"}, {"type": "string"}
_TREE = {
    "$defs": {"n": {**_object(v=_INT, next={"$ref": "#/$defs/n"}), "required": ["v"]}},
    "$ref": "#/$defs/n",
}

FEATURES = [
    Feature("type: string", _STR, ('"a"', '"\\n"'), ("1", "null")),
    Feature("type: integer", _INT, ("0", "-12"), ("1.5", '"1"', "01")),
    Feature("type: number", {"type": "number"}, ("1.5", "-2e3"), ('"x"', "true", ".5")),
    Feature("type: boolean", {"type": "boolean"}, ("true", "false"), ("1", "null")),
    Feature("type: null", {"type": "null"}, ("null",), ("0", "false")),
    Feature("type: array", {"type": "array"}, ("[]", '[1,"a",null]'), ("{}", "1")),
    Feature("type: object", {"type": "object"}, ("{}", '{"a":[1]}'), ("[]", '"a"')),
    Feature("type: list of types", {"type": ["integer", "null"]}, ("3", "null"), ('"a"', "[]")),
    Feature("{} (any value)", {}, ("1", '{"a":null}'), ("x", "")),
    Feature("enum", {"enum": ["a", 2, None]}, ('"a"', "2", "null"), ('"b"', "3")),
    Feature("const", {"const": {"a": 1}}, ('{"a":1}',), ('{"a":2}', "{}")),
    Feature("anyOf", {"anyOf": [_INT, _STR]}, ("1", '"a"'), ("null", "[]")),
    Feature(
        "oneOf, provably disjoint",
        {"oneOf": [_INT, _STR]},
        ("1", '"a"'),
        ("null", "[]"),
    ),
    Feature(
        "oneOf, by a constant property",
        {
            "oneOf": [
                {**_object(k={"const": "a"}, x=_INT), "required": ["k"]},
                {**_object(k={"const": "b"}, y=_INT), "required": ["k"]},
            ]
        },
        ('{"k":"a","x":1}', '{"k":"b","y":1}'),
        ('{"k":"a","y":1}', '{"k":"c"}'),
    ),
    Feature(
        "oneOf, overlapping",
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        note="use anyOf",
    ),
    Feature(
        "allOf",
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
        ("3", "5"),
        ("2", "6"),
    ),
    Feature(
        "$ref, $defs",
        {"$defs": {"a": _INT}, **_object(x={"$ref": "#/$defs/a"})},
        ('{"x":1}', "{}"),
        ('{"x":"a"}',),
    ),
    Feature("recursion", _TREE, ('{"v":1,"next":{"v":2}}',), ('{"next":{"v":2}}', '{"v":"a"}')),
    Feature("recursion without an end", {"$ref": "#"}),
    Feature("$ref to nothing", {"$ref": "#/$defs/none"}),
    Feature("$ref to another document", {"$ref": "https://example.com/a.json"}, note="no network"),
    Feature(
        "pattern", {"type": "string", "pattern": "^[a-c]{2}$"}, ('"ab"',), ('"a"', '"abc"', '"ax"')
    ),
    Feature(
        "pattern without anchors", {"type": "string", "pattern": "b"}, ('"abc"', '"b"'), ('"ac"',)
    ),
    Feature("pattern with look-ahead", {"type": "string", "pattern": "(?=a).*"}),
    Feature(
        "minLength, maxLength",
        {"type": "string", "minLength": 2, "maxLength": 3},
        ('"ab"', '"日本語"'),
        ('"a"', '"abcd"'),
    ),
    Feature(
        "format: date",
        {"type": "string", "format": "date"},
        ('"2024-02-28"',),
        ('"2024-13-01"', '"x"'),
    ),
    Feature(
        "format: date-time",
        {"type": "string", "format": "date-time"},
        ('"2024-02-28T10:00:00Z"',),
        ('"2024-02-28"', '"x"'),
    ),
    Feature(
        "format: uuid",
        {"type": "string", "format": "uuid"},
        ('"123e4567-e89b-12d3-a456-426614174000"',),
        ('"123"',),
    ),
    Feature("format: email", {"type": "string", "format": "email"}, ('"a@b.co"',), ('"ab"',)),
    Feature(
        "format: ipv4", {"type": "string", "format": "ipv4"}, ('"10.0.0.1"',), ('"300.1.1.1"',)
    ),
    Feature("format: unknown", {"type": "string", "format": "colour"}),
    Feature(
        "minimum, maximum", {"type": "integer", "minimum": -3, "maximum": 12}, ("-3", "12"), ("13",)
    ),
    Feature(
        "exclusiveMinimum, exclusiveMaximum",
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        ("0.5",),
        ("0", "1"),
    ),
    Feature("minimum above maximum", {"type": "integer", "minimum": 5, "maximum": 3}),
    Feature("multipleOf", {"type": "integer", "multipleOf": 5}, ("10", "0"), ("7", "11")),
    Feature("items", {"type": "array", "items": _INT}, ("[]", "[1,2]"), ('["a"]',)),
    Feature(
        "prefixItems",
        {"type": "array", "prefixItems": [_INT, _STR], "items": False},
        ('[1,"a"]',),
        ('["a",1]', '[1,"a",2]'),
    ),
    Feature(
        "minItems, maxItems",
        {"type": "array", "items": _INT, "minItems": 1, "maxItems": 2},
        ("[1]", "[1,2]"),
        ("[]", "[1,2,3]"),
    ),
    Feature("uniqueItems", {"type": "array", "uniqueItems": True}),
    Feature("contains", {"type": "array", "contains": _INT}),
    Feature(
        "properties, required",
        {**_object(a=_INT, b=_INT), "required": ["a"]},
        ('{"a":1}', '{"a":1,"b":2}'),
        ('{"b":2}', "{}", '{"a":"x"}'),
        note="in the order of the schema",
    ),
    Feature("additionalProperties: false", _object(a=_INT), ("{}", '{"a":1}'), ('{"a":1,"z":1}',)),
    Feature(
        "additionalProperties: schema",
        {"type": "object", "additionalProperties": _INT},
        ('{"a":1,"b":2}',),
        ('{"a":"x"}',),
    ),
    Feature(
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": _INT}, "additionalProperties": False},
        ('{"n_a":1}',),
        ('{"n_a":"x"}', '{"a":1}'),
    ),
    Feature("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}),
    Feature(
        "minProperties",
        {"type": "object", "minProperties": 2},
        ('{"a":1,"b":2}',),
        ("{}", '{"a":1}'),
    ),
    Feature("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    Feature("not", {"not": {"type": "integer"}}),
    Feature("if, then, else", {"if": _INT, "then": {"minimum": 3}, "else": _STR}),
    Feature("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    Feature("title, description, default", {**_INT, "title": "t", "default": 1}, ("1",), ('"a"',)),
    Feature("unknown type", {"type": "thing"}),
]
