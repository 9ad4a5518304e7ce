"""Ops for CPUs.

Owns kernels for CPUs. Does not own what an op means (``ops``, ``reference``).
"""


def prepare() -> None:
    """Begin what must be done before the first op."""


def ready() -> bool:
    """Whether the kernels of this folder can run."""
    return True
