"""The benchmark scripts still load, and those that need no device and no download run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.contract.equivalence.tiny_engine import CONFIGS, EOS, write_checkpoint

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py"))
_LOAD_ALL = """
import runpy, sys
for path in sys.argv[1:]:
    sys.path[0] = path.rsplit("/", 1)[0]
    runpy.run_path(path, run_name="loaded")
"""


def run(*args: object) -> str:
    """Output of a script; it may say that a target was missed, here with good reason."""
    command = [sys.executable, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny checkpoint whose tokens are bytes."""
    write_checkpoint(tmp_path, "llama")
    config = CONFIGS["llama"] | {"eos_token_id": EOS, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    return tmp_path


def test_every_script_loads() -> None:
    assert len(SCRIPTS) >= 9
    run("-c", _LOAD_ALL, *SCRIPTS)


def test_host_overhead_runs(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    script = FOLDER / "host_overhead/run.py"
    printed = run(script, "--rows", 16, "--steps", 20, "--repeats", 1, "--json", figures)
    assert "us per row and step" in printed and "target: mean" in printed
    assert json.loads(figures.read_text())["steady_16_overlap"]["mean_us"] > 0


def test_host_overhead_runs_with_grammars(model: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    script = FOLDER / "host_overhead/run.py"
    sizes = ("--constrained", 4, "--device-step-ms", 2, "--steps", 40, "--repeats", 1)
    printed = run(script, *sizes, "--tokenizer", model, "--json", figures)
    assert "simulated device step 2 ms" in printed and "target: ratio" in printed
    found = json.loads(figures.read_text())
    assert found["rows"] == 4 and len(found["schemas"]) == 2
    for row in found["schemas"].values():
        assert row["free_ms"] > 1.0, "the simulated device sets the pace"
        assert row["constrained_ms"] > 1.0 and row["masks_cpu_us_per_row"] > 0


def test_structured_output_runs(model: Path) -> None:
    script = FOLDER / "structured_output/run.py"
    printed = run(script, "--model", model, "--rows", 3, "--steps", 4, "--device", "cpu")
    assert "added by 3 constrained rows" in printed


def test_http_stream_runs() -> None:
    sizes = ("--streams", "1,3", "--tokens", 5, "--total", 12)
    lines = run(FOLDER / "http_stream/run.py", *sizes).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [path, streams] for path in ("completions", "chat/completions") for streams in "13"
    ]
    assert all(float(line.split()[-1]) > 0 for line in lines[1:])
