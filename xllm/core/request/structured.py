"""Constrained output: what a user may ask for, and the one grammar that the engine enforces."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The form that an answer must have. Names follow vLLM; exactly one kind is given.

    ``json`` is a JSON schema (text or value), ``regex`` must match the whole answer, ``choice``
    lists the possible answers, ``grammar`` is Lark (or EBNF in the style of GBNF),
    ``structural_tag`` constrains only what lies between tags:
    ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``.

    A thinking model is constrained only after its reasoning: from the token after the sequence
    ``after_token_ids``, or after the text ``after_text`` was generated. The answer cannot end
    before that.

    Raises:
        ValueError: none or several kinds are given; the message starts with the field's name.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False  # JSON without any optional white space
    whitespace_pattern: str | None = None  # refused: it could let white space go on for ever
    after_token_ids: tuple[int, ...] = ()
    after_text: str = ""

    def __post_init__(self) -> None:
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", tuple(self.choice))
        given = [k for k in KINDS if getattr(self, k) is not None and getattr(self, k) is not False]
        if self.json is False:
            given.append("json")  # a schema that nothing satisfies
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none"
            raise ValueError(f"structured_outputs must have exactly one of {_LIST}, {found}")


_LIST = ", ".join(KINDS[:-1]) + " or " + KINDS[-1]


class ThinkingBudget(msgspec.Struct, frozen=True, array_like=True):
    """How many tokens a model may think before ``end_token_ids`` are forced upon it.

    Thoughts begin after the token ``open_token_id`` or the text ``open_text``, if the model has yet
    to write that, blanks apart; else with the first token.
    """

    num_tokens: int  # at least 0
    end_token_ids: tuple[int, ...]  # at least one: they spell the tag that ends the thoughts
    open_token_id: int | None = None
    open_text: str = ""


class StructuredOutput(msgspec.Struct, frozen=True, array_like=True):
    """A grammar, validated and resolved, as the engine takes it.

    ``text`` is JSON text of a schema, a regular expression or a Lark grammar (the dialect of
    llguidance); kind ``free`` has none, and lets an answer be anything after its thoughts.
    ``compact`` forbids optional white space of JSON; otherwise it is bounded.
    ``after_token_ids`` and ``after_text`` as in ``StructuredOutputsParams``; ``budget`` bounds what
    comes before.
    """

    kind: Literal["json_schema", "regex", "lark", "free"]
    text: str
    compact: bool = False
    after_token_ids: tuple[int, ...] = ()
    after_text: str = ""
    budget: ThinkingBudget | None = None

    @property
    def grammar_key(self) -> tuple[str, str, bool]:
        """Equal for equal grammars, whenever they begin."""
        return self.kind, self.text, self.compact
