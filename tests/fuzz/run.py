"""Sends mutated requests to a real server and says what it found.

    scripts/fuzz --requests 200000 [--seed 1] [--connections 16] [--tight]

The server is ``xllm serve`` with its engine process on a two-layer model with random weights. A
finding is: a status of 5xx, an error inside a stream that is not the client's, an error without the
envelope, an answer that is not JSON, no answer in time, an engine that exited, a row or block that
is still held when all is quiet, or a valid request that is answered differently afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from harness import KEY, Server, running, tiny_model

from tests.fuzz.client import Answer, Connection
from tests.fuzz.mutate import Case, Mutator
from tests.fuzz.seeds import SEEDS

ANSWER_SECONDS = 60.0
_MAX_SHOWN = 50
TIGHT = ("--num-kv-tokens", "768", "--max-num-batched-tokens", "64")  # chunks and preemptions
FLAGS = ("--max-n", "8", "--max-prompts", "16", "--request-timeout", "45", "--max-num-seqs", "32")


class Findings:
    """Counts what came back and keeps what should not have."""

    def __init__(self) -> None:
        self.statuses: collections.Counter[int] = collections.Counter()
        self.found: list[str] = []

    def note(self, what: str, case: Case) -> None:
        """Remember a finding with the request that caused it."""
        shown = case.body[:600].decode("utf-8", "replace")
        self.found.append(f"{what}\n  {case.method} {case.path} {case.headers[1:]}\n  {shown}")
        if len(self.found) <= _MAX_SHOWN:
            print("FINDING", self.found[-1], flush=True)

    def judge(self, case: Case, answer: Answer) -> None:
        """Look at one answer."""
        self.statuses[answer.status] += 1
        if case.cut_request is not None or case.cut_answer is not None or case.method == "HEAD":
            return
        if answer.status == 0:
            self.note("the connection was closed without an answer", case)
        elif answer.status >= 500:
            self.note(f"status {answer.status}: {answer.body[:300]!r}", case)
        elif answer.headers.get("content-type", "").startswith("text/event-stream"):
            for line in answer.body.split(b"\n"):
                if line.startswith(b"data: {") and (code := _stream_error(line)) >= 500:
                    self.note(f"error {code} in a stream: {line[:300]!r}", case)
        elif answer.status >= 400:
            try:
                error = json.loads(answer.body)
                error = error["error"]
                assert error["message"] and "type" in error
            except (ValueError, KeyError, TypeError, AssertionError):
                self.note(
                    f"status {answer.status} without the envelope: {answer.body[:200]!r}", case
                )


def _stream_error(line: bytes) -> int:
    event = json.loads(line[6:])
    error = event.get("error") if isinstance(event, dict) else None
    code = error.get("code") if isinstance(error, dict) else 0
    return code if isinstance(code, int) else 400 * bool(error)


async def attack(server: Server, requests: int, seed: int, connections: int) -> Findings:
    """Send that many cases over that many connections."""
    findings = Findings()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    mutator = Mutator(SEEDS, headers, seed)
    cases = (mutator.case() for _ in range(requests))
    begin = time.monotonic()
    sent = 0

    async def work() -> None:
        nonlocal sent
        connection = Connection(server.port, ANSWER_SECONDS)
        for case in cases:
            try:
                findings.judge(case, await connection.send(case))
            except TimeoutError:
                findings.note(f"no answer within {ANSWER_SECONDS:g} s", case)
            sent += 1
            if sent % 5000 == 0:
                rate = sent / (time.monotonic() - begin)
                print(f"{sent} sent, {rate:.0f}/s, {len(findings.found)} findings", flush=True)
        connection.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    return findings


def probe(server: Server) -> Any:
    """The answer to a valid greedy request."""
    answer = server.complete(temperature=0, max_tokens=16, ignore_eos=True, logprobs=1)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def fuzz(requests: int, seed: int, connections: int, flags: Sequence[str] = ()) -> Findings:
    """One server, one attack, and a look at what is left."""
    with running(tiny_model(), *FLAGS, *flags) as server:
        engine, before = server.engine_pid(), probe(server)
        findings = asyncio.run(attack(server, requests, seed, connections))
        nobody = Case("GET", "/health", (("", b""),), b"")
        if server.children() != [engine]:
            findings.note(f"the engine is another process: {engine}, {server.children()}", nobody)
        if probe(server) != before:
            findings.note("a valid request is answered differently afterwards", nobody)
        deadline = time.monotonic() + 10
        while (load := server.http.get("/load").json())["num_running"] + load["num_waiting"]:
            if time.monotonic() > deadline:
                findings.note(f"rows are still held: {load}", nobody)
                break
            time.sleep(0.1)
    return findings


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--tight", action="store_true", help="small steps, small KV pool")
    arguments = parser.parse_args()
    flags = TIGHT if arguments.tight else ()
    findings = fuzz(arguments.requests, arguments.seed, arguments.connections, flags)
    print("statuses:", dict(sorted(findings.statuses.items())))
    print(f"{sum(findings.statuses.values())} answered, {len(findings.found)} findings")
    return int(bool(findings.found))


if __name__ == "__main__":
    sys.exit(main())
