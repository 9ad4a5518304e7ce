"""The loop around the scheduler: waiting, waking, telling."""

import queue
import random
import threading

import numpy as np
import pytest

from tests.fakes.engine import FakeEngine, NothingMoreError, make_request
from xllm.control.engine.stats import StatsReporter
from xllm.core.messages.engine import (
    AbortRequests,
    AddRequests,
    Hello,
    LoadAdapter,
    ResetPrefixCache,
)
from xllm.core.messages.server import AdapterLoaded, EngineReady, EngineStats, OutputBatch
from xllm.core.messages.worker import StepResult
from xllm.core.request.finish import FinishReason

LOOPS = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])


class ScriptedInbox:
    """Messages appear while the loop works; a wait without any is where the script goes on."""

    def __init__(self, when_idle):
        self.arrived = []
        self._when_idle = when_idle
        self.num_waits = 0

    def receive(self, timeout_seconds):
        if timeout_seconds is None and not self.arrived:
            self.num_waits += 1
            self._when_idle()
            if not self.arrived:
                raise NothingMoreError
        messages, self.arrived = self.arrived, []
        return messages


def ended(messages) -> dict[int, FinishReason]:
    """handle -> reason, of every ending in the batches."""
    batches = [message for message in messages if isinstance(message, OutputBatch)]
    return {
        int(batch.handles[index]): FinishReason(int(code))
        for batch in batches
        for index, code in enumerate(batch.finish.tolist())
        if code
    }


@LOOPS
def test_no_request_is_left_waiting_whenever_it_arrives(overlap):
    """OPS-30: 10,000 requests in the two loops, many in the very step that empties the queue."""
    draw = random.Random(3)
    engine = FakeEngine(overlap=overlap, max_num_seqs=2, enable_prefix_caching=False)
    total, added = 5_000, 0

    def arrive():
        nonlocal added
        if added < total:
            request = make_request(added, [1, added % 997], draw.choice([1, 1, 2]))
            inbox.arrived.append(AddRequests([request]))
            added += 1

    inbox = ScriptedInbox(arrive)
    send = engine.outbox.send

    def execute_and_arrive(plan):
        if draw.random() < 0.3:
            arrive()
        return NullPending(plan)

    def send_and_arrive(message):
        if isinstance(message, OutputBatch) and draw.random() < 0.3:
            arrive()
        send(message)

    engine.worker.execute, engine.outbox.send = execute_and_arrive, send_and_arrive
    engine.loop._inbox = inbox
    with pytest.raises(NothingMoreError):
        engine.loop.run()
    answers = ended(engine.outbox.messages)
    assert len(answers) == total and set(answers.values()) == {FinishReason.LENGTH}
    assert inbox.num_waits > 100, "the loop was hardly ever idle"


class NullPending:
    """A step that computed nothing."""

    def __init__(self, plan):
        self._result = StepResult(plan.step_id, np.ones(int(plan.samples.sum()), np.int32))

    def result(self):
        return self._result


class QueueInbox:
    """A thread-safe inbox."""

    def __init__(self):
        self.queue = queue.Queue()
        self.num_receives = 0

    def receive(self, timeout_seconds):
        self.num_receives += 1
        messages = []
        try:
            messages.append(self.queue.get(timeout_seconds != 0, timeout_seconds))
            while True:
                messages.append(self.queue.get_nowait())
        except queue.Empty:
            if None in messages:
                raise NothingMoreError from None
            return messages


@LOOPS
def test_an_idle_loop_blocks_and_wakes(overlap):
    engine = FakeEngine(overlap=overlap)
    inbox = engine.loop._inbox = QueueInbox()
    replies = queue.Queue()
    engine.outbox.send = replies.put
    thread = threading.Thread(target=engine.serve)
    thread.start()
    for handle in range(20):
        inbox.queue.put(AddRequests([make_request(handle, [1], 1)]))
        while not ended([replies.get(timeout=30)]):
            pass
    while not isinstance(message := replies.get(timeout=30), EngineStats):
        pass
    assert message.idle and message.generation_tokens == 20
    receives = inbox.num_receives
    inbox.queue.put(None)
    thread.join(30)
    assert not thread.is_alive()
    assert receives <= 20 * 3 + 1, "the idle loop polls"


