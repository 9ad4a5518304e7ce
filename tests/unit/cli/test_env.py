from pathlib import Path

import pytest

from xllm.core.config import env


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("XLLM_CACHE", "XDG_CACHE_HOME", "XLLM_API_KEY"):
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
    monkeypatch.setenv("XLLM_API_KEY", "secret")
    assert env.api_key() == "secret"


def test_a_child_gets_this_environment_and_the_overrides(monkeypatch):
    monkeypatch.setenv("XLLM_CACHE", "/c")
    child = env.child_environment(TMPDIR="/t")
    assert (child["XLLM_CACHE"], child["TMPDIR"]) == ("/c", "/t")
