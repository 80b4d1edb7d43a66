"""Arrival processes: when requests start."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_slo.errors import WorkloadError

Seconds = NDArray[np.float64]


class OpenLoop(Protocol):
    """Starts requests at its own times, whatever the server does. `rate` in requests/s."""

    @property
    def rate(self) -> float: ...

    def draw(self, rng: np.random.Generator, n: int) -> Seconds:
        """n arrival times, seconds from 0, sorted; the first k are those of `draw(rng, k)`."""
        ...


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Keeps `concurrency` requests in flight: the next one starts when a slot comes free.

    `"max_num_seqs"` means `times` as many as the server runs at once, whatever that is.
    """

    concurrency: int | Literal["max_num_seqs"] = "max_num_seqs"
    times: float = 1.0

    def __post_init__(self) -> None:
        if self.concurrency != "max_num_seqs" and (
            isinstance(self.concurrency, bool)
            or not isinstance(self.concurrency, int)
            or self.concurrency < 1
        ):
            raise WorkloadError(
                'ClosedLoop: concurrency must be a whole number >= 1 or "max_num_seqs", '
                f"not {self.concurrency!r}"
            )
        _check("ClosedLoop", "times", self.times)
        if self.times != 1.0 and self.concurrency != "max_num_seqs":
            raise WorkloadError('ClosedLoop: times goes with "max_num_seqs" only')

    @property
    def slots(self) -> int | None:
        """The concurrency where it does not depend on the server."""
        return None if self.concurrency == "max_num_seqs" else self.concurrency

    @property
    def slots_per_seq(self) -> float | None:
        return self.times if self.concurrency == "max_num_seqs" else None

    def __str__(self) -> str:
        return f"{self.concurrency}" if self.times == 1.0 else f"{self.times:g} x max_num_seqs"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent exponential gaps: many users who do not know of each other."""

    rate: float

    def __post_init__(self) -> None:
        _check("Poisson", "rate", self.rate)

    def draw(self, rng: np.random.Generator, n: int) -> Seconds:
        return np.cumsum(rng.standard_exponential(n)) / self.rate

    def __str__(self) -> str:
        return f"poisson({self.rate:g}/s)"


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps, as `vllm bench serve --burstiness`: shape `burstiness`, the same mean gap.

    Under 1 is burstier than Poisson, 1 is Poisson, over 1 is more even. (vLLM 0.32,
    benchmarks/serve.py, `get_request`: shape=burstiness, scale=1/(rate*burstiness).)
    """

    rate: float
    burstiness: float

    def __post_init__(self) -> None:
        _check("Gamma", "rate", self.rate)
        _check("Gamma", "burstiness", self.burstiness)

    def draw(self, rng: np.random.Generator, n: int) -> Seconds:
        scale = 1 / (self.rate * self.burstiness)
        return np.cumsum(rng.gamma(self.burstiness, scale, n))

    def __str__(self) -> str:
        return f"gamma({self.rate:g}/s, burstiness={self.burstiness:g})"


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1/rate seconds, the first at time zero."""

    rate: float

    def __post_init__(self) -> None:
        _check("Constant", "rate", self.rate)

    def draw(self, rng: np.random.Generator, n: int) -> Seconds:
        return np.arange(n, dtype=np.float64) / self.rate

    def __str__(self) -> str:
        return f"constant({self.rate:g}/s)"


@dataclass(frozen=True, slots=True)
class OnOff:
    """Poisson at `rate_on` for `on_s` seconds, then at `rate_off` for `off_s`, and over again."""

    rate_on: float
    on_s: float
    off_s: float
    rate_off: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate_on", "on_s", "off_s"):
            _check("OnOff", name, getattr(self, name))
        _check("OnOff", "rate_off", self.rate_off, or_zero=True)

    @property
    def rate(self) -> float:
        """The mean over a whole period."""
        on, off = self.rate_on * self.on_s, self.rate_off * self.off_s
        return (on + off) / (self.on_s + self.off_s)

    def draw(self, rng: np.random.Generator, n: int) -> Seconds:
        # A unit-rate Poisson process in "expected requests so far", mapped back to seconds by
        # the inverse of the cumulative rate (Lewis and Shedler 1979, by inversion).
        on, off = self.rate_on * self.on_s, self.rate_off * self.off_s
        periods, within = np.divmod(np.cumsum(rng.standard_exponential(n)), on + off)
        second = within / self.rate_on
        if off > 0:
            second = np.where(within < on, second, self.on_s + (within - on) / self.rate_off)
        return periods * (self.on_s + self.off_s) + second

    def __str__(self) -> str:
        on = f"{self.rate_on:g}/s for {self.on_s:g} s"
        return f"on-off({on}, {self.rate_off:g}/s for {self.off_s:g} s)"


Arrivals = ClosedLoop | OpenLoop


def _check(what: str, name: str, value: float, *, or_zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not (value > 0 or (or_zero and value == 0)):
        raise WorkloadError(f"{what}: {name} must be a finite number over 0, not {value!r}")
