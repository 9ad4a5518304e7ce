"""The idle meter, with events whose times a test sets."""

from __future__ import annotations

import torch

from xllm.execution.worker.idle import IdleMeter


class FakeEvent:
    """Recorded at ``now`` (ms), over at once."""

    now = 0.0

    def __init__(self, device: torch.device, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at - self.at


def test_gaps_between_overlapping_steps_are_measured(monkeypatch) -> None:
    monkeypatch.setattr(torch, "Event", FakeEvent)
    meter = IdleMeter(torch.device("meta"))
    assert meter.percentiles() == (0.0, 0.0)
    for gap in (0.004, 0.004, None, 0.020, 0.004):  # at None, nothing overlapped
        end = FakeEvent(None, enable_timing=True)
        end.record()
        meter.note_end(None if gap is None else end)
        FakeEvent.now += 5.0 if gap is None else gap
        meter.mark_launch()
        FakeEvent.now += 1.0
    meter.mark_launch()  # settles what the last step left
    median, high = meter.percentiles()
    assert round(median) == 4
    assert 19.0 < high <= 20.001
