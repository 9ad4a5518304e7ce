"""What an engine process does before it is told its model."""

from __future__ import annotations

import gc
import importlib

import pytest

from xllm.assembly.process import process_main


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_while_libraries_load(monkeypatch, fails: bool) -> None:
    """Nor is what they left looked through later."""
    steps: list[object] = []

    def load(name: str) -> None:
        steps.append((name, gc.isenabled()))
        if fails:
            raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(gc, "freeze", lambda: steps.append("freeze"))
    assert gc.isenabled()
    process_main._preload()
    assert gc.isenabled()
    assert steps == [("xllm.execution.worker", False), "freeze"]
