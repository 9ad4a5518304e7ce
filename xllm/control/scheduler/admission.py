"""Which requests are refused at the door, and which waiting sequences start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

from xllm.control.scheduler.budget import StepDraft
from xllm.control.scheduler.grammars import GrammarQueue
from xllm.control.scheduler.sequence import RequestState, Sequence, Status
from xllm.control.scheduler.state import SchedulerState
from xllm.core.config import SchedulerConfig
from xllm.core.messages.server import Failure, Started
from xllm.core.request.request import Request
from xllm.kv_cache.prefix import NO_MATCH, PrefixIdentity, PrefixMatch

# A prompt waits for another that computes at least so many tokens of its beginning; looking on
# behind those that wait ends after so many of them.
_MIN_FOLLOWED_TOKENS = 512
_MAX_FOLLOWERS = 32
# Waiting prompts whose tokens are added up to see whether they fill a step.
_MAX_COUNTED = 64


class Admission:
    """Turns requests into sequences, and waiting sequences into running ones."""

    def __init__(
        self,
        config: SchedulerConfig,
        state: SchedulerState,
        grammars: GrammarQueue,
        enable_prefix_caching: bool,
    ) -> None:
        self._config = config
        self._state = state
        self._grammars = grammars
        self._enable_prefix_caching = enable_prefix_caching
        self._uses_priority = config.priority_policy == "priority"
        self._num_arrived = 0
        self._leaders: list[Sequence] = []  # running, their prompts not computed when last seen

    # --- requests --------------------------------------------------------------------------

    def refusal(self, request: Request) -> Failure | None:
        """Why the request cannot be served at all, or None."""
        prompt_len = len(request.prompt_token_ids)
        blocks = self._state.blocks
        if prompt_len < 1:
            return _bad_prompt(request, "prompt must contain at least one token")
        if prompt_len > blocks.demand.max_model_len:
            return _bad_prompt(
                request,
                f"prompt has {prompt_len} tokens, but the context length is "
                f"{blocks.demand.max_model_len}",
            )
        if prompt_len > blocks.capacity_tokens:
            return _bad_prompt(
                request,
                f"prompt has {prompt_len} tokens, but the KV cache holds at most "
                f"{blocks.capacity_tokens}",
            )
        if (failure := self._grammars.refusal(request)) is not None:
            return failure
        if len(self._state.queue) + len(self._grammars) >= self._config.max_waiting:
            message = f"{self._config.max_waiting} requests wait already; try again later"
            return Failure(request.handle, -1, message, 429)
        return None

    def enqueue(self, request: Request) -> None:
        """Let the first sequence of an acceptable request wait, and park the others.

        Raises:
            ValueError: the handle is in use.
        """
        state = self._state
        if request.handle in state.requests:
            raise ValueError(f"handle {request.handle} is in use")
        entry = RequestState(request, time.monotonic())
        demand = state.blocks.demand
        # The last token is returned, not computed: it needs no slot in the cache.
        most = min(demand.max_model_len, state.blocks.capacity_tokens + 1)
        prompt_len = entry.prompt_len
        shares = self._enable_prefix_caching or request.params.n > 1
        identity = PrefixIdentity(
            cache_salt=request.cache_salt,
            adapter=str(request.adapter) if request.adapter else None,
            private=None if self._enable_prefix_caching else request.handle,
        )
        keys = state.blocks.keys(identity) if shares else None
        for choice in range(request.params.n):
            sequence = Sequence(
                state=entry,
                choice=choice,
                arrival=self._num_arrived,
                max_total=max(prompt_len, min(prompt_len + request.max_tokens, most)),
                priority=request.priority if self._uses_priority else 0,
                tokens=request.prompt_token_ids,
                keys=keys if choice == entry.leader else None,
            )
            self._num_arrived += 1
            entry.live[choice] = sequence
        state.requests[request.handle] = entry
        self._grammars.enqueue(entry)

    def prompts(self) -> Iterator[int]:
        """Tokens to compute of prompts that have a row or would find one, in turn: of the first
        that wait, as looking on takes time where memory is what they wait for. What the prefix
        cache holds is not known yet, and counts."""
        table = self._state.table
        for sequence in self._state.prefilling:
            yield int(table.num_known[sequence.row] - table.num_computed[sequence.row])
        for sequence in islice(self._state.queue.in_turn(), min(table.num_free, _MAX_COUNTED)):
            assert sequence.tokens is not None
            yield len(sequence.tokens)

    # --- the ADMIT phase ---------------------------------------------------------------------

    def admit(self, draft: StepDraft) -> None:
        """Start waiting sequences in turn until one does not fit.

        The first that does not fit blocks those behind it, so that a long prompt is not overtaken
        for ever. A step that has preempted starts nothing.
        """
        state = self._state
        self._leaders = [leader for leader in self._leaders if _computes_prompt(leader)]
        followers: list[Sequence] = []
        while draft.budget.left and state.table.num_free and not draft.has_preempted:
            sequence = state.queue.peek()
            if sequence is None or len(followers) == _MAX_FOLLOWERS:
                break
            found = self._find_prefix(sequence)
            if self._follows(sequence, found):
                state.queue.pop()
                followers.append(sequence)
            elif not self._start(sequence, found, draft):
                break
        for sequence in followers:
            state.queue.push(sequence)

    def start_alone(self, sequence: Sequence, draft: StepDraft) -> bool:
        """Start the first in the queue; False if it does not fit beside what runs."""
        has_row = self._state.table.num_free > 0
        return has_row and self._start(sequence, self._find_prefix(sequence), draft)

    def _follows(self, sequence: Sequence, found: PrefixMatch) -> bool:
        """Whether a running prompt computes so much of this one's beginning that it had better
        wait a step or two and share it. Those behind it go first meanwhile."""
        keys = sequence.keys
        if keys is None or not self._leaders or sequence.wants_prompt_logprobs:
            return False
        num_tokens = found.num_tokens + _MIN_FOLLOWED_TOKENS
        return any(
            leader.keys is not None and leader.keys.starts_like(keys, num_tokens)
            for leader in self._leaders
        )

    def _start(self, sequence: Sequence, found: PrefixMatch, draft: StepDraft) -> bool:
        state = self._state
        tokens = sequence.tokens
        assert tokens is not None
        remaining = len(tokens) - found.num_tokens
        num_tokens = self._first_chunk(remaining, draft)
        if num_tokens == 0:
            return False
        allocated = state.blocks.allocate(
            state.table.peek_free(),
            found,
            step_tokens=num_tokens,
            footprint=len(tokens),
            headroom=state.table.num_live,  # each running row can cross one block border
            keys=sequence.keys,
            publish_limit=None if self._enable_prefix_caching else sequence.state.prompt_len,
        )
        if not allocated:
            return False
        if not sequence.started:
            self._note_start(sequence, found.num_tokens)
        state.table.start(sequence, found.num_tokens)
        state.queue.pop()
        if remaining >= _MIN_FOLLOWED_TOKENS and not sequence.state.prompt_computed:
            self._leaders.append(sequence)
        state.prefilling.append(sequence)
        state.prefilling.sort(key=lambda entry: (entry.priority, entry.arrival))
        draft.started.append(sequence)
        draft.add_chunk(sequence, num_tokens)
        return True

    def _first_chunk(self, remaining: int, draft: StepDraft) -> int:
        """Tokens of a prompt with ``remaining`` to go that this step computes; 0 defers it.

        Without chunked prefill only prompts longer than a whole step are split. What is left of
        those takes what it gets: it would wait for a whole step as long as anything decodes.
        """
        whole = not self._config.enable_chunked_prefill and remaining <= draft.budget.total
        if whole and remaining > draft.budget.left:
            return 0
        return min(remaining, draft.budget.left)

    def _find_prefix(self, sequence: Sequence) -> PrefixMatch:
        if sequence.keys is None or sequence.wants_prompt_logprobs:
            return NO_MATCH
        tokens = sequence.tokens
        assert tokens is not None
        # At least one token is computed: its logits are the answer.
        return self._state.blocks.match(sequence.keys, tokens, len(tokens) - 1)

    def _note_start(self, sequence: Sequence, num_cached: int) -> None:
        sequence.started = True
        request = sequence.state.request
        counters = self._state.counters
        if (
            self._enable_prefix_caching
            and sequence.is_leader
            and not sequence.wants_prompt_logprobs
        ):
            counters.prefix_queries += sequence.state.prompt_len
            counters.prefix_hits += num_cached
        since = request.arrival_time or sequence.state.added_time
        waited = max(0.0, time.monotonic() - since)
        self._state.notices.started.append(
            Started(request.handle, sequence.choice, num_cached, waited)
        )


def _computes_prompt(sequence: Sequence) -> bool:
    return sequence.status is Status.RUNNING and not sequence.state.prompt_computed


def _bad_prompt(request: Request, message: str) -> Failure:
    return Failure(request.handle, -1, message, 400, "prompt")
