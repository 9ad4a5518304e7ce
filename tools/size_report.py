"""Where the code grows: longest files, functions and widest classes. Exits 1 past a hard limit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

FILE_LIMIT = 600
# The files that become god-files elsewhere.
CORE_LIMIT = 350
CORE_FILES = ("scheduler.py", "worker.py", "executor.py", "loop.py", "overlap_loop.py")
SHOWN = 5


def main() -> int:
    """Print the report; returns the exit code."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    lengths, functions = [], []
    for path in files:
        with open(path, encoding="utf-8") as source:
            text = source.read()
        lengths.append((text.count("\n"), path))
        functions += [(size, f"{path}:{name}") for size, name in _functions(ast.parse(text))]
    for title, rows in (("longest files", lengths), ("longest functions", functions)):
        print(f"{title}:")
        for size, name in sorted(rows, reverse=True)[:SHOWN]:
            print(f"  {size:5} {name}")
    too_long = [row for row in lengths if row[0] > _limit(row[1])]
    for size, path in too_long:
        print(f"{path}: {size} lines, at most {_limit(path)}")
    total = sum(size for size, path in lengths if path.startswith("xllm/"))
    print(f"xllm: {total} lines of Python")
    return 1 if too_long else 0


def _limit(path: str) -> int:
    core = path.startswith(("xllm/control/", "xllm/execution/"))
    return CORE_LIMIT if core and path.endswith(CORE_FILES) else FILE_LIMIT


def _functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.end_lineno - node.lineno + 1, node.name


if __name__ == "__main__":
    sys.exit(main())
