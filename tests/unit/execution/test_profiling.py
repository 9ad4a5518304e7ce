"""A profile of a worker's steps."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from xllm.execution.worker import profiling
from xllm.execution.worker.profiling import StepProfiler


def events(path: Path) -> list[str]:
    with gzip.open(path) as trace:
        return [event["name"] for event in json.load(trace)["traceEvents"] if "name" in event]


def work(profiler: StepProfiler) -> None:
    profiler.step()
    torch.ones(4) + torch.ones(4)


def test_a_trace_holds_the_steps_between_start_and_stop(tmp_path: Path) -> None:
    profiler = StepProfiler(str(tmp_path / "new"))
    work(profiler)
    path = profiler.start()
    work(profiler)
    work(profiler)
    assert profiler.stop() == path
    names = events(path)
    assert names.count("aten::add") == 2
    assert any(name.startswith("ProfilerStep") for name in names)


def test_a_profile_that_nobody_stops_ends_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_MAX_STEPS", 3)
    profiler = StepProfiler(str(tmp_path))
    profiler.start()
    for _ in range(20):
        work(profiler)
    assert 0 < events(profiler.stop()).count("aten::add") <= 3


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--profiler-dir"):
        StepProfiler(None).start()
    profiler = StepProfiler(str(tmp_path))
    with pytest.raises(ValueError, match="no profile"):
        profiler.stop()
    profiler.start()
    with pytest.raises(ValueError, match="being taken"):
        profiler.start()
    profiler.stop()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--profiler-dir"):
        StepProfiler(str(tmp_path / "file" / "x")).start()
