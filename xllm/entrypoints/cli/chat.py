"""``xllm chat``: a conversation in the terminal, with a running server or one started for it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from xllm.core.config import env
from xllm.core.config.flags import add_flags, config_from, explicit_values
from xllm.entrypoints.cli.own_server import OwnServer
from xllm.entrypoints.cli.remote import Remote

_DEFAULT_URL = "http://127.0.0.1:8000"
_TOPICS = ("model", "cache", "scheduler", "execution")
_HELP = """/help    this text
/clear   forget the conversation
/exit    leave (so does Ctrl-D); Ctrl-C stops an answer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to talk to and how; options of a server that is started for the chat."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"Server to talk to. By default the one on {_DEFAULT_URL} if it serves MODEL, else "
        "one that is started here and ends with the chat.",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", default=env.api_key(), help="By default $XLLM_API_KEY."
    )
    parser.add_argument("--system", metavar="TEXT", help="System message.")
    parser.add_argument(
        "-q", "--quick", metavar="TEXT", help="Print the answer to this one message and end."
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="Longest answer in tokens.")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy.")
    add_flags(parser, _TOPICS)


def run(args: argparse.Namespace) -> int:
    """Talk until the end of the input."""
    config_from(args)  # senseless options end here, whoever serves
    with _server(args) as remote:
        sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature}
        fields = {key: value for key, value in sampling.items() if value is not None}
        model = remote.first_model()
        conversation = Conversation(remote, {"model": model, **fields}, args.system)
        if args.quick is not None:
            return 0 if conversation.ask(args.quick, _write) else 1
        if sys.stdin.isatty():
            print(f"{model} on {remote.url}. /help shows the commands.")
        answered = _talk(conversation)
    # A person has seen what could not be answered and went on; a script goes by the exit code.
    return 0 if answered or sys.stdin.isatty() else 1


class Conversation:
    """The messages so far, and the next answer.

    Args:
        remote: the server.
        fields: fields of every request, e.g. the model.
        system: system message, if any.
    """

    def __init__(self, remote: Remote, fields: dict[str, Any], system: str | None = None) -> None:
        self._remote = remote
        self._fields = fields
        self._system = system
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str, write: Callable[[str], None]) -> bool:
        """Stream the answer to ``text`` to ``write``; whether there was one.

        Ctrl-C stops the answer; what was written stays part of the conversation. A message that
        could not be answered is taken out of it again.
        """
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []
        error = None
        with contextlib.closing(self._remote.chat(self.messages, **self._fields)) as answer:
            try:
                for part in answer:
                    parts.append(part)
                    write(part)
            except KeyboardInterrupt:
                write(" [stopped]")
            except ValueError as problem:
                error = problem
        write("\n")
        if error is not None:
            print(f"xllm chat: {error}", file=sys.stderr)
            self.messages.pop()
            return False
        self.messages.append({"role": "assistant", "content": "".join(parts)})
        return True


def _talk(conversation: Conversation) -> bool:
    """Talk until the end of the input; whether every message was answered."""
    answered = True
    prompt = "> " if sys.stdin.isatty() else ""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            return answered
        except KeyboardInterrupt:
            print()
            continue
        if text == "/exit":
            return answered
        if text == "/clear":
            conversation.clear()
        elif text.startswith("/"):
            print(_HELP)
        elif text:
            answered = conversation.ask(text, _write) and answered


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[Remote]:
    """The server that was named, else the one that runs, else one of our own."""
    values = explicit_values(args)
    remote = Remote(args.url or _DEFAULT_URL, args.api_key)
    if args.url or _serves(remote, values.get("model")):
        yield remote
        return
    with OwnServer(values) as own:
        yield own


def _serves(remote: Remote, model: str | None) -> bool:
    if not remote.ready():
        return False
    try:
        return model in (None, remote.first_model())
    except ValueError:  # it wants another key, or is none of ours
        return False


def _write(text: str) -> None:
    print(text, end="", flush=True)
