"""A request inside the scheduler, and its sequences."""

from __future__ import annotations

import dataclasses
import enum

import msgspec

from xllm.core.grammar import Compilation
from xllm.core.messages.worker import RowSampling
from xllm.core.request.request import Request
from xllm.core.utils.arrays import Int32Array
from xllm.kv_cache.prefix import BlockKeys

_SEED_SPAN = 1 << 64


class Status(enum.Enum):
    """Where a sequence is."""

    COMPILING = "compiling"  # leads a request whose grammar is not compiled yet
    PARKED = "parked"  # waits for its leader to compute the shared prompt
    WAITING = "waiting"  # in the queue, new or preempted
    RUNNING = "running"  # has a row
    FINISHED = "finished"


@dataclasses.dataclass(eq=False, slots=True)
class RequestState:
    """What the sequences of one request share.

    The *leader* computes the prompt; the others are parked until its blocks can be shared. When a
    leader leaves early, the next sequence takes its place.
    """

    request: Request
    added_time: float
    leader: int = 0  # choice
    prompt_computed: bool = False
    next_prompt_logprob: int = 1  # first prompt position whose logprob was not sent
    grammar: Compilation | None = None  # held, so that the worker finds it compiled
    live: dict[int, Sequence] = dataclasses.field(default_factory=dict)  # choice -> sequence

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether prompt logprobs were asked for and are not all sent."""
        asked = self.request.params.prompt_logprobs is not None
        return asked and self.next_prompt_logprob < self.prompt_len


@dataclasses.dataclass(eq=False, slots=True)
class Sequence:
    """One choice of a request.

    ``tokens`` holds every known token while the sequence has no row; while it runs, its row of
    the token table does.
    """

    state: RequestState
    choice: int
    arrival: int  # position in the order of arrival; kept over preemption
    max_total: int  # tokens at which it ends by length
    priority: int  # 0 under fcfs
    tokens: Int32Array | None
    keys: BlockKeys | None  # None: its blocks are not remembered; while parked, the leader has them
    status: Status = Status.PARKED
    row: int = -1
    started: bool = False  # was scheduled before
    suspect: bool = False  # was in a step that raised, and has not run alone since
    num_trials: int = 0

    @property
    def handle(self) -> int:
        """The client's number of the request."""
        return self.state.request.handle

    @property
    def is_leader(self) -> bool:
        """Whether it computes (or computed) the prompt for its siblings."""
        return self.choice == self.state.leader

    @property
    def queue_key(self) -> tuple[bool, int, bool, int]:
        """Smaller is sooner: suspects, by priority, what had its turn already, by arrival."""
        return not self.suspect, self.priority, not self.started, self.arrival

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether this sequence still owes the request's prompt logprobs."""
        return self.is_leader and self.state.lacks_prompt_logprobs

    def sampling(self) -> RowSampling:
        """Sampling facts for the worker. Choice ``i`` samples as a solo request of seed+i would."""
        request = self.state.request
        params = request.params
        if params.prompt_logprobs is not None and not self.wants_prompt_logprobs:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        half = _SEED_SPAN // 2
        seed = (request.seed + self.choice + half) % _SEED_SPAN - half
        return RowSampling(
            params,
            seed,
            request.suppress_token_ids,
            request.bad_words_token_ids,
            request.structured_output,
        )
