"""The parser of one answer: thoughts, then prose with calls in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xllm.frontend.parsers.delta import Parsed
from xllm.frontend.parsers.format import Body, Draft, ReasoningFormat, ToolFormat
from xllm.frontend.parsers.harmony import Harmony
from xllm.frontend.parsers.json_text import stream_value
from xllm.frontend.parsers.sink import Sink
from xllm.frontend.parsers.source import Reading, Source
from xllm.frontend.parsers.values import Schema


class TextParser:
    """A ``MessageParser`` for the given formats.

    Args:
        sink: takes what is found.
        tools: parameters of the functions that may be called, by name.
        tool_format: how calls are written; None leaves them in the content.
        reasoning_format: how thoughts are written; None leaves them in the content.
        thinking: whether the prompt has left the thoughts open (True) or closed them (False); None
            when it says nothing.
        forced: reads the answer, which a grammar binds to be a call.
    """

    def __init__(
        self,
        sink: Sink,
        tools: Mapping[str, Schema],
        *,
        tool_format: ToolFormat | Harmony | None = None,
        reasoning_format: ReasoningFormat | Harmony | None = None,
        thinking: bool | None = None,
        forced: Body | None = None,
    ) -> None:
        self._draft = Draft(Source(), sink, tools)
        self._with_calls = tool_format is not None
        self._tools = tool_format if isinstance(tool_format, ToolFormat) else None
        self._reasoning = reasoning_format
        self._thinking = thinking
        self._forced = forced
        self._reading = self._read()
        self._ended = False

    @property
    def called(self) -> bool:
        """Whether there was a tool call and every one is complete."""
        return self._draft.sink.called

    def feed(self, text: str) -> Parsed:
        """Take the next piece; what cannot be told yet is kept back."""
        if text:
            self._draft.source.feed(text)
            self._advance()
        return self._draft.sink.take()

    def finish(self) -> Parsed:
        """The text has ended: release what was kept back."""
        self._draft.source.ended = True
        self._advance()
        self._draft.sink.finish()
        return self._draft.sink.take()

    def _advance(self) -> None:
        if not self._ended:
            self._ended = next(self._reading, "ended") is not None

    def _read(self) -> Reading[None]:
        if isinstance(self._reasoning, Harmony) and self._forced is None:
            yield from self._reasoning.read_message(self._draft, self._with_calls)
        else:
            if isinstance(self._reasoning, ReasoningFormat) and self._thinking is not False:
                yield from self._read_thoughts(self._reasoning)
            yield from self._read_answer()

    def _read_thoughts(self, form: ReasoningFormat) -> Reading[None]:
        source, sink = self._draft.source, self._draft.sink
        pairs = dict(form.pairs)
        mark = source.hold()
        yield from source.skip_blanks()
        # A model may repeat the tag that the prompt has opened for it.
        opening = yield from source.take(*pairs)
        if opening is None and not (self._thinking or form.implied):
            source.rewind(mark)
            return
        source.release()
        closing = pairs[opening] if opening is not None else form.pairs[0][1]
        calls = self._tools.opens if self._tools is not None and form.until_calls else ()
        found = yield from source.scan((closing, *calls), sink.reasoning)
        sink.end_reasoning()
        if found is not None and found in calls:
            yield from self._read_calls(found)
        elif found is not None and form.wraps:
            yield from source.skip_blanks()
            yield from source.take(form.wraps[0])

    def _read_answer(self) -> Reading[None]:
        source, sink = self._draft.source, self._draft.sink
        if self._forced is not None:
            start = source.hold()
            if not (yield from self._forced.read(self._draft, False)):
                source.rewind(start)
            source.release()
            yield from source.scan(("\0",), sink.content)
            return
        if self._tools is not None and self._tools.bare:
            yield from self._read_bare_calls(self._tools)
        wraps = self._reasoning.wraps if isinstance(self._reasoning, ReasoningFormat) else ()
        opens = self._tools.opens if self._tools is not None else ()
        while (yield from source.more()):
            torn = self._draft.torn
            inside = (torn.begin, *torn.close) if torn is not None else ()
            marks = (*((*opens, *inside) if source.patient else ()), *wraps[1:])
            if not marks:
                sink.content(source.text[source.pos :])
                source.pos = len(source.text)
                continue
            mark = yield from source.scan(marks, sink.content)
            if mark is None:
                continue
            if mark in opens:
                yield from self._read_calls(mark)
            elif torn is not None and mark == torn.begin:
                yield from self._read_calls(mark, torn.read_on)
            elif torn is not None and mark in torn.close:
                sink.content(mark)
                self._draft.torn = None

    def _read_bare_calls(self, tools: ToolFormat) -> Reading[None]:
        """Calls that need no tag stand at the start of the answer."""
        source = self._draft.source
        mark = source.hold()
        yield from source.skip_blanks()
        first = yield from source.peek()
        if not (first and first in tools.bare and (yield from tools.body.read(self._draft, True))):
            source.rewind(mark)

    def _read_calls(
        self, tag: str, read: Callable[[Draft, bool], Reading[bool]] | None = None
    ) -> Reading[None]:
        """Calls after their tag; what turns out to be none is prose, the tag included."""
        source, sink = self._draft.source, self._draft.sink
        assert self._tools is not None
        mark = source.hold()
        if not (yield from (read or self._tools.body.read)(self._draft, False)):
            source.rewind(mark)
            sink.content(tag)


class ForcedArguments:
    """The whole answer is the arguments of one function, as a grammar saw to."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read(self, draft: Draft, bare: bool) -> Reading[bool]:
        """Read the object."""
        yield from draft.source.skip_blanks()
        if (yield from draft.source.peek()) != "{":
            return False
        draft.open_call(self._name)
        if (yield from stream_value(draft.source, draft.sink.arguments)):
            draft.sink.close_call()
            yield from draft.source.skip_blanks()
        return True
