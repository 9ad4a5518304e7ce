"""Harmony, the channel format of gpt-oss: every message says in a header what it is."""

from __future__ import annotations

import dataclasses
import re

from xllm.frontend.parsers.format import Draft
from xllm.frontend.parsers.json_text import stream_value
from xllm.frontend.parsers.source import Reading, Source

_RECIPIENT = re.compile(r"\bto=(functions\.)?([\w.:/-]+)")
_NAME = re.compile(r"[\w.:/-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Harmony:
    """``<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...``.

    ``analysis`` is reasoning. A message to ``functions.NAME``, or to a known tool's bare name, is a
    call, wherever its header says so. ``final``, ``commentary`` to nobody (a preamble) and every
    unknown channel are content. The prompt ends inside a header, so the answer may begin with the
    rest of it.
    """

    start: str = "<|start|>"
    channel: str = "<|channel|>"
    message: str = "<|message|>"
    end: str = "<|end|>"
    call: str = "<|call|>"
    done: str = "<|return|>"
    constrain: str = "<|constrain|>"
    template: tuple[tuple[str, ...], ...] = ()
    model_types: tuple[str, ...] = ()

    def read_message(self, draft: Draft, with_tools: bool) -> Reading[None]:
        """Read the message to its end. Text without a header is content."""
        source, sink = draft.source, draft.sink
        opening = (self.channel, self.start)
        after_message = False
        while (yield from source.more()):
            begun = yield from self._header_begun(source)
            mark = yield from source.scan(opening, sink.content)
            if mark is None:
                return
            if not source.patient:
                sink.content(mark)
                continue
            hold = source.hold()
            found = yield from source.until(self.message, self.end, self.done, self.call)
            if found is None and after_message:
                return  # the text ended inside the next header
            if found is None or found[1] != self.message:
                source.rewind(hold)
                sink.content(begun + mark)
                continue
            source.release()
            yield from self._read_body(draft, begun + mark + found[0], with_tools)
            after_message = True

    def _header_begun(self, source: Source) -> Reading[str]:
        """A recipient that stands before the channel of a header whose start was not written."""
        mark = source.hold()
        blanks = yield from source.skip_blanks()
        if (yield from source.take("to=")):
            name = yield from source.span(_NAME)
            yield from source.skip_blanks()
            if (yield from source.take(self.channel)):
                source.pos -= len(self.channel)
                source.release()
                return f"{blanks}to={name} "
        source.rewind(mark)
        return ""

    def _read_body(self, draft: Draft, header: str, with_tools: bool) -> Reading[None]:
        source, sink = draft.source, draft.sink
        ends = (self.end, self.done, self.call, self.start, self.channel)
        channel = re.search(re.escape(self.channel) + r"\s*(\w*)", header)
        recipient = _RECIPIENT.search(header)
        if recipient is not None and not (recipient[1] or draft.knows(recipient[2])):
            recipient = None
        kind = channel[1].lower() if channel else ""
        emit = sink.reasoning if kind == "analysis" else sink.content
        if recipient is not None and with_tools:
            yield from source.skip_blanks()
            if (yield from source.take(*ends)):
                draft.call(recipient[2], "{}")
                return
            if (yield from source.peek()) == "{":
                draft.open_call(recipient[2])
                if (yield from stream_value(source, sink.arguments)):
                    sink.close_call()
                    yield from source.skip_blanks()
            emit = sink.content
        found = yield from source.scan(ends, emit)
        if emit == sink.reasoning:
            sink.end_reasoning()
        if found in (self.start, self.channel):
            source.pos -= len(found)  # the next header, after a message that nobody closed
