"""``xllm version``."""

from __future__ import annotations

import argparse

from xllm.version import __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(args: argparse.Namespace) -> int:
    """Print it, and nothing else."""
    print(__version__)
    return 0
