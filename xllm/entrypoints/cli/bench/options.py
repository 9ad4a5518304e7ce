"""Flags that several benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xllm.entrypoints.cli.bench import saving

if TYPE_CHECKING:
    from xllm.core.request.sampling import SamplingParams

# Options of the engine, for benchmarks that run it in their own process.
ENGINE_TOPICS = ("model", "cache", "scheduler", "execution")

# The dataset that a benchmark replays unless told otherwise.
_DATASET = "sharegpt-like"


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Which requests, how many, how often."""
    parser.add_argument(
        "--dataset",
        "--dataset-name",
        metavar="NAME",
        default=_DATASET,
        help=f"sharegpt-like, fixed:IN:OUT, shared-prefix or a JSON lines file. "
        f"Default: {_DATASET}.",
    )
    parser.add_argument(
        "--num-prompts",
        type=positive_int,
        metavar="N",
        default=1000,
        help="Requests of the dataset. Default: 1000.",
    )
    parser.add_argument(
        "--dataset-seed",
        type=whole_number,
        metavar="N",
        help="Another seed than the dataset's own.",
    )
    parser.add_argument(
        "--num-runs",
        type=positive_int,
        metavar="N",
        default=1,
        help="Repeat with other tokens of the same lengths; the median run counts. Default: 1.",
    )


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    """What is shown and kept."""
    parser.add_argument(
        "--metric-percentiles",
        metavar="LIST",
        default="99",
        help="Percentiles to report, e.g. 50,90,99. Default: 99.",
    )
    parser.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")
    saving.add_flags(parser)


def positive_int(text: str) -> int:
    """A whole number of at least 1; for ``argparse``."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def whole_number(text: str) -> int:
    """A whole number of at least 0; for ``argparse``."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0, or inf; for ``argparse``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def percentiles(text: str) -> list[float]:
    """The percentiles of ``--metric-percentiles``.

    Raises:
        ValueError: one is not a number between 0 and 100.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= value <= 100 for value in found):
        raise ValueError(f"--metric-percentiles {text!r}: must be numbers from 0 to 100")
    return found


def median_run(runs: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """The run in the middle by one of its figures; of an even number the lower one."""
    ordered = sorted(runs, key=lambda run: run[key])
    return ordered[(len(ordered) - 1) // 2]


def exact(max_tokens: int) -> SamplingParams:
    """Greedy, and exactly so many tokens."""
    from xllm.core.request.sampling import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
