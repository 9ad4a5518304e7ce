"""``xllm``: dispatch to a subcommand. Stays free of heavy imports: help must come at once."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from xllm.core.utils.suggestion import suggestion
from xllm.version import __version__

# Subcommand -> its line in the help. Its module (dashes as underscores) has ``add_arguments`` and
# ``run``.
COMMANDS = {
    "serve": "serve a model over the OpenAI API",
    "chat": "talk to a model in the terminal",
    "bench": "measure throughput, latency or a running server",
    "run-batch": "answer a file of API requests",
    "pull": "fetch a bundled model",
    "doctor": "show what this machine offers and what is missing",
    "version": "print the version",
}

_EXAMPLES = """examples:
  xllm serve                       serve the bundled smollm2 on http://127.0.0.1:8000
  xllm serve Qwen/Qwen3-0.6B       serve a model of the Hugging Face Hub
  xllm chat                        chat with the server that runs, or start one
  xllm COMMAND --help              all options of a command
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: the usage of ``serve`` alone would fill a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help lists the options)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Bad options end with 2 and one line."""
    arguments = [_dashed(a) for a in (sys.argv[1:] if argv is None else argv)]
    parser = _Parser(
        prog="xllm",
        description="LLM inference engine: OpenAI-compatible server and offline API.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"xllm {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        if arguments[:1] == [name]:
            module = importlib.import_module(f"xllm.entrypoints.cli.{name.replace('-', '_')}")
            module.add_arguments(command)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        blamed = _innermost(parser, args)
        known = [flag for action in blamed._actions for flag in action.option_strings]
        blamed.error("unknown: " + " ".join(text + _suggestion(text, known) for text in unknown))
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return int(module.run(args))
    except ValueError as error:
        print(f"xllm {args.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _innermost(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> argparse.ArgumentParser:
    """The parser of the subcommand's subcommand, as far as there is one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            name = getattr(args, action.dest, None)
            return parser if name is None else _innermost(action.choices[name], args)
    return parser


def _suggestion(unknown: str, known: Sequence[str]) -> str:
    """A question for the option that was meant, if one is close to what was written."""
    flag = unknown.partition("=")[0]
    return suggestion(flag, known) if flag.startswith("-") else ""


def _dashed(argument: str) -> str:
    """``--max_model_len=8`` as ``--max-model-len=8``: both spellings are common."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value


if __name__ == "__main__":
    sys.exit(main())
