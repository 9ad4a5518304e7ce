"""What serving launches was compiled at start, all of it together.

A kernel that is compiled when it is first launched holds up a start, or a request, by a second.
"""

from __future__ import annotations

import re
import subprocess
import sys
from os import environ
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_serving_launches_no_kernel_that_was_not_compiled_ahead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.triton_start"],
        env=environ | {"TRITON_INTERPRET": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    ahead = [line for line in lines if re.fullmatch(r"\w+: [2-9]\d ahead", line)]
    assert len(ahead) == 3
    assert not set(lines) - set(ahead)
