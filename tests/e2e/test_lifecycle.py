"""Starting, draining and dying: nothing hangs, nothing is left behind."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import KEY, Server, alive, kill, leftovers, running, wait


class Reader(threading.Thread):
    """Reads one streamed answer to its end."""

    def __init__(self, server: Server, **body: Any) -> None:
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.events: list[str] = []
        self.broken = False
        self.start()

    def run(self) -> None:
        try:
            with self.server.stream(**self.body) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line[6:])
        except httpx.TransportError:
            self.broken = True

    def wait_begun(self) -> "Reader":
        wait(lambda: self.events, 30)
        return self


def gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def test_health_is_503_until_the_first_token_can_be_made(model: Path) -> None:
    with running(model, ready=False) as server:
        seen = []

        def ready() -> bool:
            seen.append(server.health())
            if seen[-1] == 503:
                answers = [server.complete().status_code, server.http.get("/ready").status_code]
                # Only a server that became ready between the questions may answer one of them.
                assert answers == [503, 503] or server.health() == 200
            return seen[-1] == 200

        wait(ready, 120, lambda: server.log)
        assert server.complete(max_tokens=1).status_code == 200
        assert server.http.get("/ready").status_code == 200
    assert set(seen) <= {0, 503, 200} and 503 in seen


def test_a_port_in_use_ends_the_second_server_at_once_with_one_line(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        before = leftovers()
        server = Server(model, port=port)
        begin = time.monotonic()
        assert server.process.wait(30) != 0
        assert time.monotonic() - begin < 15
        lines = [line for line in server.log.splitlines() if str(port) in line]
        assert len(lines) == 1 and "Traceback" not in server.log
        assert leftovers() <= before
        server.stop()


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_sigkill_leaves_nothing_behind(model: Path, victim: str) -> None:
    """OPS-21: two sequences run, more wait; all of them are told."""
    before = leftovers()
    with running(model, "--max-num-seqs", "2") as server:
        engine = server.engine_pid()
        stream = Reader(server, max_tokens=450).wait_begun()
        if victim == "server":
            kill(server.process.pid)
            server.process.wait(5)
            wait(lambda: gone([engine]), 2)
            wait(lambda: leftovers() <= before, 2)
            return
        kill(engine, signal.SIGSTOP)  # or a fast machine ends the first before the last has come
        whole: list[httpx.Response] = []

        def complete() -> None:
            whole.append(server.complete(max_tokens=450, ignore_eos=True))

        asking = [threading.Thread(target=complete) for _ in range(3)]
        for thread in asking:
            thread.start()
        waiting = Reader(server, max_tokens=5)
        wait(lambda: server.http.get("/load").json()["server_load"] == 5, 5)
        kill(engine)
        wait(lambda: server.health() == 503, 2)
        wait(lambda: gone([engine]), 2)
        stream.join(5)
        assert not stream.is_alive() and not stream.broken
        assert "error" in json.loads(stream.events[-1])
        waiting.join(5)
        assert not waiting.is_alive() and not waiting.broken
        assert not waiting.events or "error" in json.loads(waiting.events[-1])
        for thread in asking:
            thread.join(5)
        assert len(whole) == 3
        for answer in whole:
            assert answer.status_code in (500, 503)
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert server.complete().status_code == 503
        assert server.process.wait(20) != 0  # it ends, so that a supervisor starts a new one
    wait(lambda: leftovers() <= before, 2)


def test_sigkill_while_loading_leaves_nothing_behind(model: Path) -> None:
    before = leftovers()
    pause = random.Random(1)
    for _ in range(3):
        server = Server(model)
        wait(lambda s=server: s.health() == 503, 60, lambda s=server: s.log)  # type: ignore[misc]
        time.sleep(pause.uniform(0, 1.0))
        children = server.children()
        kill(server.process.pid)
        server.process.wait(5)
        wait(lambda c=children: gone(c), 5)  # type: ignore[misc]
        wait(lambda: leftovers() <= before, 5)
        server.stop()


def test_a_stopped_engine_turns_health_into_503(model: Path) -> None:
    with running(model) as server:
        engine = server.engine_pid()
        kill(engine, signal.SIGSTOP)
        assert wait(lambda: server.health() == 503, 3) < 2.5
        kill(engine, signal.SIGCONT)
        wait(lambda: server.health() == 200, 3)
        assert server.complete(max_tokens=1).status_code == 200


def test_sigterm_finishes_what_runs_and_refuses_what_comes(model: Path) -> None:
    before = leftovers()
    with running(model) as server:
        engine = server.engine_pid()
        stream = Reader(server, max_tokens=240).wait_begun()
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.http.get("/ready").status_code == 503, 2)
        refused = server.complete()
        assert refused.status_code == 503 and "retry-after" in refused.headers
        stream.join(60)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(10) == 0
        assert gone([engine]) and leftovers() <= before


def test_a_drain_waits_for_what_is_made_in_the_background(model: Path) -> None:
    with running(model) as server:
        body = {"model": "tiny", "input": "Hi", "background": True, "ignore_eos": True}
        body["max_output_tokens"] = 450
        made = [server.http.post("/v1/responses", json=body).json() for _ in range(4)]
        server.process.send_signal(signal.SIGTERM)
        for each in made:  # one after the other, by a client that takes its time
            while True:
                time.sleep(0.5)
                seen = server.http.get(f"/v1/responses/{each['id']}").json()["status"]
                if seen != "in_progress":
                    break
            assert seen == "incomplete"  # by its length, after all of it
        begin = time.monotonic()
        assert server.process.wait(30) == 0
        assert time.monotonic() - begin < 3  # with the last one fetched, nobody is owed anything
        assert "draining" in server.log and "unfinished" not in server.log


def test_a_drain_lets_accepted_work_ask_the_engine_again(model: Path) -> None:
    """Every step of a beam search is a new engine request; a body may still be on its way."""
    beam = {"model": "tiny", "prompt": "Once", "max_tokens": 200, "n": 4, "use_beam_search": True}
    late = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 4, "ignore_eos": True})
    answers: list[httpx.Response] = []

    def search() -> None:
        answers.append(server.http.post("/v1/completions", json={**beam, "ignore_eos": True}))

    def begun(count: int) -> bool:
        return server.metrics()["xllm:generation_tokens_total"] > count

    before = leftovers()
    with running(model) as server, socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            f"Connection: close\r\nContent-Length: {len(late)}\r\n\r\n{late[:9]}".encode()
        )
        thread = threading.Thread(target=search)
        thread.start()
        wait(lambda: begun(8), 30)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.http.get("/ready").status_code == 503, 2)
        assert not answers, "the search ended before the signal"
        assert server.complete().status_code == 503
        slow.sendall(late[9:].encode())
        with slow.makefile("rb") as lines:
            assert lines.readline().split()[1] == b"200"
        thread.join(60)
        (answer,) = answers
        assert answer.status_code == 200, answer.text
        assert [choice["finish_reason"] for choice in answer.json()["choices"]] == ["length"] * 4
        assert server.process.wait(10) == 0 and "unfinished" not in server.log
    wait(lambda: leftovers() <= before, 2)


def test_a_search_that_outlives_the_shutdown_timeout_ends_with_an_error(model: Path) -> None:
    beam = {"model": "tiny", "prompt": "Once", "n": 8, "use_beam_search": True, "ignore_eos": True}
    answers: list[httpx.Response] = []
    with running(model, "--shutdown-timeout", "0.2") as server:

        def search() -> None:
            answers.append(server.http.post("/v1/completions", json={**beam, "max_tokens": 500}))

        thread = threading.Thread(target=search)
        thread.start()
        wait(lambda: server.metrics()["xllm:generation_tokens_total"] > 8, 30)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0
        thread.join(5)
        assert answers[0].status_code == 503


def test_a_drain_ends_after_the_shutdown_timeout(model: Path) -> None:
    with running(model, "--shutdown-timeout", "0.3") as server:
        # Far more than it can finish before the timeout.
        stream = Reader(server, max_tokens=500, n=64).wait_begun()
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert time.monotonic() - begin < 5
        stream.join(5)
        assert "error" in json.loads(stream.events[-1])


def test_a_second_sigterm_ends_at_once(model: Path) -> None:
    with running(model) as server:
        engine = server.engine_pid()
        # Far more than it can finish before the second signal.
        Reader(server, max_tokens=500, n=64).wait_begun()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) == 128 + signal.SIGTERM
        wait(lambda: gone([engine]), 2)


def test_two_signals_at_once_are_one_request_to_stop(model: Path) -> None:
    with running(model) as server:
        engine = server.engine_pid()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        wait(lambda: gone([engine]), 2)
        assert "Traceback" not in server.log and "dead" not in server.log


def test_a_start_that_cannot_work_says_why_in_one_line(model: Path) -> None:
    for flags, word in ((["--max-model-len", "100000"], "max_model_len"),):
        server = Server(model, *flags)
        assert server.process.wait(60) != 0
        errors = [line for line in server.log.splitlines() if "error" in line.lower()]
        assert len(errors) == 1 and word in errors[0].replace("-", "_"), server.log
        server.stop()


def test_a_full_queue_is_refused_with_429_and_empties_again(model: Path) -> None:
    with running(model, "--max-num-seqs", "1", "--max-waiting", "2") as server:
        readers = [Reader(server, max_tokens=400).wait_begun()]
        readers += [Reader(server, max_tokens=5) for _ in range(2)]
        wait(lambda: server.http.get("/load").json()["server_load"] == 3, 10)
        refused = server.complete()
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for reader in readers:
            reader.join(60)
            assert reader.events[-1] == "[DONE]"
        assert server.complete(max_tokens=1).status_code == 200


def test_inner_sockets_have_no_name_once_connected(model: Path) -> None:
    before = leftovers()
    with running(model):
        assert {path for path in leftovers() - before if "xllm-" in path} == set()


def test_the_engine_entry_refuses_to_run_without_a_server() -> None:
    command = [sys.executable, "-m", "xllm.assembly.process.process_start", "0", "cpu"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert KEY.encode() not in done.stderr
