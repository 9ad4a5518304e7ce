import os
import subprocess
import sys
from pathlib import Path

import pytest

from xllm.core.config import env


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("XLLM_CACHE", "XDG_CACHE_HOME", "XLLM_API_KEY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)


def test_the_cache_is_ours_then_the_desktops_then_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    assert env.cache_dir() == Path("/home/u/.cache/xllm")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert env.cache_dir() == Path("/x/xllm")
    monkeypatch.setenv("XLLM_CACHE", "~/own")
    assert env.cache_dir() == Path("/home/u/own")


def test_an_empty_key_is_no_key(monkeypatch):
    assert env.api_key() is None
    monkeypatch.setenv("XLLM_API_KEY", "")
    assert env.api_key() is None
    monkeypatch.setenv("XLLM_API_KEY", " \n")
    assert env.api_key() is None
    monkeypatch.setenv("XLLM_API_KEY", "secret\n")
    assert env.api_key() == "secret"


def test_a_child_gets_this_environment_and_the_overrides(monkeypatch):
    monkeypatch.setenv("XLLM_CACHE", "/c")
    child = env.child_environment(TMPDIR="/t")
    assert (child["XLLM_CACHE"], child["TMPDIR"]) == ("/c", "/t")


def test_waiting_threads_sleep_soon_unless_the_user_says_how_they_wait(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    env.let_waiting_threads_sleep()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    env.let_waiting_threads_sleep()
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    env.let_waiting_threads_sleep()
    assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 300_000


@pytest.mark.parametrize("door", ["xllm.entrypoints.offline", "xllm.assembly.process.process_main"])
def test_no_door_imports_torch_before_its_engine_is_built(door):
    # OpenMP reads how its threads are to wait when torch loads it.
    code = f"import sys, {door}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
