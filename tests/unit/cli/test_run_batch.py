import asyncio
import json
import math
import resource
from types import SimpleNamespace

import pytest

from xllm.assembly import registry
from xllm.assembly.process.engine_client import EngineFailed
from xllm.core.observability import logging
from xllm.entrypoints.cli import main as cli
from xllm.entrypoints.cli import run_batch
from xllm.frontend.protocol.errors import RequestError


class FakeStack:
    """Answers every request with what it was asked for."""

    def __init__(self):
        self.open = self.peak = 0
        self.closed = self.draining = False
        handled = SimpleNamespace(handle=self.handle)
        self.services = SimpleNamespace(chat=handled, completions=handled)
        self.answers_left = 1000
        self.refusals_left = 0
        self.refusal = RequestError(429, "full")

    @property
    def accepting(self):
        return self.answers_left > 0

    async def start(self):
        pass

    async def close(self):
        self.closed = True

    async def handle(self, body):
        self.open += 1
        self.peak = max(self.peak, self.open)
        await asyncio.sleep(0.001)
        self.open -= 1
        if self.refusals_left:
            self.refusals_left -= 1
            raise self.refusal
        if not self.answers_left:
            raise RequestError(503, "the engine is gone")
        self.answers_left -= 1
        if body.model != "fake":
            raise RequestError(404, f"model {body.model} does not exist")
        return {"kind": type(body).__name__, "max_tokens": body.max_tokens}


@pytest.fixture
def batch(tmp_path, monkeypatch):
    stack = FakeStack()
    monkeypatch.setattr(registry, "build", lambda config, on_progress: stack)

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def run(*lines, flags=(), read=True):
        source.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
        arguments = ["run-batch", "-i", str(source), "-o", str(target), "--disable-tqdm", *flags]
        code = cli.main(arguments)
        done = target.read_text().splitlines() if read and target.exists() else []
        return code, [json.loads(line) for line in done]

    run.stack, run.target = stack, target
    return run


def request(name, url="/v1/completions", **fields):
    body = {"model": "fake", "prompt": "hello", "messages": [], **fields}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def test_each_answer_carries_the_id_of_its_request(batch):
    code, answers = batch(
        request("a", max_tokens=3), "", request("b", url="/v1/chat/completions", max_tokens=4)
    )
    assert code == 0 and batch.stack.closed
    bodies = {answer["custom_id"]: answer["response"]["body"] for answer in answers}
    assert bodies == {
        "a": {"kind": "CompletionRequest", "max_tokens": 3},
        "b": {"kind": "ChatCompletionRequest", "max_tokens": 4},
    }
    assert {answer["response"]["status_code"] for answer in answers} == {200}


@pytest.mark.parametrize(
    ("bad", "status", "named"),
    [
        (request("bad", model="other"), 404, "other"),
        (request("bad", url="/v1/nothing"), 404, "/v1/nothing"),
        (request("bad", url="v1/completions"), 400, "url"),
        ({**request("bad"), "method": "GET"}, 400, "method"),
        (request("bad", url="/v1/\x00completions"), 400, "url"),
        (request("bad", url="//[/v1/completions"), 400, "url"),
        (request("bad", stream=True), 400, "stream"),
        (request("bad", background=True), 400, "background"),
        (request("bad", temperature=math.nan), 400, "JSON"),
        (request("bad", prompt="\ud800"), 400, "JSON"),
        (request("bad", max_tokens="many"), 400, "max_tokens"),
    ],
)
def test_a_refused_request_is_an_answer_and_spoils_no_other(batch, bad, status, named):
    code, answers = batch(bad, request("good"))
    assert code == 1
    refused, good = sorted(answers, key=lambda answer: answer["custom_id"])
    assert refused["response"]["status_code"] == status
    assert named in refused["response"]["body"]["error"]["message"]
    assert good["response"]["status_code"] == 200


def test_a_body_that_is_too_deep_to_send_spoils_no_other(batch):
    for depth in range(900, 1000, 3):
        deep = json.dumps(request("bad", x="HERE")).replace('"HERE"', "[" * depth + "]" * depth)
        code, answers = batch(deep, request("good"), flags=["--overwrite"])
        if code == 2:  # too deep to read
            break
        statuses = {each["custom_id"]: each["response"]["status_code"] for each in answers}
        assert statuses["good"] == 200 and statuses["bad"] in (200, 400)


