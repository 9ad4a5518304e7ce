"""From a grammar's text to something that masks tokens, by llguidance."""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from xllm.core.grammar.vocabulary import Vocabulary
from xllm.core.request.structured import StructuredOutput

# Optional white space of JSON: one blank, or one line break with its indentation.
_WHITESPACE = r"[ ]|\n[ ]{0,24}|\n\t{0,8}"
_MAX_ERROR_CHARS = 300


class GrammarError(ValueError):
    """A grammar that cannot be enforced; the message says why, in one line."""


@functools.cache
def library() -> ModuleType:
    """The library.

    Raises:
        GrammarError: it is not installed.
    """
    try:
        import llguidance
    except ImportError:
        raise GrammarError(
            "structured output needs llguidance: pip install 'xllm[structured]'"
        ) from None
    module: ModuleType = llguidance
    return module


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled grammar; every sequence takes a matcher of its own."""

    vocabulary: Vocabulary
    start: Any  # llguidance.LLMatcher; None where all text is allowed

    def new_matcher(self) -> Any:
        """A matcher at the start, for ``MaskFiller``, if there is one. Takes microseconds."""
        return None if self.start is None else self.start.deep_copy()


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Thread-safe; the library releases the GIL meanwhile.

    Building one takes up to a second for a large vocabulary.

    Raises:
        GrammarError: the library is missing, or the vocabulary has no token to end with.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_token_ids:
            raise GrammarError("the model has no end-of-text token to end a constrained answer")
        self._vocabulary = vocabulary
        self._library = library()
        self._tokenizer = self._library.LLTokenizer(
            _TokenTable(vocabulary), eos_token=list(vocabulary.eos_token_ids)
        )
        self._limits = self._library.LLParserLimits(verbose_errors=False)

    def compile(self, output: StructuredOutput) -> Grammar:
        """Compile one grammar.

        Raises:
            GrammarError: the grammar is wrong, too complex, not supported, or allows no text.
        """
        if output.kind == "free":
            return Grammar(self._vocabulary, None)
        matcher = self._library.LLMatcher(
            self._tokenizer, self._grammar(output), log_level=0, limits=self._limits
        )
        if matcher.is_error():
            raise GrammarError(explain(matcher))
        # A grammar without any finite text only shows when a mask is asked for.
        start = matcher.deep_copy()
        start.compute_bitmask()
        if start.is_error() or (start.is_stopped() and not start.is_accepting()):
            raise GrammarError("no text satisfies it")
        return Grammar(self._vocabulary, matcher)

    def _grammar(self, output: StructuredOutput) -> str:
        matcher = self._library.LLMatcher
        grammar: str
        match output.kind:
            case "json_schema":
                try:
                    grammar = matcher.grammar_from_json_schema(
                        output.text, overrides=json_options(output.compact)
                    )
                except ValueError as error:  # no JSON object at all
                    raise GrammarError(_first_line(str(error))) from None
            case "regex":
                grammar = matcher.grammar_from_regex(output.text)
            case "lark":
                grammar = matcher.grammar_from_lark(output.text)
            case "free":
                raise AssertionError("there is no grammar of it")
        return grammar


def json_options(compact: bool) -> dict[str, Any]:
    """How JSON is written, and that no keyword of a schema is ignored in silence.

    These override ``x-guidance`` of a schema, which could let white space go on for ever.
    """
    options: dict[str, Any] = {
        "item_separator": ",",
        "key_separator": ":",
        "lenient": False,
        "coerce_one_of": False,
    }
    if compact:
        return {**options, "whitespace_flexible": False, "whitespace_pattern": None}
    return {**options, "whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}


class _TokenTable:
    """A vocabulary in the shape that ``LLTokenizer`` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.token_bytes)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def explain(matcher: Any) -> str:
    """Why a matcher has failed, in one line."""
    return _first_line(matcher.get_error())


def _first_line(message: str) -> str:
    lines = [line.strip(" \t^|") for line in message.splitlines()]
    told = [line for line in lines if line and not line.startswith("<state>")]
    # The regex parser puts a drawing between its heading and what is wrong.
    wrong = next((line for line in told if line.startswith("error: ")), None)
    text = f"{told[0]} {wrong}" if told and wrong and wrong != told[0] else " ".join(told[:1])
    return (text or "it cannot be compiled")[:_MAX_ERROR_CHARS]


def ebnf_to_lark(text: str) -> str:
    """A grammar in the style of GBNF (``rule ::= ...``) as Lark.

    Raises:
        GrammarError: it is not one.
    """
    library()
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark: str = any_to_lark(text)
    except (Exception, RecursionError) as error:  # the library raises bare Exception
        raise GrammarError(_first_line(str(error))) from None
    return lark
