"""Length distributions: how many tokens prompts and answers have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic.workload import MAX_TOKENS

Ints = NDArray[np.int64]


class Lengths(Protocol):
    """A distribution of whole numbers of tokens, each at least 1.

    Drawing n and then more gives the same first n. `mean` and `cv` (standard deviation over
    mean) are those of what is drawn, clipping and rounding included.
    """

    def draw(self, rng: np.random.Generator, n: int) -> Ints: ...

    @property
    def mean(self) -> float: ...

    @property
    def cv(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `tokens`."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens("Fixed", "tokens", self.tokens)

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        return np.full(n, self.tokens, dtype=np.int64)

    @property
    def mean(self) -> float:
        return float(self.tokens)

    @property
    def cv(self) -> float:
        return 0.0

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("Uniform", self.low, self.high)

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        return rng.integers(self.low, self.high, n, endpoint=True)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def cv(self) -> float:
        return math.sqrt(((self.high - self.low + 1) ** 2 - 1) / 12) / self.mean

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(N(ln median, sigma^2)), rounded, and clipped to `low`..`high`.

    `median` is that of the unclipped distribution; `mean` and `cv` are exact for what is drawn.
    """

    median: float
    sigma: float
    low: int = 1
    high: int = 131_072

    def __post_init__(self) -> None:
        _check_range("LogNormal", self.low, self.high)
        _check_positive("LogNormal", "median", self.median)
        _check_positive("LogNormal", "sigma", self.sigma, or_zero=True)

    @classmethod
    def of_mean(
        cls, mean: float, *, sigma: float, low: int = 1, high: int = 131_072
    ) -> "LogNormal":
        """The one whose mean after clipping is `mean`; rounding may move it by some hundredths.

        Raises:
            WorkloadError: a mean that is not strictly between `low` and `high`.
        """
        _check_range("LogNormal", low, high)
        _check_positive("LogNormal", "sigma", sigma, or_zero=True)
        if not low < mean < high:
            raise WorkloadError(f"LogNormal: a mean of {mean} is not between {low} and {high}")
        # The clipped mean rises with the median: bisect ln(median).
        reach = 8 * sigma + 1.0
        below, above = math.log(low) - reach, math.log(high) + reach
        for _ in range(60):
            mid = (below + above) / 2
            if _clipped_mean(mid, sigma, low, high) < mean:
                below = mid
            else:
                above = mid
        return cls(math.exp((below + above) / 2), sigma, low, high)

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        # Clipped before exp, which would overflow, and before the cast, which would wrap.
        log_tokens = math.log(self.median) + self.sigma * rng.standard_normal(n)
        np.clip(log_tokens, math.log(self.low), math.log(self.high), out=log_tokens)
        return np.clip(np.rint(np.exp(log_tokens)), self.low, self.high).astype(np.int64)

    @property
    def mean(self) -> float:
        return self._moments()[0]

    @property
    def cv(self) -> float:
        mean, second = self._moments()
        return math.sqrt(max(0.0, second - mean**2)) / mean

    def _moments(self) -> tuple[float, float]:
        """E[X] and E[X^2], by summing P(X > k) and (2k + 1) P(X > k)."""
        from scipy.special import ndtr

        if self.sigma == 0:
            value = float(min(max(round(self.median), self.low), self.high))
            return value, value**2
        k = np.arange(self.low, self.high, dtype=np.float64)
        above = ndtr((math.log(self.median) - np.log(k + 0.5)) / self.sigma)
        return self.low + float(above.sum()), self.low**2 + float(((2 * k + 1) * above).sum())

    def __str__(self) -> str:
        shape = f"median={self.median:.4g}, sigma={self.sigma:.3g}"
        return f"lognormal({shape}, {self.low}..{self.high})"


@dataclass(frozen=True, slots=True)
class Empirical:
    """One of `values`, with probability in proportion to `weights`; equal when none are given."""

    values: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(int(v) for v in self.values))
        if not self.values:
            raise WorkloadError("Empirical: no values")
        for value in (min(self.values), max(self.values)):
            _check_tokens("Empirical", "a value", value)
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
            check_weights("Empirical", self.weights, len(self.values))

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        values = np.array(self.values, dtype=np.int64)
        if self.weights is None:
            return values[rng.integers(0, len(values), n)]
        return values[choose(rng, self.weights, n)]

    @property
    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    @property
    def cv(self) -> float:
        off = np.array(self.values, dtype=np.float64) - self.mean
        return math.sqrt(float(np.average(off**2, weights=self.weights))) / self.mean

    def __str__(self) -> str:
        if len(self.values) <= 4 and self.weights is None:
            return f"one of {', '.join(map(str, self.values))}"
        return f"empirical({len(self.values)} values, mean={self.mean:.4g}, cv={self.cv:.3g})"


def as_lengths(given: "int | tuple[int, int] | Lengths") -> Lengths:
    """`512` is `Fixed(512)`, `(64, 1024)` is `Uniform(64, 1024)`; a distribution is itself."""
    if isinstance(given, int):
        return Fixed(given)
    if isinstance(given, tuple):
        if len(given) != 2:
            raise WorkloadError(f"lengths are given as (low, high), not {given!r}")
        return Uniform(*given)
    return given


def choose(rng: np.random.Generator, weights: Sequence[float], n: int) -> Ints:
    """n indices with probabilities in proportion to `weights`, by inversion: one draw each."""
    edges = np.cumsum(np.asarray(weights, dtype=np.float64))
    return np.searchsorted(edges[:-1] / edges[-1], rng.random(n), side="right")


def check_weights(what: str, weights: Sequence[float], n: int) -> None:
    if len(weights) != n:
        raise WorkloadError(f"{what}: {len(weights)} weights for {n} values")
    if not all(math.isfinite(w) and w >= 0 for w in weights) or not sum(weights) > 0:
        raise WorkloadError(f"{what}: weights must be finite, >= 0 and not all 0: {weights!r}")


def _check_tokens(what: str, name: str, value: object) -> None:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or not 1 <= value <= MAX_TOKENS:  # type: ignore[operator]
        raise WorkloadError(
            f"{what}: {name} must be a whole number of tokens from 1 to {MAX_TOKENS}, not {value!r}"
        )


def _check_range(what: str, low: int, high: int) -> None:
    _check_tokens(what, "low", low)
    _check_tokens(what, "high", high)
    if low > high:
        raise WorkloadError(f"{what}: low is {low}, over high, {high}")


def _check_positive(what: str, name: str, value: float, *, or_zero: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
        raise WorkloadError(f"{what}: {name} must be a finite number over 0, not {value!r}")


def _clipped_mean(mu: float, sigma: float, low: int, high: int) -> float:
    """E[min(max(X, low), high)] of a lognormal X, before rounding."""
    if sigma == 0:
        return min(max(math.exp(mu), low), high)
    a, b = (math.log(low) - mu) / sigma, (math.log(high) - mu) / sigma
    inside = _phi(b - sigma) - _phi(a - sigma)
    # exp overflows only where nothing of the mass is inside.
    partial = math.exp(mu + sigma**2 / 2) * inside if inside > 0 else 0.0
    return low * _phi(a) + partial + high * _phi(-b)


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
