"""What a server is started with and beside: templates, ports, other servers."""

import json
import shlex
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Server, leftovers, running, tiny_model

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without its chat template."""
    folder = tmp_path_factory.mktemp("models") / "bare"
    shutil.copytree(tiny_model(), folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))
    return folder


def chat(server: Server, **fields: Any) -> httpx.Response:
    return server.http.post("/v1/chat/completions", json={**CHAT, **fields})


def proposed(server: Server) -> tuple[str, dict[str, Any]]:
    """URL and body of the command that the last line of the start proposes."""
    (line,) = [line for line in server.log.splitlines() if line.startswith("try: ")]
    words = shlex.split(line.removeprefix("try: "))
    return words[1], json.loads(words[-1])


def test_a_model_without_a_template_completes_and_says_what_chats_need(bare: Path) -> None:
    """TOK-21."""
    with running(bare) as server:
        for stream in (False, True):
            refused = chat(server, stream=stream)
            assert refused.status_code == 400
            assert "no chat template" in refused.json()["error"]["message"]
            assert "--chat-template" in refused.json()["error"]["message"]
        message = {"model": "tiny", "max_tokens": 4, "messages": CHAT["messages"]}
        assert server.http.post("/v1/messages", json=message).status_code == 400
        response = {"model": "tiny", "input": "Hi"}
        assert server.http.post("/v1/responses", json=response).status_code == 400
        assert server.complete().status_code == 200
        assert server.health() == 200
        url, body = proposed(server)
        assert server.http.post(url, json=body).status_code == 200
        assert "chat page" not in server.log


def test_a_template_file_repairs_a_model_without_one(bare: Path, tmp_path: Path) -> None:
    """TOK-21."""
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}({{ m.role }}) {{ m.content }}\n{% endfor %}>")
    with running(bare, "--chat-template", str(template)) as server:
        answer = chat(server)
        assert answer.status_code == 200, answer.text
        rendered = server.http.post("/v1/chat/completions/render", json=CHAT).json()
        assert "(user) Hi\n>" in json.dumps(rendered, ensure_ascii=False).replace("\\n", "\n")
        assert answer.json()["usage"]["prompt_tokens"] == len("(user) Hi\n>")
        url, body = proposed(server)
        assert url.endswith("/v1/chat/completions") and body["max_tokens"] <= 100
        assert server.http.post(url, json=body).status_code == 200
        assert "chat page" in server.log


def test_a_template_file_that_is_not_there_or_no_template_is_one_line(
    bare: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}")
    for path in (tmp_path / "none.jinja", broken):
        server = Server(bare, "--chat-template", str(path))
        assert server.process.wait(60) != 0
        errors = [line for line in server.log.splitlines() if "error" in line.lower()]
        assert len(errors) == 1 and "template" in errors[0], server.log
        server.stop()


def test_servers_share_a_machine_but_not_a_port(model: Path) -> None:
    """OPS-23: the second on a port ends before it loads anything; one on another port is fine."""
    before = leftovers()
    with running(model) as first:
        second = Server(model, port=first.port)
        begin = time.monotonic()
        assert second.process.wait(30) != 0
        assert time.monotonic() - begin < 15
        lines = second.log.splitlines()
        assert len([line for line in lines if str(first.port) in line]) == 1, second.log
        assert not any("load" in line.lower() for line in lines), "it began to load"
        assert "Traceback" not in second.log
        second.stop()
        with running(model) as other:
            assert other.engine_pid() != first.engine_pid()
            answers = [server.complete(temperature=0) for server in (first, other, first)]
            texts = [answer.json()["choices"][0]["text"] for answer in answers]
            assert texts[0] == texts[1] == texts[2]
        assert first.complete().status_code == 200
    assert leftovers() <= before
