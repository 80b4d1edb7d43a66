"""Prometheus series that are cheap to count and to write."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf


class Histogram:
    """Counts of observations by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*map(float, bounds), inf)
        self.counts = [0] * len(self.bounds)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand between the braces."""
    escaped = {
        name: value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


class Exposition:
    """The text form of a set of series (version 0.0.4), all with the same labels first."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = label_text(labels)
        self._lines: list[str] = []

    def family(self, name: str, kind: str, documentation: str) -> None:
        self._lines.append(f"# HELP {name} {documentation}")
        self._lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, value: float, **labels: str) -> None:
        own = f",{label_text(labels)}" if labels else ""
        self._lines.append(f"{name}{{{self._labels}{own}}} {_number(value)}")

    def histogram(self, name: str, documentation: str, values: Histogram) -> None:
        self.family(name, "histogram", documentation)
        total = 0
        for bound, count in zip(values.bounds, values.counts, strict=True):
            total += count
            self.sample(f"{name}_bucket", total, le=_number(bound))
        self.sample(f"{name}_count", total)
        self.sample(f"{name}_sum", values.sum)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _number(value: float) -> str:
    return "+Inf" if value == inf else repr(float(value))
