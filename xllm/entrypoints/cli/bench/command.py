"""The subcommands of ``xllm bench``."""

from __future__ import annotations

import argparse
import importlib

KINDS = {
    "throughput": "offline: all requests at once through the engine in this process",
    "latency": "offline: one batch, again and again, through the engine in this process",
    "serve": "a running server over HTTP, streaming",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand per question; each is a module beside this one."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, summary in KINDS.items():
        module = importlib.import_module(f"xllm.entrypoints.cli.bench.{name}")
        kind = kinds.add_parser(
            name, help=summary, description=f"Measure {summary}.", allow_abbrev=False
        )
        module.add_arguments(kind)
        kind.set_defaults(run_kind=module.run)


def run(args: argparse.Namespace) -> int:
    """Measure, print the table, save it if asked."""
    return int(args.run_kind(args))
