"""Result files: JSON with the keys that vLLM's benchmarks write."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def add_flags(parser: argparse.ArgumentParser) -> None:
    """``--save-result`` and where it goes."""
    parser.add_argument("--save-result", action="store_true", help="Write the figures as JSON.")
    parser.add_argument("--result-dir", metavar="DIR", default=".", help="Folder of that file.")
    parser.add_argument(
        "--result-filename", metavar="NAME", help="Its name; by default kind, model and time."
    )


def save(args: argparse.Namespace, kind: str, model: str, figures: Mapping[str, Any]) -> None:
    """Write figures as JSON if ``--save-result`` asks for it, and say where."""
    if not args.save_result:
        return
    now = time.strftime("%Y%m%d-%H%M%S")
    name = args.result_filename or f"{kind}-{Path(model).name}-{now}.json"
    path = Path(args.result_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"date": now, "kind": kind, "model_id": model, **figures}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"Saved to {path}")
