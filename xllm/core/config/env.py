"""Every environment variable that xLLM reads, in one typed place."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Where pulled models and compiled kernels are kept: ``$XLLM_CACHE``, else ``xllm`` below
    ``$XDG_CACHE_HOME`` or ``~/.cache``. It may not exist yet."""
    if own := os.environ.get("XLLM_CACHE"):
        return Path(own).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "xllm"
    return Path.home() / ".cache" / "xllm"


def api_key() -> str | None:
    """``$XLLM_API_KEY``: the key that ``xllm serve`` asks for and that the clients send, where no
    flag gives one. A secret on a command line is visible to every user of the machine."""
    return os.environ.get("XLLM_API_KEY") or None


def child_environment(**overrides: str) -> dict[str, str]:
    """This process's environment with ``overrides``, for a child process."""
    return {**os.environ, **overrides}
