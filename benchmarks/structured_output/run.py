"""What constrained rows add to a decode step.

    python benchmarks/structured_output/run.py [--model smollm2] [--rows 256] [--json FILE]

Runs the same number of decode steps twice in one process, all rows free and all rows bound to a
JSON schema that does not end, and prints processor and wall time per step. ``library`` is the part
of it inside the grammar library (advance and fill, one call each), which a device with a queue
computes behind; on a CPU nothing hides it. Processor time counts every thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xllm.assembly.inproc import InprocEngine
from xllm.assembly.text import load_text
from xllm.core.config.flags import make_config
from xllm.core.grammar import MaskFiller
from xllm.core.request.sampling import SamplingParams
from xllm.core.request.structured import StructuredOutputsParams

SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
            "kind": {"enum": ["cat", "dog", "parrot"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": False,
    },
}
TARGET = 0.10
WARM_UP = 2


class Timer:
    """Adds up the seconds that calls take."""

    def __init__(self) -> None:
        self.wall = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, timed."""

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.wall += time.perf_counter() - began

        return timed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    config = make_config(
        {
            "model": args.model,
            "device": args.device,
            "max_model_len": 256,
            "max_num_seqs": args.rows,
            "max_num_batched_tokens": 16 * args.rows,
        }
    )
    engine = InprocEngine(config)
    ready = engine.start()
    factory = load_text(config, engine.files).request_factory(config, ready)
    library = Timer()
    MaskFiller.advance = library.around(MaskFiller.advance)  # type: ignore[method-assign]
    MaskFiller.fill = library.around(MaskFiller.fill)  # type: ignore[method-assign]

    def run(form: StructuredOutputsParams | None) -> dict[str, float]:
        params = SamplingParams(
            max_tokens=args.steps + WARM_UP + 1, ignore_eos=True, structured_outputs=form
        )
        prepared = [factory.create("Pets as JSON:", params) for _ in range(args.rows)]
        engine.add([each.request for each in prepared])
        wall, cpu, inside = [], [], []
        while engine.has_work:
            before = time.perf_counter(), time.process_time(), library.wall
            engine.step()
            wall.append(time.perf_counter() - before[0])
            cpu.append(time.process_time() - before[1])
            inside.append(library.wall - before[2])
        columns = {"wall_ms": wall, "cpu_ms": cpu, "library_ms": inside}
        # The last steps only decode; waiting for the compiler and the prompts come first.
        return {k: statistics.median(v[-args.steps - 1 : -1]) * 1e3 for k, v in columns.items()}

    free = run(None)
    bound = run(StructuredOutputsParams(json=SCHEMA))
    engine.close()
    added = {k: bound[k] / free[k] - 1 for k in ("wall_ms", "cpu_ms")}
    for name, row in (("free", free), ("constrained", bound)):
        print(f"{name:12} " + "  ".join(f"{k} {v:8.2f}" for k, v in row.items()))
    verdict = "holds" if added["cpu_ms"] <= TARGET else "MISSED"
    print(
        f"added by {args.rows} constrained rows: {added['cpu_ms']:+.1%} processor time, "
        f"{added['wall_ms']:+.1%} wall; target {TARGET:.0%}: {verdict}"
    )
    if args.json:
        report = {
            "model": args.model,
            "rows": args.rows,
            "vocab_size": ready.vocab_size,
            "steps": args.steps,
            "machine": platform.processor() or platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
            "free": free,
            "constrained": bound,
            "added_fraction": added,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
