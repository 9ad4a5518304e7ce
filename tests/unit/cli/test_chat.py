import io
import sys

import pytest

from tests.unit.cli.fake_server import FakeServer
from xllm.entrypoints.cli import main as cli
from xllm.entrypoints.cli.chat import Conversation
from xllm.entrypoints.cli.remote import Remote

ANSWER = "w0 w1 w2 "


def talk(monkeypatch, server, text, *flags):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return cli.main(["chat", "--url", server.url, *flags])


def contents(body):
    return [(message["role"], message["content"]) for message in body["messages"]]


def test_each_turn_carries_the_conversation_so_far(monkeypatch, capsys):
    with FakeServer() as server:
        assert talk(monkeypatch, server, "one\ntwo\n", "--system", "be brief") == 0
    assert contents(server.bodies[1]) == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", ANSWER),
        ("user", "two"),
    ]
    assert capsys.readouterr().out == f"{ANSWER}\n{ANSWER}\n"


def test_clear_forgets_all_but_the_system_message(monkeypatch):
    with FakeServer() as server:
        talk(monkeypatch, server, "one\n/clear\ntwo\n", "--system", "s")
    assert contents(server.bodies[1]) == [("system", "s"), ("user", "two")]


def test_exit_ends_the_chat_and_help_asks_nobody(monkeypatch, capsys):
    with FakeServer() as server:
        assert talk(monkeypatch, server, "/help\n\n/exit\nnever\n") == 0
        assert server.bodies == []
    assert "/clear" in capsys.readouterr().out


def test_sampling_flags_reach_the_server(monkeypatch):
    with FakeServer() as server:
        talk(monkeypatch, server, "one\n", "--max-tokens", "5", "--temperature", "0")
    body = server.bodies[0]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("fake", 5, 0)
    assert body["stream"] is True


def test_one_quick_question_gives_one_answer(monkeypatch, capsys):
    with FakeServer() as server:
        assert talk(monkeypatch, server, "never", "-q", "hello") == 0
    assert contents(server.bodies[0]) == [("user", "hello")]
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_a_refused_message_is_told_and_taken_back(monkeypatch, capsys):
    with FakeServer(status=400) as server:
        assert talk(monkeypatch, server, "one\ntwo\n") == 1
        assert talk(monkeypatch, server, "", "-q", "hello") == 1
    assert contents(server.bodies[1]) == [("user", "two")]
    assert "no room" in capsys.readouterr().err


def test_who_sits_before_a_terminal_has_seen_what_was_refused(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(io, "StringIO", Terminal)
    with FakeServer(status=400) as server:
        assert talk(monkeypatch, server, "one\n") == 0


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said():
    with FakeServer() as server:
        conversation = Conversation(Remote(server.url), {"model": "fake"})

        def interrupt(text):
            if text == "w1 ":
                raise KeyboardInterrupt

        assert conversation.ask("one", interrupt)
    assert conversation.messages[-1] == {"role": "assistant", "content": "w0 w1 "}


def test_no_server_at_the_url_is_one_line(capsys):
    assert cli.main(["chat", "--url", "http://127.0.0.1:9", "-q", "x"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("xllm chat: error: --url http://127.0.0.1:9")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_as_openai_clients_want_it(suffix):
    with FakeServer() as server:
        assert Remote(server.url + suffix).first_model() == "fake"
