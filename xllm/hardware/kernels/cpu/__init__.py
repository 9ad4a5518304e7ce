"""Ops on the CPU: own C++, compiled for this machine on first use (``native``).

Owns how the ops run there, and the packing of linear weights. Does not own what an op means; where
there is no compiler every op runs the reference.
"""

from xllm.hardware.kernels.cpu import native

__all__ = ["prepare", "ready"]


def prepare() -> None:
    """Begin compiling in the background."""
    native.begin()


def ready() -> bool:
    """Wait for the kernels; whether they can run."""
    return native.library() is not None
