import asyncio
import json
from types import SimpleNamespace

import pytest

from xllm.assembly import registry
from xllm.entrypoints.cli import main as cli
from xllm.frontend.protocol.errors import RequestError


class FakeStack:
    """Answers every request with what it was asked for."""

    def __init__(self):
        self.open = self.peak = 0
        self.closed = False
        handled = SimpleNamespace(handle=self.handle)
        self.services = SimpleNamespace(chat=handled, completions=handled)

    async def start(self):
        pass

    async def close(self):
        self.closed = True

    async def handle(self, body):
        self.open += 1
        self.peak = max(self.peak, self.open)
        await asyncio.sleep(0.001)
        self.open -= 1
        if body.model != "fake":
            raise RequestError(404, f"model {body.model} does not exist")
        return {"kind": type(body).__name__, "max_tokens": body.max_tokens}


@pytest.fixture
def batch(tmp_path, monkeypatch):
    stack = FakeStack()
    monkeypatch.setattr(registry, "build", lambda config, on_progress: stack)

    def run(*lines, flags=()):
        source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
        arguments = ["run-batch", "-i", str(source), "-o", str(target), "--disable-tqdm", *flags]
        code = cli.main(arguments)
        done = target.read_text().splitlines() if target.exists() else []
        return code, [json.loads(line) for line in done]

    run.stack = stack
    return run


def request(name, url="/v1/completions", **fields):
    body = {"model": "fake", "prompt": "hello", "messages": [], **fields}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def test_answers_keep_the_order_and_the_ids_of_the_requests(batch):
    code, answers = batch(
        request("a", max_tokens=3), "", request("b", url="/v1/chat/completions", max_tokens=4)
    )
    assert code == 0 and batch.stack.closed
    assert [answer["custom_id"] for answer in answers] == ["a", "b"]
    bodies = [answer["response"]["body"] for answer in answers]
    assert bodies == [
        {"kind": "CompletionRequest", "max_tokens": 3},
        {"kind": "ChatCompletionRequest", "max_tokens": 4},
    ]
    assert {answer["response"]["status_code"] for answer in answers} == {200}


@pytest.mark.parametrize(
    ("bad", "status", "named"),
    [
        (request("bad", model="other"), 404, "other"),
        (request("bad", url="/v1/embeddings"), 404, "/v1/embeddings"),
        (request("bad", stream=True), 400, "stream"),
        (request("bad", max_tokens="many"), 400, "max_tokens"),
    ],
)
def test_a_refused_request_is_an_answer_and_spoils_no_other(batch, bad, status, named):
    code, (refused, good) = batch(bad, request("good"))
    assert code == 1
    assert refused["response"]["status_code"] == status
    assert named in refused["response"]["body"]["error"]["message"]
    assert good["response"]["status_code"] == 200


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"custom_id": "a", "url": "/v1/completions"}'])
def test_a_bad_line_ends_before_the_model_loads_naming_it(batch, line, capsys):
    code, answers = batch(request("a"), line)
    assert (code, answers) == (2, [])
    assert "in.jsonl:2" in capsys.readouterr().err


def test_no_more_are_open_than_the_engine_queues(batch):
    code, answers = batch(*(request(str(i)) for i in range(9)), flags=["--max-waiting", "3"])
    assert code == 0 and len(answers) == 9
    assert batch.stack.peak == 3


def test_a_missing_file_is_one_line(capsys, tmp_path):
    missing = str(tmp_path / "no.jsonl")
    assert cli.main(["run-batch", "-i", missing, "-o", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert missing in line
