"""The whole path: HTTP, services, engine process, worker."""

import concurrent.futures
import contextlib
import json
import os
import socket
import time
import urllib.parse
from pathlib import Path

import httpx
import pytest
from harness import KEY, Server, running, wait


def events(response: httpx.Response) -> list[str]:
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


def test_a_completion_streams_the_same_text_that_it_returns_whole(server: Server) -> None:
    whole = server.complete(temperature=0, max_tokens=24, ignore_eos=True).json()
    assert whole["usage"]["completion_tokens"] == 24
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
    with server.stream(**body) as response:
        *chunks, done = events(response)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert "".join(c["choices"][0]["text"] for c in parsed) == whole["choices"][0]["text"]
    assert [c["choices"][0]["finish_reason"] for c in parsed][-1] == "length"


def test_a_truncated_prompt_is_its_end_and_nothing_else(server: Server) -> None:
    whole = "He went home. Once upon a time"
    ids = server.http.post("/tokenize", json={"prompt": whole}).json()["tokens"]
    end = server.complete(prompt=ids[-6:], temperature=0).json()
    cut = server.complete(
        prompt=whole, truncate_prompt_tokens=6, temperature=0, echo=True, return_token_ids=True
    ).json()
    assert cut["usage"]["prompt_tokens"] == 6
    assert cut["choices"][0]["prompt_token_ids"] == ids[-6:]
    assert cut["choices"][0]["text"].endswith(end["choices"][0]["text"])
    assert "He went" not in cut["choices"][0]["text"]


def test_a_chat_is_answered_with_the_model_template(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "model": "tiny"}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["role"] == "assistant"
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    tokens = server.http.post(
        "/tokenize", json={"prompt": rendered, "add_special_tokens": False}
    ).json()
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    text = server.http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text["prompt"] == rendered


def test_the_model_list_names_the_served_model(server: Server) -> None:
    (card,) = server.http.get("/v1/models").json()["data"]
    assert (card["id"], card["task"]) == ("tiny", "chat")
    assert server.http.get("/v1/models/tiny").json()["id"] == "tiny"
    assert server.http.get("/v1/models/other").status_code == 404


def test_many_requests_at_once_each_get_their_own_answer(server: Server) -> None:
    def ask(i: int) -> str:
        answer = server.complete(prompt=f"Item {i}", temperature=0, max_tokens=12)
        text: str = answer.json()["choices"][0]["text"]
        return text

    alone = [ask(i) for i in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == alone


def test_token_counters_rise_by_what_was_made_and_gauges_return_to_zero(server: Server) -> None:
    before = server.metrics()
    server.complete(max_tokens=7, ignore_eos=True)
    after = server.metrics()
    counter = "xllm:generation_tokens_total"
    assert after[counter] - before[counter] == 7
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        count = f"xllm:{name}_seconds_count"
        assert after[count] - before[count] == 1
    gaps = "xllm:inter_token_latency_seconds_count"
    assert after[gaps] - before[gaps] == 6
    finished = 'xllm:requests_finished_total{reason="length"}'
    assert after[finished] - before[finished] == 1
    wait(lambda: server.metrics()["xllm:num_requests_running"] == 0, 2)
    assert server.metrics()["xllm:num_requests_waiting"] == 0
    assert server.metrics()["xllm:kv_cache_usage_ratio"] == 0


def test_a_beam_search_is_one_request_in_the_metrics(server: Server) -> None:
    before = server.metrics()
    body = {"use_beam_search": True, "n": 3, "max_tokens": 4, "ignore_eos": True}
    usage = server.complete(**body).json()["usage"]
    after = server.metrics()
    rise = {name: after[name] - before[name] for name in after if name in before}
    assert rise["xllm:requests_started_total"] == 1
    assert rise['xllm:requests_finished_total{reason="length"}'] == 1
    assert rise["xllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert rise["xllm:generation_tokens_total"] == 1 + 3 * 3  # a beam's first token is shared
    for histogram in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert rise[f"xllm:{histogram}_seconds_count"] == 1
    assert server.http.get("/load").json()["server_load"] == 0


def test_a_client_that_leaves_frees_the_engine_and_is_counted_once_as_abort(
    server: Server,
) -> None:
    def aborts() -> float:
        return server.metrics()['xllm:requests_finished_total{reason="abort"}']

    before = aborts()
    for _ in range(5):
        with server.stream(max_tokens=400) as response:
            next(response.iter_lines())
    wait(lambda: aborts() == before + 5, 5)
    wait(lambda: server.metrics()["xllm:num_requests_running"] == 0, 5)
    time.sleep(0.3)
    assert aborts() == before + 5


def test_idle_connections_and_large_bodies_do_not_hurt(server: Server) -> None:
    import socket

    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert server.complete(max_tokens=1).status_code == 200
    huge = b'{"prompt": "' + b"a" * (20 << 20) + b'"}'
    assert server.http.post("/v1/completions", content=huge).status_code == 413
    assert server.complete(max_tokens=1).status_code == 200


def test_load_tells_a_router_what_it_needs(server: Server) -> None:
    load = server.http.get("/load").json()
    assert load["server_load"] == 0
    with server.stream(max_tokens=480, n=4) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.http.get("/load").json()["server_load"] == 1


def test_an_idle_server_uses_no_processor_time(server: Server) -> None:
    pids = [server.process.pid, *server.children()]
    time.sleep(0.5)

    def used() -> float:
        ticks = 0
        for pid in pids:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    begin, seconds = used(), 4.0
    time.sleep(seconds)
    assert (used() - begin) / seconds < 0.01


@pytest.mark.parametrize("path", ["/v1//completions", "/V1/completions", "/invocations"])
def test_unknown_paths_are_not_served(server: Server, path: str) -> None:
    assert server.http.post(path, json={"prompt": "x"}).status_code == 404


EVIL = "secret-words\r\nERROR 01-01 00:00:00 [xllm] forged\x1b[31m\x00\u2028end"


def test_what_clients_send_is_not_in_the_log(model: Path) -> None:
    """OPS-26: neither prompts nor keys, and nothing that could pass for a line of the log."""
    with running(model, "--log-level", "debug", "--log-requests") as server:
        server.complete(prompt=EVIL)
        server.complete(model=EVIL)
        server.complete(request_id=EVIL[:100])
        server.complete(stop=[EVIL], user=EVIL)
        server.complete(temperature=EVIL)
        chat = {"model": "tiny", "messages": [{"role": "user", "content": EVIL}]}
        server.http.post("/v1/chat/completions", json={**chat, "max_tokens": 2})
        server.http.get("/v1/models/" + urllib.parse.quote(EVIL))
        head = "GET /secret-words%0d%0aERROR HTTP/1.1\r\nHost: a\r\n"
        head += "X-Request-Id: secret-words\x1b[31m\r\nUser-Agent: secret-words\r\n"
        head += "Authorization: Bearer secret-key\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode())
            while connection.recv(4096):
                pass
        assert server.complete().status_code == 200
        log = server.log
    assert KEY not in log and "secret-key" not in log
    assert not any(c in log for c in "\x1b\x00\r\u2028")
    assert not any(line.startswith("ERROR 01-01") for line in log.splitlines())
    # A request is named by the id that its client chose, escaped, and by nothing else of it.
    told = [line for line in log.splitlines() if "secret-words" in line]
    assert all("\\r\\nERROR" in line for line in told)
    assert len(told) <= 1, told
