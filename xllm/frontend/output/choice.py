"""One answer text as it grows: tokens in, text and aligned entries out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from xllm.core.request.finish import FinishReason
from xllm.core.request.sampling import SamplingParams
from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.output.stop import StopMatcher
from xllm.frontend.parsers.delta import TextDelta, ToolCallDelta
from xllm.frontend.text.detokenizer import Detokenizer
from xllm.frontend.text.tokenizer import Tokenizer


class ChoiceDelta(msgspec.Struct):
    """What a choice gained since it was last read. Merging deltas is concatenation.

    One is made per token of every stream: a struct costs a fifth of a dataclass.

    ``entries`` are the tokens behind exactly this text (those of an unfinished character come with
    the character; a token that ended the answer without being text is left out). They are kept
    only for requests that ask for logprobs or token ids.

    Where a message parser reads the answer (``services.conversation``), ``text`` is its content
    and the rest of what was written is in ``reasoning`` and ``tool_calls``; ``pieces`` has all of
    it in the order in which it was written.
    """

    index: int
    text: str = ""
    entries: list[TokenEntry] = []
    offsets: list[int] = []  # first character of each entry
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # the stop string, or the user's stop token id
    silent_token_id: int | None = None  # ended the answer without being text
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    pieces: Sequence[TextDelta | ToolCallDelta] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens of ``entries``, and the silent one."""
        ids = [entry.token_id for entry in self.entries]
        return ids if self.silent_token_id is None else [*ids, self.silent_token_id]


class ChoiceState:
    """Detokenizes one sequence, cuts it at stop strings, aligns entries with the text.

    Tokens are taken one by one wherever their number per step could matter, so that the result
    never depends on how the engine grouped them.

    Args:
        index: the choice's place in its request.
        tokenizer: the model's.
        params: the request's.
        eos_token_ids: ids that end a text without being reported as the stop reason.
        at_start: the prompt has no text of its own.
        keep_entries: whether deltas carry entries.
        token_table: bytes of every token, if not the tokenizer's own.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        at_start: bool = False,
        keep_entries: bool = False,
        token_table: Sequence[bytes] | None = None,
    ) -> None:
        self.index = index
        self.num_tokens = 0  # generated, up to the one that completed a stop string
        self.cumulative_logprob = 0.0
        self.finish = FinishReason.NONE
        self._params = params
        self._eos_token_ids = eos_token_ids
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            table=token_table,
            at_start=at_start,
        )
        self._matcher = (
            StopMatcher(params.stop, include=params.include_stop_str_in_output)
            if params.stop
            else None
        )
        self._keep_entries = keep_entries
        self._num_chars = 0  # detokenized
        self._num_released = 0  # of which released
        # Entries that wait for their text, each with the first and the past-the-last character.
        self._waiting: deque[tuple[int, int, TokenEntry]] = deque()
        self._text: list[str] = []
        self._entries: list[TokenEntry] = []
        self._offsets: list[int] = []
        self._silent_token_id: int | None = None
        self._stop_reason: str | int | None = None
        self._finish_taken = False

    @property
    def finished(self) -> bool:
        """Whether nothing will follow."""
        return self.finish != FinishReason.NONE

    @property
    def unread(self) -> bool:
        """Whether ``take`` would return something."""
        return bool(self._text or self._entries or (self.finish and not self._finish_taken))

    def push(
        self,
        token_ids: Sequence[int],
        entries: Sequence[TokenEntry] | None,
        finish: FinishReason,
        stop_token: int,
    ) -> bool:
        """Take a step's tokens.

        Args:
            token_ids: new tokens.
            entries: their logprobs, parallel, if asked for.
            finish: the engine's verdict after these tokens.
            stop_token: the id among them that ended the sequence, or -1.

        Returns:
            True when a stop string ended the answer and the engine does not know yet.
        """
        silent = stop_token >= 0 and not self._params.include_stop_str_in_output
        if self._matcher is None and not self._keep_entries:
            self.num_tokens += len(token_ids)
            if silent:
                self._silent_token_id = stop_token
                token_ids = token_ids[:-1]
            if text := self._detokenizer.push(token_ids):
                self._text.append(text)
        else:
            last = len(token_ids) - 1
            for i, token_id in enumerate(token_ids):
                entry = entries[i] if entries is not None else _bare(token_id)
                self._push_one(token_id, entry, silent and i == last)
                if self.finished:
                    return finish == FinishReason.NONE
        if finish != FinishReason.NONE:
            self._end(finish, stop_token)
        return False

    def fail(self, finish: FinishReason) -> None:
        """End without the engine: the request was cancelled or went wrong."""
        if not self.finished:
            self.finish = finish
            self._waiting.clear()

    def take(self) -> ChoiceDelta:
        """Everything since the last call. Unread parts have merged into one delta."""
        text = self._text
        delta = ChoiceDelta(
            self.index, text[0] if len(text) == 1 else "".join(text), self._entries, self._offsets
        )
        self._text = []
        if self._keep_entries:
            self._entries, self._offsets = [], []
        if self.finish:
            self._finish_taken = True
            delta.finish_reason = self.finish.openai
            delta.stop_reason = self._stop_reason
            delta.silent_token_id = self._silent_token_id
        return delta

    def _push_one(self, token_id: int, entry: TokenEntry, silent: bool) -> None:
        self.num_tokens += 1
        if entry.logprob is not None:
            self.cumulative_logprob += entry.logprob
        if silent:
            self._silent_token_id = token_id
            return
        start = self._num_chars
        text = self._detokenizer.push((token_id,))
        self._num_chars += len(text)
        if self._keep_entries:
            # Part of an unfinished character counts as that character, which is one long.
            end = self._num_chars + self._detokenizer.pending
            self._waiting.append((start, end, entry))
        self._match(text)

    def _match(self, text: str) -> None:
        matcher = self._matcher
        # The first min_tokens tokens can be no part of a stop string.
        if matcher is None or self.num_tokens <= self._params.min_tokens:
            self._release(text)
            return
        self._release(matcher.push(text))
        if matcher.matched is not None:
            self.finish = FinishReason.STOP
            self._stop_reason = matcher.matched
            self._drop_cut_entries()

    def _release(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._num_released += len(text)
        while self._waiting and self._waiting[0][1] <= self._num_released:
            self._emit(self._waiting.popleft())

    def _emit(self, waiting: tuple[int, int, TokenEntry]) -> None:
        self._offsets.append(waiting[0])
        self._entries.append(waiting[2])

    def _drop_cut_entries(self) -> None:
        """Keep the entries whose text begins before the cut."""
        for waiting in self._waiting:
            if waiting[0] < self._num_released:
                self._emit(waiting)
        self._waiting.clear()

    def _end(self, finish: FinishReason, stop_token: int) -> None:
        rest = self._detokenizer.flush()
        self._num_chars += len(rest)
        self._match(rest)
        if self.finished:  # the rest completed a stop string
            return
        if self._matcher is not None:
            self._release(self._matcher.flush())
        while self._waiting:
            self._emit(self._waiting.popleft())
        self.finish = finish
        if stop_token >= 0 and stop_token not in self._eos_token_ids:
            self._stop_reason = stop_token


def _bare(token_id: int) -> TokenEntry:
    return TokenEntry(token_id, None, 0, [])
