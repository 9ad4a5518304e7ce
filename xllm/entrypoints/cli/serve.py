"""``xllm serve``: the OpenAI-compatible server."""

from __future__ import annotations

import argparse

from xllm.assembly.process.spawn import spawn_engine
from xllm.core.config import env
from xllm.core.config.flags import add_flags, config_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option of every topic."""
    key = env.api_key()
    add_flags(parser, defaults={"api_key": [key]} if key else None)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    config = config_from(args)
    engine = spawn_engine(config.execution.device)
    # Web framework and services load beside the engine's libraries.
    from xllm.entrypoints.http.lifecycle import serve

    return serve(config, engine)
