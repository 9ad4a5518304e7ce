"""``xllm doctor``: what this machine offers, what is missing, and the command that fixes it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from importlib import metadata

from xllm.core.config import env
from xllm.version import __version__

# The direct dependencies, as the package index names them (a test compares with pyproject.toml).
REQUIRED = (
    "torch",
    "numpy",
    "msgspec",
    "pyzmq",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "httpx",
    "jinja2",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "gguf",
    "prometheus-client",
    "tqdm",
)
_OPTIONAL = {
    "llguidance": ("structured output and forced tool calls", "pip install llguidance"),
    "pyyaml": ("YAML files for --config", "pip install pyyaml"),
}
_MIN_FREE_BYTES = 1 << 30
_MIN_FILES = 4096
_PORT = 8000
_MARKS = {"ok": " ", "note": "-", "warning": "!", "error": "x"}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fact. ``fix`` is a command or a sentence for what is not ``ok``."""

    section: str
    text: str
    level: str = "ok"  # ok, note (optional), warning (works worse) or error (does not work)
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The form of the report."""
    parser.add_argument("--json", action="store_true", help="Print JSON lines.")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if xLLM cannot run."""
    found = list(findings())
    if args.json:
        for finding in found:
            print(json.dumps(dataclasses.asdict(finding)))
    else:
        print("\n".join(report(found)))
    return 1 if any(finding.level == "error" for finding in found) else 0


def report(found: list[Finding]) -> list[str]:
    """The lines for people: facts by section, then what to do."""
    lines = []
    section = ""
    for finding in found:
        if finding.section != section:
            section = finding.section
            lines.append(section)
        lines.append(f" {_MARKS[finding.level]} {finding.text}")
    fixes = [finding for finding in found if finding.fix]
    lines.append("to do" if fixes else "nothing is missing")
    lines += [f" {_MARKS[f.level]} {f.text}\n     {f.fix}" for f in fixes]
    return lines


def findings() -> Iterator[Finding]:
    """Every fact, section by section."""
    yield Finding("system", f"xLLM {__version__}, Python {platform.python_version()}")
    yield Finding("system", f"{platform.platform()}, {platform.machine()}")
    yield from _packages()
    yield from _devices()
    yield _compiler()
    yield from _limits()
    yield from _storage()
    yield _server()


def _packages() -> Iterator[Finding]:
    for name in REQUIRED:
        version = _version(name)
        if version is None:
            yield Finding("packages", f"{name} is missing", "error", f"pip install {name}")
        else:
            yield Finding("packages", f"{name} {version}")
    for name, (use, command) in _OPTIONAL.items():
        version = _version(name)
        if version is None:
            yield Finding("packages", f"{name} is missing: {use}", "note", command)
        else:
            yield Finding("packages", f"{name} {version}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[Finding]:
    if _version("torch") is None:
        return
    from xllm.assembly.machine import devices

    for device in devices():
        if device.missing is not None:
            yield Finding("devices", f"{device.name}: {device.missing}", "note")
            continue
        memory = f"{_gib(device.free_bytes)} of {_gib(device.total_bytes)} free"
        text = f"{device.name}: {device.description}, {memory}"
        if device.free_bytes < _MIN_FREE_BYTES:
            yield Finding("devices", text, "warning", "end other programs, or choose a small model")
        else:
            yield Finding("devices", text)
        if device.attention:
            yield Finding("devices", f"{device.name}: {device.attention} attention")
        for reason in device.passed_over:
            yield Finding("devices", f"{device.name}: no {reason}", "note")


def _compiler() -> Finding:
    if _version("torch") is None:
        path = shutil.which("c++")
    else:
        from xllm.assembly.machine import compiler

        path = compiler()
    if path is None:
        return Finding(
            "compiler",
            "no C++ compiler: CPU kernels run in plain torch, several times slower",
            "warning",
            "apt install g++",
        )
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Finding("compiler", f"{path}: {(answer.stdout.splitlines() or ['?'])[0]}")


def _limits() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding("limits", f"{cores} of {os.cpu_count()} processors may be used")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _MIN_FILES:
        yield Finding(
            "limits",
            f"{hard} open files at most: that many connections fail",
            "warning",
            f"ulimit -Hn {_MIN_FILES}",
        )
    else:
        yield Finding("limits", f"{'unlimited' if hard < 0 else hard} open files at most")


def _storage() -> Iterator[Finding]:
    cache = env.cache_dir()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{cache}: {_gib(free)} free"
    if not os.access(existing, os.W_OK):
        yield Finding("cache", f"{text}, not writable", "error", "export XLLM_CACHE=FOLDER")
    elif free < _MIN_FREE_BYTES:
        yield Finding("cache", text, "warning", "export XLLM_CACHE=FOLDER on a larger disk")
    else:
        yield Finding("cache", text)
    if _version("gguf") is None or _version("torch") is None:
        return
    from xllm.assembly.bundled import bundled_models

    for model in bundled_models():
        yield Finding("cache", f"{model.name}: {model.path or f'xllm pull {model.name}'}")


def _server() -> Finding:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        taken = probe.connect_ex(("127.0.0.1", _PORT)) == 0
    if taken:
        return Finding("server", f"something listens on port {_PORT}; xllm serve needs --port")
    return Finding("server", f"port {_PORT} is free")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
