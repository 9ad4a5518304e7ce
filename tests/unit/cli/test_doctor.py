import json
import re
import tomllib
from pathlib import Path

import pytest

from xllm.assembly import machine
from xllm.entrypoints.cli import doctor
from xllm.entrypoints.cli import main as cli

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """Loading torch for its device list takes seconds, and is not the question."""
    device = machine.Device("cpu", "a processor", 4 << 30, 2 << 30)
    monkeypatch.setattr(machine, "devices", lambda: [device])


def test_it_looks_for_exactly_the_direct_dependencies():
    with open(PROJECT, "rb") as file:
        wanted = tomllib.load(file)["project"]["dependencies"]
    assert set(doctor.REQUIRED) == {re.split(r"[<>=\[ ]", line)[0] for line in wanted}


def test_a_missing_package_is_an_error_with_its_command(monkeypatch, capsys):
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "gguf" else version(name))
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "x gguf is missing" in out and "pip install gguf" in out


def test_no_compiler_is_a_warning_with_its_command(monkeypatch, capsys):
    monkeypatch.setattr(machine, "compiler", lambda: None)
    assert cli.main(["doctor"]) == 0
    assert "apt install g++" in capsys.readouterr().out


def test_json_lines_carry_every_finding(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    sections = {finding["section"] for finding in found}
    assert {"system", "packages", "devices", "compiler", "limits", "cache", "server"} <= sections
    assert any("2.0 GiB of 4.0 GiB free" in finding["text"] for finding in found)


def test_the_report_ends_with_what_to_do():
    missing = doctor.Finding("a", "b is missing", "warning", "get b")
    assert doctor.report([missing])[-2:] == ["to do", " ! b is missing\n     get b"]
    assert doctor.report([doctor.Finding("a", "b")])[-1] == "nothing is missing"


def test_a_better_attention_backend_is_named_with_what_it_lacks(monkeypatch):
    gpu = machine.Device(
        "cuda", "a GPU", 4 << 30, 2 << 30, None, "triton", ("fa3 attention: not installed",)
    )
    monkeypatch.setattr(machine, "devices", lambda: [gpu])
    lines = [f.text for f in doctor.findings() if f.section == "devices"][1:]
    assert lines == ["cuda: triton attention", "cuda: no fa3 attention: not installed"]


def test_little_memory_is_a_warning(monkeypatch):
    small = machine.Device("cpu", "a processor", 4 << 30, 1 << 20)
    monkeypatch.setattr(machine, "devices", lambda: [small])
    (finding,) = [f for f in doctor.findings() if f.section == "devices"]
    assert finding.level == "warning" and finding.fix
