"""``xllm run-batch``: a file of requests in, a file of answers out, in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xllm.core.config.flags import add_flags, config_from

if TYPE_CHECKING:
    from xllm.assembly.llm import Services

_TOPICS = ("model", "cache", "scheduler", "execution", "observability")


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
        "-o", "--output-file", metavar="FILE", required=True, help="Answers, in the same order."
    )
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    add_flags(parser, _TOPICS)


def run(args: argparse.Namespace) -> int:
    """Answer every line; 1 if any request was refused or failed."""
    config = config_from(args)
    lines = read_lines(Path(args.input_file))
    output = Path(args.output_file)
    output.touch()  # a path that cannot be written fails before the model loads
    from xllm.assembly.registry import build
    from xllm.core.observability.logging import configure_logging
    from xllm.entrypoints.http.startup import StartupReport

    configure_logging(config.observability.log_level)
    report = StartupReport()

    async def main() -> list[dict[str, Any]]:
        stack = build(config, report.progress)
        await stack.start()
        report.end_phase()
        try:
            assert stack.services is not None
            # As many at once as the engine queues: it batches them better than we could.
            at_once = config.scheduler.max_waiting
            return await answer_all(stack.services, lines, at_once, not args.disable_tqdm)
        finally:
            await stack.close()

    answers = asyncio.run(main())
    output.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    failed = sum(answer["response"]["status_code"] != 200 for answer in answers)
    print(f"{len(answers)} answers in {output}, {failed} of them errors", file=sys.stderr)
    return 1 if failed else 0


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The requests of a batch file; empty lines are skipped.

    Raises:
        ValueError: the file or a line cannot be used; the message names it.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"--input-file {path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"--input-file {path}:{number}: not JSON: {error}") from None
        for key in ("custom_id", "url", "body"):
            if not isinstance(record, dict) or key not in record:
                raise ValueError(f"--input-file {path}:{number}: {key} is required")
        found.append(record)
    return found


async def answer_all(
    services: Services, lines: Iterable[dict[str, Any]], at_once: int, show: bool
) -> list[dict[str, Any]]:
    """One record of the output file per line, in order."""
    from tqdm import tqdm

    lines = list(lines)
    slots = asyncio.Semaphore(at_once)
    with tqdm(total=len(lines), desc="requests", disable=not show) as bar:

        async def one(line: dict[str, Any]) -> dict[str, Any]:
            async with slots:
                status, body = await _answer(services, line["url"], line["body"])
            bar.update()
            response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": body}
            return {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": line["custom_id"],
                "response": response,
                "error": None,
            }

        return await asyncio.gather(*map(one, lines))


async def _answer(services: Services, url: str, body: Any) -> tuple[int, Any]:
    """Status and body, as the server would have answered."""
    import msgspec

    from xllm.frontend.protocol.chat import ChatCompletionRequest
    from xllm.frontend.protocol.completions import CompletionRequest
    from xllm.frontend.protocol.decode import decode_request
    from xllm.frontend.protocol.errors import RequestError

    routes: dict[str, tuple[type[Any], Any]] = {
        "/v1/chat/completions": (ChatCompletionRequest, services.chat.handle),
        "/v1/completions": (CompletionRequest, services.completions.handle),
    }
    try:
        if url not in routes:
            raise RequestError(404, f"url {url!r} is not one of {', '.join(routes)}")
        schema, handle = routes[url]
        request = decode_request(schema, json.dumps(body).encode())
        if request.stream:
            raise RequestError.bad_field("stream", "is not possible in a batch")
        return 200, msgspec.to_builtins(await handle(request))
    except RequestError as error:
        return error.status, msgspec.to_builtins(error.body())
