"""``xllm run-batch``: a file of requests in, a file of answers out, in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xllm.core.config.flags import add_flags, config_from

if TYPE_CHECKING:
    from httpx import AsyncClient

_TOPICS = ("model", "lora", "cache", "scheduler", "execution", "observability")
_ROUTE = re.compile(r"(/[\w.-]+)+", re.ASCII)
_BUSY_SECONDS = 0.5  # before a request that found no room is sent again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two files, and every option of the engine."""
    parser.add_argument(
        "-i",
        "--input-file",
        metavar="FILE",
        required=True,
        help='JSON lines {"custom_id": id, "method": "POST", "url": route, "body": request}.',
    )
    parser.add_argument(
        "-o",
        "--output-file",
        metavar="FILE",
        required=True,
        help="Answers, as they come; requests whose custom_id has one there are skipped.",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Forget the answers of an earlier run."
    )
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    add_flags(parser, _TOPICS)


def run(args: argparse.Namespace) -> int:
    """Answer every line that has no answer yet; 1 if any has none or one that is not 200."""
    config = config_from(args)
    # A request waits for its turn as long as the batch takes.
    config = dataclasses.replace(
        config, server=dataclasses.replace(config.server, request_timeout=0.0, api_key=[])
    )
    lines = read_lines(Path(args.input_file))
    with AnswerFile(Path(args.output_file), args.overwrite) as answers:
        left = [line for line in lines if line["custom_id"] not in answers.done]
        refused = sum(answers.done.get(line["custom_id"], 200) != 200 for line in lines)
        if len(left) < len(lines):
            errors = f", {refused} of them with errors (--overwrite begins anew)" if refused else ""
            num_done = len(lines) - len(left)
            print(f"{num_done} requests are answered already{errors}", file=sys.stderr)
        if left:
            asyncio.run(_serve_batch(config, left, answers, not args.disable_tqdm))
        num_new, failed = answers.num_new, answers.num_failed
    print(f"{num_new} new answers in {args.output_file}, {failed} of them errors", file=sys.stderr)
    missing = len(left) - num_new
    if missing:
        print(
            f"xllm: error: the engine ended before {missing} requests were answered; "
            "the same command goes on with them",
            file=sys.stderr,
        )
    return 1 if refused or failed or missing else 0


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The requests of a batch file; empty lines are skipped.

    Raises:
        ValueError: the file or a line cannot be used; the message names it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"--input-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--input-file {path}: not UTF-8 text") from None
    found: dict[str, dict[str, Any]] = {}
    # Not splitlines: a text in JSON may hold U+2028 and others that it would take for an end.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"--input-file {path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {error}") from None
        for key in ("custom_id", "url", "body"):
            if not isinstance(record, dict) or key not in record:
                raise ValueError(f"{where}: {key} is required")
        for key in ("custom_id", "url"):
            if not isinstance(record[key], str):
                raise ValueError(f"{where}: {key} must be a string")
        if record["custom_id"] in found:
            raise ValueError(f"{where}: custom_id {record['custom_id']!r} is used twice")
        found[record["custom_id"]] = record
    return list(found.values())


