"""Result tables in the layout that users of vLLM's benchmarks parse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

WIDTH = 50


def title(text: str, fill: str) -> str:
    """A heading centred in a rule."""
    return f"{text:{fill}^{WIDTH}}"


def line(label: str, value: int | float | str) -> str:
    """One row: label, value; floats with two digits."""
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label + ':':<40} {shown:<10}".rstrip()


def statistics(name: str, seconds: np.ndarray, percentiles: Iterable[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles of times, in milliseconds; zeros without times.

    Args:
        name: lower-case name in the keys, e.g. ``ttft``: ``mean_ttft_ms``, ``p99_ttft_ms``.
        seconds: the samples, shape (N,).
        percentiles: which, 0..100.
    """
    values = np.asarray(seconds, np.float64) * 1e3
    if not len(values):
        values = np.zeros(1)
    found = {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
    }
    found.update((f"p{p:g}_{name}_ms", float(np.percentile(values, p))) for p in percentiles)
    return found


def statistics_lines(heading: str, name: str, found: Mapping[str, float]) -> list[str]:
    """The block of ``statistics`` in a table; the deviation is for the file only."""
    lines = [title(heading, "-")]
    for key, value in found.items():
        kind = key.removesuffix(f"_{name}_ms")
        if kind != "std":
            lines.append(line(f"{kind.capitalize()} {name.upper()} (ms)", value))
    return lines
