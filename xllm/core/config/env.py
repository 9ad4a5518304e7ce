"""Every environment variable that xLLM reads or sets, in one typed place."""

from __future__ import annotations

import os
from pathlib import Path

# Rounds that an OpenMP thread spins for its next kernel before it sleeps: some 0.1 ms. With the
# library's own 300,000 it holds a processor for milliseconds that the others may need to get there.
_SPINS = "3000"


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
    flag gives one. A secret on a command line is visible to every user of the machine. Blanks
    around it, such as the line end of a mounted file, are none of it."""
    return os.environ.get("XLLM_API_KEY", "").strip() or None


def child_environment(**overrides: str) -> dict[str, str]:
    """This process's environment with ``overrides``, for a child process."""
    return {**os.environ, **overrides}


def let_waiting_threads_sleep() -> None:
    """Bound how long OpenMP's threads spin, in this process and its children.

    Call it before torch is imported. ``$GOMP_SPINCOUNT`` and ``$OMP_WAIT_POLICY`` stay as they are.
    """
    if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        os.environ["GOMP_SPINCOUNT"] = _SPINS
