import resource
import subprocess
import sys

import pytest

from xllm.core.config import env
from xllm.entrypoints.cli import main as cli
from xllm.version import __version__

HELP_SECONDS = 0.3
HEAVY = ("torch", "starlette", "numpy", "httpx", "tokenizers")


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_comes_at_once():
    # Processor time, and the best of three: the machine may be busy with other things.
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python("-m", "xllm.entrypoints.cli.main", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < HELP_SECONDS


@pytest.mark.parametrize("command", [[], ["serve"], ["chat"], ["bench", "serve"], ["doctor"]])
def test_help_imports_nothing_heavy(command):
    code = f"""
import sys
from xllm.entrypoints.cli.main import main
try:
    main([*{command!r}, "--help"])
except SystemExit:
    pass
print("heavy:", sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    assert python("-c", code).stdout.splitlines()[-1] == "heavy: []"


def test_every_command_of_the_help_has_help(capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: xllm {name}")


def test_no_command_shows_the_help(capsys):
    assert cli.main([]) == 0
    assert "xllm serve" in capsys.readouterr().out


def test_version_is_printed_alone(capsys):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-model-len", "0"], "--max-model-len"),
        (["--max-model-len", "-5"], "--max-model-len"),
        (["--max_model_len=0"], "--max-model-len"),
        (["--block-size", "0"], "--block-size"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--max-num-seqs", "many"], "--max-num-seqs"),
        (["--max-num-seq", "8"], "--max-num-seq"),
        (["--dtype", "int3"], "--dtype"),
        (["--allowed-origins", "[1"], "--allowed-origins"),
        (["--allowed-origins", "localhost:3000"], "--allowed-origins"),
        (["--allowed-origins", '["*", "http://localhost:3000/"]'], "--allowed-origins"),
        (["--api-key", ""], "--api-key"),
        (["--api-key", "good", "--api-key", "two words"], "--api-key"),
        (["--api-key", "schlüssel"], "--api-key"),
        (["--config", "/no/such.json"], "--config"),
    ],
)
def test_a_senseless_option_ends_with_one_line_naming_it(arguments, named, capsys):
    try:
        code = cli.main(["serve", *arguments])
    except SystemExit as end:
        code = end.code
    errors = capsys.readouterr().err.splitlines()
    assert code == 2
    assert len(errors) == 1
    assert errors[0].startswith("xllm serve: error: ") and named in errors[0]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["serve", "--max-model-length", "5"], "--max-model-len"),
        (["serve", "--max_model_length=5"], "--max-model-len"),
        (["serve", "--max-num-batch-tokens", "5"], "--max-num-batched-tokens"),
        (["serve", "--no-enable-prefix-cache"], "--no-enable-prefix-caching"),
        (["chat", "--modle", "smollm2"], "--model"),
        (["bench", "throughput", "--num-promts", "5"], "--num-prompts"),
        (["bench", "serve", "--num-prompt", "5"], "--num-prompts"),
        (["--verison"], "--version"),
        (["serve", "--no-such-flag"], None),
        (["serve", "smollm2", "surplus"], None),
    ],
)
def test_a_misspelt_option_is_answered_with_the_one_that_was_meant(arguments, meant, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (f" (did you mean {meant}?)" in line) if meant else ("did you mean" not in line)


def test_every_misspelt_option_is_named_with_the_one_that_was_meant(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "m", "--dtyp", "auto", "--nothing-like-it", "--max_num_seq=8"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "xllm serve: error: unknown: --dtyp (did you mean --dtype?) auto --nothing-like-it "
        "--max-num-seq=8 (did you mean --max-num-seqs?) ("
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len", "0"],
        ["--max-model-len", "-5"],
        ["--block-size", "0"],
        ["--no-such-option", "1"],
        ["--gpu-memory-utilization", "7"],
        ["--port", "70000"],
    ],
    ids=" ".join,
)
def test_a_senseless_start_ends_as_a_process_within_seconds(arguments):
    """API-30: no engine, no model, one line."""
    command = [sys.executable, "-m", "xllm.entrypoints.cli.main", "serve", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert process.returncode != 0
    (line,) = process.stderr.splitlines()
    named = arguments[0].replace("--gpu-memory", "--max-memory")
    assert line.startswith("xllm serve: error: ") and named in line
    assert process.stdout == ""


@pytest.mark.parametrize(
    ("flag", "value"), [("--scheduling", "nope"), ("--priority-policy", "nope")]
)
def test_an_unknown_policy_ends_before_any_engine_starts(flag, value):
    command = ["-m", "xllm.entrypoints.cli.main", "serve", "--port", "0", flag, value]
    done = python(*command)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"xllm: error: {flag} must be one of")


def test_serve_takes_its_key_from_the_environment_unless_a_flag_gives_one(monkeypatch):
    from xllm.entrypoints.cli import serve
    from xllm.entrypoints.http import lifecycle

    seen = []
    keep = seen.append
    monkeypatch.setattr(serve, "spawn_engine", lambda device: None)
    monkeypatch.setattr(lifecycle, "serve", lambda config, _: keep(config.server.api_key) or 0)
    monkeypatch.setattr(env, "api_key", lambda: "from-env")
    assert cli.main(["serve"]) == 0
    assert cli.main(["serve", "--api-key", "from-flag"]) == 0
    assert seen == [["from-env"], ["from-flag"]]
