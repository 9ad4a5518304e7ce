"""From a grammar's text to something that masks tokens, by llguidance."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from xllm.core.grammar.vocabulary import Vocabulary
from xllm.core.request.structured import StructuredOutput

# Optional white space of JSON: one blank, or one line break with its indentation.
_WHITESPACE = r"[ ]|\n[ ]{0,24}|\n\t{0,8}"
_MAX_ERROR_CHARS = 300
# Alternatives that may be open at one place of an answer. The library's own 2,000 refuse an object
# of 500 optional properties; ten thousand take some 30 ms, where there are as many.
_MAX_ALTERNATIVES = 10_000
# A lexer that is used grows: by what all rows of its lane come across, until it knows every state.
# Those of grammars people write end at some 50,000; one written for it adds 20 a token, each of up
# to 0.9 kB. At this many, it refuses its rows.
_MAX_LEXER_STATES = 100_000
# So after so many tokens a grammar is compiled anew: lexers of rows long gone shall be given back,
# and none shall come to its limit by the number of its requests.
_TOKENS_PER_LANE = 8192
# What a lane takes, as far as it was measured: 30 to 185 bytes for each character of a text, up to
# 0.3 MB beside, and 0.05 to 1 kB for each token that was sampled: 17 kB, up to the limit of states,
# where an expression was written for it. So grammars of an attacker may take five times as much.
_LANE_BYTES = 256 << 10
_BYTES_PER_CHAR = 160
_BYTES_PER_TOKEN = 2 << 10
# Where the alternatives of a JSON value are the most: at the start of an object or array.
_JSON_OPENINGS = ("{", "[", '{"', "[{", '[{"')
# Tokens that a JSON string takes whole are allowed by the slice instead of one by one, by how many
# characters they have. The library's own slices, and 14 and 20: without those a string bounded by
# maxLength walks every token of more than 10 characters (130 us instead of 10 to 25).
_STRING_CHAR = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_STRING_CHAR}{{1,{length}}}" for length in (10, 14, 20, 30)),
    f"{_STRING_CHAR}+",
]


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
        raise GrammarError("structured output needs llguidance: pip install llguidance") from None
    module: ModuleType = llguidance
    return module


class RowMatcher(NamedTuple):
    """One sequence's matcher, for ``MaskFiller``. Those of one ``lane`` exclude each other."""

    matcher: Any  # llguidance.LLMatcher
    lane: int


@dataclasses.dataclass(slots=True)
class _Lane:
    start: Any  # llguidance.LLMatcher before the first token
    number: int
    num_taken: int = 0


class Grammar:
    """A compiled grammar; every sequence takes a matcher of its own.

    Copies of a matcher share its lexer behind a lock, so threads work side by side only on matchers
    that were compiled apart: each of those is a lane, and sequences are dealt out among them.

    Args:
        start: None where all text is allowed.
        seconds: what compiling took, which another lane takes too.

    Attributes:
        num_tokens: sampled through its lanes so far, as their rows have told.
    """

    def __init__(self, vocabulary: Vocabulary, start: Any | None, seconds: float = 0.0) -> None:
        self.vocabulary = vocabulary
        self.seconds = seconds
        self.num_tokens = 0
        self._lanes: list[_Lane] = []
        if start is not None:
            self.add_lane(start)

    @property
    def num_lanes(self) -> int:
        """Threads that can work on it at once; 0 where all text is allowed."""
        return len(self._lanes)

    @property
    def worn(self) -> bool:
        """Whether its lexers may have grown so much that they should be made anew."""
        return self.num_tokens > self.num_lanes * _TOKENS_PER_LANE > 0

    def wear_out(self) -> None:
        """A sequence could not go on: nothing may be wrong but that a lexer is full."""
        self.num_tokens += 1 + self.num_lanes * _TOKENS_PER_LANE

    def replace_lanes(self, starts: Sequence[Any]) -> None:
        """Take over the same grammar compiled anew; matchers that were taken go on as they are."""
        self.num_tokens = 0
        self._lanes = [_Lane(start, next(_lane_numbers)) for start in starts]

    def add_lane(self, start: Any) -> None:
        """Take over the same grammar compiled once more. Any thread may."""
        self._lanes.append(_Lane(start, next(_lane_numbers)))

    def new_matcher(self) -> RowMatcher | None:
        """A matcher at the start, if there is a grammar. Takes microseconds."""
        if not self._lanes:
            return None
        lane = min(self._lanes, key=_num_taken)
        lane.num_taken += 1
        return RowMatcher(lane.start.deep_copy(), lane.number)


def estimate_bytes(output: StructuredOutput, num_lanes: int = 1, num_tokens: int = 0) -> int:
    """What a grammar takes in memory: the library does not tell."""
    num_chars = len(output.text)
    lanes = num_lanes * (_LANE_BYTES + num_chars * _BYTES_PER_CHAR)
    return num_chars + lanes + num_tokens * _BYTES_PER_TOKEN


_lane_numbers = itertools.count()
_num_taken = operator.attrgetter("num_taken")


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
            _TokenTable(vocabulary), eos_token=list(vocabulary.eos_token_ids), slices=_SLICES
        )
        self._limits = self._library.LLParserLimits(
            verbose_errors=False,
            max_items_in_row=_MAX_ALTERNATIVES,
            step_max_items=10 * _MAX_ALTERNATIVES,
            max_lexer_states=_MAX_LEXER_STATES,
        )

    def compile(self, output: StructuredOutput) -> Grammar:
        """Compile one grammar.

        Raises:
            GrammarError: the grammar is wrong, too complex, not supported, or allows no text.
        """
        if output.kind == "free":
            return Grammar(self._vocabulary, None)
        begun = time.perf_counter()
        matcher = self._compile(output)
        if matcher.is_error():
            raise GrammarError(explain(matcher))
        # A grammar without any finite text only shows when a mask is asked for.
        start = matcher.deep_copy()
        start.compute_bitmask()
        if start.is_error() or (start.is_stopped() and not start.is_accepting()):
            raise GrammarError("no text satisfies it")
        if output.kind == "json_schema":
            self._check_openings(matcher)
        return Grammar(self._vocabulary, matcher, time.perf_counter() - begun)

    def widen(self, grammar: Grammar, output: StructuredOutput) -> None:
        """Compile ``output`` once more, as another lane of its ``grammar``."""
        grammar.add_lane(self._compile(output))

    def renew(self, grammar: Grammar, output: StructuredOutput) -> None:
        """Compile ``output`` anew, in place of the lanes that its ``grammar`` has."""
        grammar.replace_lanes([self._compile(output) for _ in range(grammar.num_lanes)])

    def _compile(self, output: StructuredOutput) -> Any:
        return self._library.LLMatcher(
            self._tokenizer, self._grammar(output), log_level=0, limits=self._limits
        )

    def _check_openings(self, matcher: Any) -> None:
        """Refuse what could not be followed beyond the first token of an answer."""
        for opening in _JSON_OPENINGS:
            begun = matcher.deep_copy()
            token_ids = self._vocabulary.encode(opening)
            if begun.validate_tokens(token_ids) == len(token_ids):
                begun.consume_tokens(token_ids)
                begun.compute_bitmask()
            if begun.is_error():
                raise GrammarError(
                    f"it has too many alternatives at one place, at most {_MAX_ALTERNATIVES} can "
                    f"be followed ({explain(begun)})"
                )

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