def test_a_line_ends_where_json_lines_end_and_nowhere_else(batch):
    text = "one\u2028two\u0085three"
    lines = [json.dumps(request(name, user=text), ensure_ascii=False) for name in ("a", "b")]
    lines[0] = "\ufeff" + lines[0] + "\r"
    code, answers = batch(*lines)
    assert code == 0 and len(answers) == 2


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", "[]", '{"custom_id": "b", "url": "/v1/completions"}'),
        *(request("a"), request(7), {**request("b"), "url": 1}),
        *("[" * 100_000,),
    ],
)
def test_a_bad_line_ends_before_the_model_loads_naming_it(batch, line, capsys):
    code, answers = batch(request("a"), line)
    assert (code, answers) == (2, [])
    assert "in.jsonl:2" in capsys.readouterr().err


def test_a_run_goes_on_where_another_was_killed(batch):
    lines = [request(str(i)) for i in range(6)]
    batch(*lines[:3])
    with batch.target.open("r+b") as file:  # killed within its third line
        file.truncate(batch.target.stat().st_size - 5)
    first = batch.target.read_bytes()
    batch.stack.answers_left = 4
    code, answers = batch(*lines)
    assert code == 0
    assert sorted(answer["custom_id"] for answer in answers) == list("012345")
    assert batch.target.read_bytes().startswith(first[: first.rindex(b"\n") + 1])
    assert batch.stack.answers_left == 0
    code, again = batch(*lines)  # nothing is left: no engine is started
    assert (code, again) == (0, answers)


def test_an_answer_of_an_earlier_run_that_is_an_error_counts_again(batch, capsys):
    lines = [request("good"), request("bad", model="other")]
    assert batch(*lines)[0] == 1
    capsys.readouterr()
    assert batch(*lines)[0] == 1
    assert "2 requests are answered already, 1 of them with errors" in capsys.readouterr().err
    assert batch(lines[0])[0] == 0  # whose answer is not asked for does not count


def test_overwrite_forgets_earlier_answers(batch):
    batch(request("a"), request("b"))
    code, answers = batch(request("c"), flags=["--overwrite"])
    assert code == 0 and [answer["custom_id"] for answer in answers] == ["c"]


def test_what_a_dead_engine_leaves_unanswered_stays_for_the_next_run(batch, capsys):
    batch.stack.answers_left = 2
    code, answers = batch(*(request(str(i)) for i in range(5)), flags=["--max-waiting", "1"])
    assert code == 1 and len(answers) == 2
    assert "3 requests" in capsys.readouterr().err


@pytest.mark.parametrize(
    "refusal",
    [RequestError(429, "full"), RequestError(503, "the grammar compilers are busy")],
    ids=["queue", "compilers"],
)
def test_a_busy_engine_is_asked_again(batch, monkeypatch, refusal):
    monkeypatch.setattr(run_batch, "_BUSY_SECONDS", 0.001)
    batch.stack.refusals_left, batch.stack.refusal = 3, refusal
    code, answers = batch(request("a"), request("b"))
    assert code == 0 and len(answers) == 2


def test_an_engine_that_does_not_start_is_one_line(batch, monkeypatch, capsys):
    async def fail():
        raise EngineFailed("--max-model-len is more than the model allows")

    monkeypatch.setattr(batch.stack, "start", fail)
    code, answers = batch(request("a"))
    assert (code, answers, batch.stack.closed) == (2, [], True)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "xllm run-batch: error: --max-model-len is more than the model allows"
    )


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(batch, capsys):
    lines = [request(name) for name in "abcdef"]
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))
    try:
        code, _ = batch(*lines, read=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert code == 2 and batch.stack.closed
    assert capsys.readouterr().err == (
        f"xllm run-batch: error: --output-file {batch.target}: File too large\n"
    )
    code, answers = batch(*lines)
    assert code == 0 and sorted(answer["custom_id"] for answer in answers) == list("abcdef")


def test_an_output_that_is_something_else_is_left_alone(batch, capsys):
    batch.target.write_text("my notes\n")
    code, _ = batch(request("a"), read=False)
    assert code == 2 and "out.jsonl:1" in capsys.readouterr().err
    assert batch.target.read_text() == "my notes\n"


def test_the_log_has_the_format_that_was_asked_for(batch, monkeypatch):
    asked = []
    monkeypatch.setattr(logging, "configure_logging", lambda *values: asked.append(values))
    batch(request("a"), flags=["--log-level", "warning", "--log-format", "json"])
    assert asked == [("warning", "json")]


def test_no_more_are_open_than_the_engine_queues(batch):
    code, answers = batch(*(request(str(i)) for i in range(9)), flags=["--max-waiting", "3"])
    assert code == 0 and len(answers) == 9
    assert batch.stack.peak == 3


def test_a_missing_file_is_one_line(capsys, tmp_path):
    missing = str(tmp_path / "no.jsonl")
    assert cli.main(["run-batch", "-i", missing, "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert missing in line
