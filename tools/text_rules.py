"""Rules that a text search can hold. Run from the repository's root; exits 1 on a breach."""

from __future__ import annotations

import collections
import re
import subprocess
import sys

# (pattern, why, paths where it is allowed)
RULES = [
    (r"\btorch\.cuda\b", "torch.cuda belongs to hardware/ and the device attention backends",
     ("xllm/hardware/", "xllm/modeling/attention/")),
    (r"\bos\.(environ|getenv)\b", "environment variables are read in core/config/env.py only",
     ("xllm/core/config/env.py",)),
    (r"^\s*(import|from) (pickle|cloudpickle|dill|marshal)\b", "no pickle anywhere: use msgspec",
     ()),
    (r"(?<![\w.])(eval|exec)\(", "no eval", ()),
    (r"pip install\b.*\bxllm\b", "that name belongs to another project on the package index",
     ()),
    (r"trust_remote_code\s*=\s*True", "no code from checkpoints", ()),
]  # fmt: skip


def files_of(pattern: str) -> list[str]:
    """Paths of the working tree, ignored files left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def main() -> int:
    """Print each breach as ``path:line: why``; returns the exit code."""
    breaches = 0
    names = collections.Counter(path.rpartition("/")[2] for path in files_of("tests/*test_*.py"))
    for name in [name for name, count in names.items() if count > 1]:
        print(f"{name}: test modules need distinct names, they are imported by name alone")
        breaches += 1
    for path in files_of("xllm/*.py"):
        with open(path, encoding="utf-8") as source:
            lines = source.read().splitlines()
        for pattern, why, allowed in RULES:
            if path.startswith(allowed):
                continue
            for number, line in enumerate(lines, 1):
                if re.search(pattern, line):
                    print(f"{path}:{number}: {why}")
                    breaches += 1
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