class AnswerFile:
    """The output file: one line per answer, each appended whole.

    What a killed run left is kept, but for a last line that it did not finish.

    Args:
        path: created if it does not exist.
        overwrite: begin with an empty file.

    Attributes:
        done: status of each answer that an earlier run gave, by the id of its request.
        num_new: answers of this run.
        num_failed: those of them whose status is not 200.

    Raises:
        ValueError: the file cannot be written, or holds something else than answers.
    """

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.done: dict[str, int] = {}
        self.num_new = 0
        self.num_failed = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if overwrite else 0)
        try:
            self._file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise ValueError(f"--output-file {path}: {error.strerror}") from None
        whole = 0
        self._file.seek(0)
        for number, line in enumerate(self._file.read().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                record = json.loads(line)
                self.done[record["custom_id"]] = record["response"]["status_code"]
            except (ValueError, KeyError, TypeError):
                self._file.close()
                raise ValueError(f"--output-file {path}:{number}: not an answer") from None
        self._file.truncate(whole)
        self._path = path

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def append(self, custom_id: str, status: int, body: Any) -> None:
        """Write the answer to one request.

        Raises:
            ValueError: the file takes no more; what it has of this answer goes with the next run.
        """
        response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": body}
        record = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": custom_id,
            "response": response,
            "error": None,
        }
        line = memoryview(json.dumps(record).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise ValueError(f"--output-file {self._path}: {error.strerror}") from None
        self.num_new += 1
        self.num_failed += status != 200


async def _serve_batch(
    config: Any, lines: Sequence[dict[str, Any]], answers: AnswerFile, show: bool
) -> None:
    """Answer the lines with an engine of their own.

    Raises:
        ValueError: it could not be started.
    """
    from httpx import ASGITransport, AsyncClient

    from xllm.assembly.process.engine_client import EngineFailed
    from xllm.assembly.registry import build
    from xllm.core.observability.logging import configure_logging
    from xllm.entrypoints.http.activity import Activity
    from xllm.entrypoints.http.app import create_app
    from xllm.entrypoints.http.startup import StartupReport

    configure_logging(config.observability.log_level, config.observability.log_format)
    report = StartupReport(config.observability.log_format)
    stack = build(config, report.progress)
    try:
        await stack.start()
        report.end_phase()
        # The server's own application, without a socket: every route of it can be asked.
        app = ASGITransport(create_app(stack, config.server, Activity()))
        async with AsyncClient(transport=app, base_url="http://batch", timeout=None) as client:
            # As many at once as the engine queues: it batches them better than we could.
            at_once = config.scheduler.max_waiting
            await _answer_all(client, lines, answers, at_once, lambda: stack.accepting, show)
    except EngineFailed as error:
        raise ValueError(str(error)) from None
    finally:
        await stack.close()


async def _answer_all(
    client: AsyncClient,
    lines: Sequence[dict[str, Any]],
    answers: AnswerFile,
    at_once: int,
    engine_lives: Callable[[], bool],
    show: bool,
) -> None:
    """Answer every line, unless the engine ends: then the rest has no answer.

    Raises:
        ValueError: the answers cannot be written.
    """
    from tqdm import tqdm

    waiting = iter(lines)
    with tqdm(total=len(lines), desc="requests", disable=not show) as bar:

        async def work() -> None:
            for line in waiting:
                status, body = await _answer(client, line, engine_lives)
                if status == 503:
                    return
                answers.append(line["custom_id"], status, body)
                bar.update()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(at_once, len(lines))):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # for which the others were cancelled


async def _answer(
    client: AsyncClient, line: dict[str, Any], engine_lives: Callable[[], bool]
) -> tuple[int, Any]:
    """Status and body, as a server would have answered that is never busy."""
    import msgspec

    from xllm.frontend.protocol.errors import RequestError

    refusal = None
    if line.get("method", "POST") != "POST":
        refusal = RequestError.bad_field("method", "must be POST in a batch")
    elif not _ROUTE.fullmatch(line["url"]):
        refusal = RequestError.bad_field("url", "must be a route, such as /v1/chat/completions")
    elif isinstance(line["body"], dict):
        for field in ("stream", "background"):
            if line["body"].get(field):
                refusal = RequestError.bad_field(field, "is not possible in a batch")
    content = b""
    try:
        # What Python took for JSON (NaN, half a surrogate pair) is for the server to refuse.
        content = json.dumps(line["body"]).encode()
    except RecursionError:
        refusal = RequestError.bad_field("body", "is nested too deeply")
    if refusal is not None:
        return refusal.status, msgspec.to_builtins(refusal.body())
    headers = {"Content-Type": "application/json"}
    while True:
        response = await client.post(line["url"], content=content, headers=headers)
        # The engine's queue is full, or the compilers of grammars have too much to do.
        busy = response.status_code == 429 or (response.status_code == 503 and engine_lives())
        if not busy:
            return response.status_code, response.json()
        await asyncio.sleep(_BUSY_SECONDS)
