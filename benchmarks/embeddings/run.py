"""Embeddings per second of minilm, beside transformers on the same inputs.

    python benchmarks/embeddings/run.py [--inputs 64] [--tokens 128] [--threads 1] [--runs 3]

Seeded token ids, float32, offline. The two take turns. ``per_cpu_second`` counts the process's own
processor time, so that it says something on a shared machine too; ``per_second`` is wall time.
Prints JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers

from xllm import LLM
from xllm.assembly.bundled import bundled_models


def measure(work: Callable[[], Any], count: int) -> dict[str, float]:
    """Embeddings per second of one run, by the wall and by the processor."""
    wall, own = time.perf_counter(), time.process_time()
    work()
    wall, own = time.perf_counter() - wall, time.process_time() - own
    return {"per_second": count / wall, "per_cpu_second": count / own}


def reference(folder: str) -> Callable[[list[list[int]]], torch.Tensor]:
    """transformers' encoder with mean pooling and norm, all inputs in one batch."""
    model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def embed(prompts: list[list[int]]) -> torch.Tensor:
        hidden = model(torch.tensor(prompts)).last_hidden_state
        return torch.nn.functional.normalize(hidden.mean(1), dim=1)

    return embed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("inputs", 64), ("tokens", 128), ("threads", 1), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(0)
    prompts = rng.integers(1000, 29000, (args.inputs, args.tokens)).tolist()
    # Every prompt fits one step, as every input is in one batch of the reference.
    llm = LLM(
        "minilm",
        dtype="float32",
        num_threads=args.threads,
        max_num_batched_tokens=args.inputs * args.tokens,
    )
    folder = next(m.path for m in bundled_models() if m.name == "minilm")
    assert folder is not None
    embed = reference(folder)
    sides: dict[str, Callable[[list[list[int]]], Any]] = {
        "xllm": lambda given: llm.embed(given, use_tqdm=False),
        "transformers": embed,
    }
    for side in sides.values():
        side(prompts[:4])
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(args.runs):
        for name, side in sides.items():
            runs[name].append(measure(lambda side=side: side(prompts), args.inputs))
    medians = {
        name: {key: round(statistics.median(run[key] for run in found), 2) for key in found[0]}
        for name, found in runs.items()
    }
    print(json.dumps(vars(args) | medians, indent=2))


if __name__ == "__main__":
    main()
