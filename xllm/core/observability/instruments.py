"""Counters, gauges and histograms that take one NumPy call per batch, not one lock per value.

Thread-confined: the server's event loop observes and reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One line of the catalogue.

    ``label`` names the one label of a labelled counter; ``buckets`` are a histogram's upper bounds.
    """

    name: str
    unit: str
    help: str
    label: str | None = None
    buckets: tuple[float, ...] = ()
    prefix: str = "xllm:"

    @property
    def full_name(self) -> str:
        """The exposed name: prefix, name and, as Prometheus wants it, the unit."""
        return self.prefix + "_".join(filter(None, (self.name, self.unit)))


class Counter:
    """A sum that only rises, apart by the value of one label where the metric has one."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[str, float] = {} if metric.label else {"": 0.0}

    def add(self, amount: float = 1.0, label: str = "") -> None:
        """Add a non-negative amount."""
        self.values[label] = self.values.get(label, 0.0) + amount

    def raise_to(self, total: float, label: str = "") -> None:
        """Take over a running total that somebody else keeps."""
        self.values[label] = max(self.values.get(label, 0.0), total)


class Gauge:
    """A value that goes up and down."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class Histogram:
    """Bucket counts and a sum."""

    def __init__(self, metric: Metric) -> None:
        assert metric.buckets, metric.name
        self.metric = metric
        self.sum = 0.0
        self.counts: npt.NDArray[np.int64] = np.zeros(len(metric.buckets) + 1, np.int64)
        self._bounds = np.asarray(metric.buckets)

    def observe(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Add a batch of observations."""
        if not len(values):
            return
        array = np.asarray(values, np.float64)
        # side="left": a value equal to a bound belongs to that bound's bucket (le).
        slots = np.searchsorted(self._bounds, array, side="left")
        self.counts += np.bincount(slots, minlength=len(self.counts))
        self.sum += float(array.sum())


Instrument = Counter | Gauge | Histogram
