"""Comparing two builds, A and B, by pairs of rounds that share schedule, lengths and prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_slo.measure.intervals import FAIL_ERROR, PASS_ERROR, Interval, Outcome, classify
from vllm_slo.measure.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B over A, as a ratio: 1.3 is 30 % more. `lower` and `upper` are its one-sided bounds.

    `pairs` were judged; `dropped` had no figure on either side. `is_worse_within` says that B is
    shown to be worse, yet passes.
    """

    ratio: float
    lower: float
    upper: float
    tolerance: float
    pairs: int
    dropped: int
    outcome: Outcome

    @property
    def is_worse_within(self) -> bool:
        return self.outcome is not Outcome.FAIL and self.lower > 1


def compare(
    a: Sequence[float | None],
    b: Sequence[float | None],
    *,
    tolerance: float,
    fail_error: float = FAIL_ERROR,
    pass_error: float = PASS_ERROR,
) -> Comparison:
    """Judges whether B is at most `tolerance` worse than A, where larger is worse.

    `a` and `b` are one figure a pair, such as each round's p99 in ms, over 0. FAIL if the ratio
    is shown to exceed 1 + tolerance, PASS if it is shown not to. A figure that is missing (None,
    NaN) drops its pair; an infinite one, as of a round whose requests failed, counts as worse.

    Raises:
        ValueError: sequences of different lengths, or a figure that is not over 0.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} figures of A and {len(b)} of B make no pairs")
    pairs = [
        (x, y)
        for x, y in zip(a, b, strict=True)
        if x is not None and y is not None and not math.isnan(x) and not math.isnan(y)
    ]
    if any(x <= 0 or y <= 0 for x, y in pairs):
        raise ValueError("a ratio needs figures over 0")
    differences = [_log_ratio(x, y) for x, y in pairs]
    interval = signed_rank_interval(differences, lower_error=fail_error, upper_error=pass_error)
    return Comparison(
        ratio=_exp(interval.estimate),
        lower=_exp(interval.lower),
        upper=_exp(interval.upper),
        tolerance=tolerance,
        pairs=len(pairs),
        dropped=len(a) - len(pairs),
        outcome=classify(interval.lower, interval.upper, math.log1p(tolerance)),
    )


def hodges_lehmann(differences: Sequence[float]) -> float:
    """The median of the Walsh averages (Hodges and Lehmann, Ann. Math. Stat. 34, 1963)."""
    averages = walsh_averages(differences)
    return float(np.median(averages)) if len(averages) else math.nan


def walsh_averages(differences: Sequence[float]) -> Floats:
    """(d_i + d_j) / 2 for i <= j, sorted, shape (n (n + 1) / 2,)."""
    d = np.asarray(differences, dtype=np.float64)
    i, j = np.triu_indices(len(d))
    with np.errstate(invalid="ignore"):
        averages = d[i] / 2 + d[j] / 2
    averages[np.isnan(averages)] = 0.0  # infinitely worse and infinitely better: neither
    return np.sort(averages)


def signed_rank_interval(
    differences: Sequence[float],
    *,
    lower_error: float = FAIL_ERROR,
    upper_error: float = PASS_ERROR,
) -> Interval:
    """The exact interval for the centre of symmetric differences, from Wilcoxon's signed rank.

    Its bounds are Walsh averages (Tukey 1949; Hollander and Wolfe, Nonparametric Statistical
    Methods, 3.3): the k-th from either end, where P(W <= k - 1) is the largest not over the
    error. Too few pairs for an error give an infinite bound: 5 are needed at 5 %, 7 at 1 %.
    """
    averages = walsh_averages(differences)
    n = len(differences)
    below, above = (_rank(n, error) for error in (lower_error, upper_error))
    return Interval(
        estimate=hodges_lehmann(differences),
        lower=float(averages[below - 1]) if below else -math.inf,
        upper=float(averages[-above]) if above else math.inf,
    )


def _rank(n: int, error: float) -> int:
    """The largest k with P(W <= k - 1) <= error for n pairs; 0 if there is none."""
    if not n:
        return 0
    ways = np.ones(1)  # of 2^n sign patterns, those with each rank sum
    for rank in range(1, n + 1):
        grown = np.zeros(len(ways) + rank)
        grown[: len(ways)] = ways
        grown[rank:] += ways
        ways = grown / 2
    # The last places of the sum are rounding: an error that is met exactly is met.
    return int(np.searchsorted(np.cumsum(ways), error * (1 + 1e-12), side="right"))


def _log_ratio(x: float, y: float) -> float:
    if math.isinf(x) and math.isinf(y):
        return 0.0
    return math.inf if math.isinf(y) else -math.inf if math.isinf(x) else math.log(y / x)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
