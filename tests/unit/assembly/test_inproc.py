"""The engine of offline use."""

import signal

import pytest

from tests.fakes.engine import FakeEngine, make_request
from xllm.assembly.engine import Engine
from xllm.assembly.inproc import InprocEngine
from xllm.core.config import XllmConfig


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("at", ["schedule", "execute", "commit"])
def test_an_interrupt_in_a_step_leaves_an_engine_that_goes_on(monkeypatch, overlap, at):
    fake = FakeEngine(overlap=overlap)
    engine = InprocEngine(XllmConfig())
    engine._engine = Engine(fake.loop, fake.scheduler, fake.worker, fake.loop._ready)
    owner = fake.worker if at == "execute" else fake.scheduler
    plain, calls = getattr(owner, at), []

    def interrupted(*args):
        calls.append(at)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return plain(*args)

    monkeypatch.setattr(owner, at, interrupted)
    requests = [make_request(handle, [1, 2, 3], 20) for handle in range(2)]
    for request in requests:
        fake.open(request)
    engine.add(requests[:1])
    with pytest.raises(KeyboardInterrupt):
        while engine.has_work:
            engine.step()
    engine.abort([0], [-1])
    engine.add(requests[1:])
    while engine.has_work:
        for batch in engine.step():
            fake.take(batch)
        fake.loop.check()
    assert fake.answers[1, 0].tokens == fake.expect(requests[1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
