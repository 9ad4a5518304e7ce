"""``/v1/sample``: scores a prompt and shows the distribution at some of its places."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from xllm.core.request.sampling import SamplingParams
from xllm.frontend.intake.factory import PreparedRequest, RequestFactory
from xllm.frontend.intake.served import ServedModels
from xllm.frontend.output.logprobs import TokenEntry
from xllm.frontend.protocol.errors import RequestError
from xllm.frontend.protocol.pooling import PoolingUsage
from xllm.frontend.protocol.sample import (
    Candidate,
    LiteralSelector,
    SamplePlace,
    SampleRequest,
    SampleResponse,
)
from xllm.frontend.services.answers.dispatcher import OutputDispatcher
from xllm.frontend.services.answers.shared import off_loop

_DEFAULT_LOGPROBS = 5  # fewer where the server allows fewer


class SampleService:
    """Probes a model that generates text.

    Args:
        factory: makes engine requests.
        dispatcher: sends them and brings the answers.
        served: the names that ``model`` may have.
    """

    def __init__(
        self, factory: RequestFactory, dispatcher: OutputDispatcher, served: ServedModels
    ) -> None:
        self._factory = factory
        self._dispatcher = dispatcher
        self._served = served

    async def sample(self, body: SampleRequest) -> SampleResponse:
        """The distribution at every selected place.

        Raises:
            RequestError: the request is refused or failed.
        """
        adapter = self._served.adapter(body.model)
        try:
            prepared, places = await off_loop(
                len(body.prompt), lambda: self._prepare(body, adapter)
            )
        except ValueError as error:
            raise RequestError.from_value_error(error) from None
        stream = self._dispatcher.submit([prepared], whole=True)
        try:
            while not stream.finished:
                await stream.read()
        finally:
            stream.close()
        (answer,) = stream.answers
        entries = answer.prompt_logprobs
        choices = [self._place(i, at, entries[at]) for i, at in enumerate(places)]
        total = answer.num_prompt_tokens
        return SampleResponse(
            id=f"sample-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self._served.shown(body.model),
            choices=choices,
            usage=PoolingUsage(total, total),
        )

    def _prepare(self, body: SampleRequest, adapter: int) -> tuple[PreparedRequest, list[int]]:
        most = self._factory.limits.max_logprobs
        count = min(_DEFAULT_LOGPROBS, most) if body.logprobs is None else body.logprobs
        if not 1 <= count <= most:
            raise ValueError(f"logprobs must be between 1 and {most}, got {count}")
        special = body.add_special_tokens is not False
        prompt = body.prompt
        ids = prompt
        if isinstance(prompt, str):
            ids = self._factory.prompts.encode("prompt", [prompt], special)[0]
        prepared = self._factory.create(
            ids,
            SamplingParams(max_tokens=0, prompt_logprobs=count),
            priority=body.priority or 0,
            adapter=adapter,
        )
        return prepared, self._places(body, len(ids), special)

    def _places(self, body: SampleRequest, num_tokens: int, special: bool) -> list[int]:
        """Positions of the selected tokens, rising; none is the first, which nothing predicts."""
        selector = body.selector
        if isinstance(selector, LiteralSelector):
            if not isinstance(body.prompt, str):
                raise ValueError("selector: a literal needs a prompt that is text")
            found = self._occurrences(body.prompt, selector.value, special)
        else:
            if len(selector.positions) > num_tokens:
                raise ValueError(
                    f"selector.positions must have at most {num_tokens} entries, one per token of "
                    f"the prompt, got {len(selector.positions)}"
                )
            found = [at + num_tokens if at < 0 else at for at in selector.positions]
            for at, asked in zip(found, selector.positions, strict=True):
                if not 0 <= at < num_tokens:
                    raise ValueError(
                        f"selector.positions must be below {num_tokens}, the tokens of the prompt, "
                        f"got {asked}"
                    )
        places = sorted(set(found))
        if not places:
            raise ValueError("selector selects nothing in the prompt")
        if places[0] == 0:
            raise ValueError("selector selects the first token, which no token before it predicts")
        return places

    def _occurrences(self, text: str, value: str, special: bool) -> Sequence[int]:
        if not value:
            raise ValueError("selector.value must not be empty")
        starts, at = [], text.find(value)
        while at >= 0:
            starts.append(at)
            at = text.find(value, at + len(value))
        return self._factory.tokenizer.token_at(text, starts, add_special_tokens=special)

    def _place(self, index: int, position: int, entry: TokenEntry) -> SamplePlace:
        assert entry.logprob is not None
        name = self._factory.tokenizer.printable
        return SamplePlace(
            index=index,
            position=position,
            token_id=entry.token_id,
            token=name(entry.token_id),
            logprob=entry.logprob,
            rank=entry.rank,
            top_logprobs=[Candidate(i, name(i), value) for i, value in entry.alternatives],
        )