def test_messages_are_applied():
    engine = FakeEngine()
    engine.ask(make_request(5, range(12), 1))
    requests = [make_request(0, [1], 5), make_request(1, [2], 5), make_request(2, [3], 5, n=2)]
    engine.serve(Hello(), AddRequests(requests), AbortRequests([0, 2], [-1, 1]), ResetPrefixCache())
    assert isinstance(engine.outbox.messages[0], EngineReady)
    assert ended(engine.outbox.messages)[0] is FinishReason.ABORT
    assert ended(engine.outbox.messages)[1] is FinishReason.LENGTH
    last = [m for m in engine.outbox.messages if isinstance(m, EngineStats)][-1]
    assert last.idle and last.num_running == last.num_waiting == 0
    # One token of the aborted choice is not generated.
    assert last.generation_tokens == 1 + 5 + 5
    assert last.step_seconds > 0.0


def test_a_handle_in_use_does_not_disturb_its_owner():
    engine = FakeEngine()
    first = make_request(0, [1], 5)
    engine.serve(AddRequests([first, make_request(0, [2], 5)]))
    batches = [m for m in engine.outbox.messages if isinstance(m, OutputBatch)]
    tokens = [token for batch in batches for token in batch.token_ids.tolist()]
    assert tokens == engine.expect(first)


def test_refusals_reach_the_client_of_an_idle_engine():
    engine = FakeEngine(4)
    engine.serve(AddRequests([make_request(0, range(100))]))
    failures = [f for m in engine.outbox.messages if isinstance(m, OutputBatch) for f in m.failures]
    assert [(f.handle, f.status) for f in failures] == [(0, 400)]


def test_stats_are_paced_and_told_once_when_idle():
    stats = StatsReporter()
    assert stats.due(idle=False) and not stats.due(idle=False)
    assert stats.due(idle=True) and not stats.due(idle=True)
    with stats.timed():
        pass
    assert not stats.due(idle=False), "too soon"
    assert stats.due(idle=True), "a step ran since"


def test_the_running_step_tells_its_age():
    stats = StatsReporter()
    assert stats.running_seconds == 0.0
    with stats.timed():
        assert stats.running_seconds > 0.0
    assert stats.running_seconds == 0.0


@LOOPS
def test_steps_go_on_while_an_adapter_is_read(overlap):
    """However long its file system takes; and it is loaded when the loop has nothing else to do."""
    engine = FakeEngine(overlap=overlap)
    may_read, taken = threading.Event(), []

    def read(folder):
        assert may_read.wait(10)
        if folder == "/broken":
            raise ValueError("it is broken")
        return f"weights of {folder}"

    engine.worker.read_adapter = read
    engine.worker.load_adapter = lambda adapter, weights: taken.append((adapter, weights))

    def answers() -> list[AdapterLoaded]:
        return [m for m in engine.outbox.messages if isinstance(m, AdapterLoaded)]

    class Inbox:
        script = [[LoadAdapter("slow", "/slow"), LoadAdapter("broken", "/broken")]]
        script += [[AddRequests([make_request(1, [5, 6], 6)])]]

        def receive(self, timeout_seconds):
            if self.script:
                return self.script.pop(0)
            if timeout_seconds is None:
                raise NothingMoreError
            if timeout_seconds > 0:
                assert may_read.is_set() or not answers()
                may_read.set()
            return []

    engine.loop._inbox = Inbox()
    with pytest.raises(NothingMoreError):
        engine.loop.run()
    ending = next(i for i, m in enumerate(engine.outbox.messages) if ended([m]))
    assert not answers() or ending < engine.outbox.messages.index(answers()[0])
    told = {answer.name: answer for answer in answers()}
    assert told["slow"].error is None and taken == [(told["slow"].adapter, "weights of /slow")]
    assert told["broken"].error == "it is broken"
    engine.loop.check()
