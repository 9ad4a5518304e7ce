"""scripts/venv, without the minutes that it takes."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_an_environment_that_was_left_half_made_is_made_again(tmp_path: Path) -> None:
    """As Debian leaves it without python3-venv: a Python, but no pip."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/venv", tmp_path / "scripts/venv")
    (tmp_path / "pyproject.toml").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to("/bin/true")
    (tmp_path / ".venv/xllm-plain").touch()  # nothing is left to install
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@" >> asked\n')
    python.chmod(0o755)

    for calls in (1, 1, 0):
        (tmp_path / "asked").unlink(missing_ok=True)
        if not calls:
            (binaries / "pip").symlink_to("/bin/true")
        environment = {**os.environ, "PYTHON": str(python)}
        subprocess.run([tmp_path / "scripts/venv"], check=True, env=environment, timeout=30)
        assert (tmp_path / "asked").read_text().count("-m venv .venv") == calls
