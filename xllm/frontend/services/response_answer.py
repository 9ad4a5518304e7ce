"""One answer as the items of a response, and as the events of its stream."""

from __future__ import annotations

from xllm.frontend.output.choice import ChoiceDelta
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.response_events import (
    ArgumentsDone,
    ArgumentsGrew,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDone,
    ReasoningGrew,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    TextDone,
    TextGrew,
)
from xllm.frontend.protocol.responses import (
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseFault,
    ResponseUsage,
)
from xllm.frontend.protocol.usage import Usage
from xllm.frontend.services.answers.parts import AnswerParts, Change, Part


class ResponseAnswer:
    """Fills a response as its answer comes.

    Args:
        response: in progress, without output.
    """

    def __init__(self, response: Response) -> None:
        self.response = response
        self._parts = AnswerParts()
        self._finish_reason: str | None = None
        self._num_events = 0

    @property
    def reasoning(self) -> str:
        """All thoughts so far."""
        return "".join(part.text for part in self._parts.parts if part.kind == "reasoning")

    def opening(self) -> list[ResponseEvent]:
        """The events before there is any output."""
        shown = self.response
        return self._numbered([ResponseCreated(response=shown), ResponseInProgress(response=shown)])

    def feed(self, news: list[ChoiceDelta]) -> list[ResponseEvent]:
        """Events for news that arrived together."""
        events: list[ResponseEvent] = []
        for delta in news:
            self._finish_reason = delta.finish_reason or self._finish_reason
            for change in self._parts.feed(delta):
                events += self._events(change)
        return self._numbered(events)

    def end(self, usage: Usage, num_reasoning_tokens: int) -> list[ResponseEvent]:
        """Complete the response, or note that it was cut off."""
        response = self.response
        response.output = [self._item(part, "completed") for part in self._parts.parts]
        response.usage = ResponseUsage(
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.total_tokens,
            InputTokensDetails(usage.prompt_tokens_details.cached_tokens),
            OutputTokensDetails(num_reasoning_tokens),
        )
        if self._finish_reason != "length":
            response.status = "completed"
            return self._numbered([ResponseCompleted(response=response)])
        response.status = "incomplete"
        response.incomplete_details = IncompleteDetails("max_output_tokens")
        if response.output:
            response.output[-1].status = "incomplete"
        return self._numbered([ResponseIncomplete(response=response)])

    def fail(self, error: RequestError) -> list[ResponseEvent]:
        """Note that the answer went wrong; what came of it is kept."""
        response = self.response
        response.output = [self._item(part, "incomplete") for part in self._parts.parts]
        response.status = "failed"
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        response.error = ResponseFault(code, error.message)
        return self._numbered([ResponseFailed(response=response)])

    def cancel(self) -> None:
        """Note that nobody waits for the rest."""
        self.response.output = [self._item(part, "incomplete") for part in self._parts.parts]
        self.response.status = "cancelled"

    def _numbered(self, events: list[ResponseEvent]) -> list[ResponseEvent]:
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
        return events

    def _id(self, part: Part) -> str:
        kind = {"reasoning": "rs", "text": "msg", "call": "fc"}[part.kind]
        return f"{kind}_{self.response.id.removeprefix('resp_')}_{part.index}"

    def _item(self, part: Part, status: ItemStatus) -> OutputItem:
        item_id = self._id(part)
        begun = status != "in_progress"
        if part.kind == "call":
            return FunctionCallItem(
                id=item_id,
                status=status,
                call_id=part.call_id,
                name=part.name,
                arguments=part.text if begun else "",
            )
        if part.kind == "reasoning":
            thoughts = [ReasoningText(part.text)] if begun else []
            return ReasoningItem(id=item_id, status=status, content=thoughts)
        texts = [OutputText(part.text)] if begun else []
        return MessageItem(id=item_id, status=status, content=texts)

    def _events(self, change: Change) -> list[ResponseEvent]:
        what, part, text = change
        item_id, place = self._id(part), part.index
        if what == "grow":
            if part.kind == "call":
                return [ArgumentsGrew(item_id=item_id, output_index=place, delta=text)]
            grew = TextGrew if part.kind == "text" else ReasoningGrew
            return [grew(item_id=item_id, output_index=place, delta=text)]
        if what == "open":
            added = ItemAdded(output_index=place, item=self._item(part, "in_progress"))
            if part.kind == "call":
                return [added]
            return [added, PartAdded(item_id=item_id, output_index=place, part=_content(part, ""))]
        cut = self._finish_reason == "length" and part is self._parts.parts[-1]
        item = self._item(part, "incomplete" if cut else "completed")
        done = ItemDone(output_index=place, item=item)
        if part.kind == "call":
            whole = ArgumentsDone(
                item_id=item_id, output_index=place, name=part.name, arguments=part.text
            )
            return [whole, done]
        text_done = TextDone if part.kind == "text" else ReasoningDone
        return [
            text_done(item_id=item_id, output_index=place, text=part.text),
            PartDone(item_id=item_id, output_index=place, part=_content(part, part.text)),
            done,
        ]


def _content(part: Part, text: str) -> OutputText | ReasoningText:
    return OutputText(text) if part.kind == "text" else ReasoningText(text)
