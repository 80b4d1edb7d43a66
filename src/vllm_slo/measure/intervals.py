"""Intervals for what a run may claim: shares of requests over a limit, quantiles, means.

Requests in a queue are not independent, so rounds are the clusters of every interval here: they
have separate seeds and each is drained before the next. Errors are one-sided.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from vllm_slo.measure.table import Floats

FAIL_ERROR = 0.01
PASS_ERROR = 0.05
LEAST_ROUNDS = 5
# At the limit alone, few violations also hide the clustering: it is looked for further down too.
_DEFF_QUANTILES = (0.95, 0.90)


class Outcome(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate and its one-sided bounds; a bound that the data cannot give is infinite."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareInterval(Interval):
    """The share of requests over a limit. `lower` errs with the FAIL error, `upper` with PASS's.

    `n` requests in `rounds` are worth `effective` independent ones at the PASS error, after the
    design effect `deff` and the few degrees of freedom of few rounds.
    """

    n: int
    rounds: int
    deff: float
    effective: float


def classify(lower: float, upper: float, limit: float) -> Outcome:
    """The one rule: FAIL if lower > limit, PASS if upper <= limit, else INCONCLUSIVE.

    A NaN anywhere is INCONCLUSIVE. For a limit from below, as on throughput, negate all three:
    `classify(-upper, -lower, -limit)`.
    """
    if lower > limit:
        return Outcome.FAIL
    if upper <= limit and not math.isnan(lower):
        return Outcome.PASS
    return Outcome.INCONCLUSIVE


def design_effect(violations: Sequence[float], counts: Sequence[float]) -> float:
    """How many times the variance of a share exceeds that of independent requests.

    `violations` and `counts` are per round. The variance is the ratio estimator's between
    clusters (Cochran, Sampling Techniques, 1977, 9A.1); for equal rounds it is Var(p_c) / R.
    1 where it cannot be told: one round, none or all over the limit.
    """
    over, n = np.asarray(violations, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    total, rounds = n.sum(), int((n > 0).sum())
    if rounds < 2:
        return 1.0
    share = over.sum() / total
    if not 0 < share < 1:
        return 1.0
    between = rounds / (rounds - 1) * float(((over - share * n) ** 2).sum()) / total**2
    return float(between / (share * (1 - share) / total))


def effective_count(n: float, *, rounds: int, deff: float, error: float) -> float:
    """n_a = min(n, n / deff * (t_{n-1} / t_{R-1})^2), quantiles of t at 1 - error.

    Korn and Graubard, "Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data", Survey Methodology 24 (1998). With one round
    there is no t_0: n / deff.
    """
    from scipy.special import stdtrit

    if n < 2 or rounds < 2:
        return n / deff
    ratio = stdtrit(n - 1, 1 - error) / stdtrit(rounds - 1, 1 - error)
    return float(min(n, n / deff * ratio**2))


def share_interval(
    violations: Sequence[float],
    counts: Sequence[float],
    *,
    deff: float | None = None,
    fail_error: float = FAIL_ERROR,
    pass_error: float = PASS_ERROR,
) -> ShareInterval:
    """The interval for the share over a limit, from each round's violations and count.

    Clopper and Pearson's bounds (Biometrika 26, 1934) at the effective count. `deff` under 1
    counts as 1; `None` takes that of these counts alone. No request at all gives 0..1.
    """
    n = float(np.sum(counts))
    rounds = int(np.count_nonzero(counts))
    if not n:
        return ShareInterval(
            estimate=math.nan, lower=0.0, upper=1.0, n=0, rounds=0, deff=1.0, effective=0.0
        )
    share = float(np.sum(violations)) / n
    deff = max(1.0, design_effect(violations, counts) if deff is None else deff)
    for_fail = effective_count(n, rounds=rounds, deff=deff, error=fail_error)
    for_pass = effective_count(n, rounds=rounds, deff=deff, error=pass_error)
    return ShareInterval(
        estimate=share,
        lower=_share_lower(share, for_fail, fail_error),
        upper=_share_upper(share, for_pass, pass_error),
        n=int(n),
        rounds=rounds,
        deff=deff,
        effective=for_pass,
    )


def over_limit(
    rounds: Sequence[Floats],
    limit: float,
    *,
    fail_error: float = FAIL_ERROR,
    pass_error: float = PASS_ERROR,
) -> ShareInterval:
    """The share of values over `limit`, clustered by round; infinity counts as over any limit.

    The design effect is the largest of those at the limit and at the sample's p95 and p90.
    """
    samples = [np.asarray(one, dtype=np.float64) for one in rounds if len(one)]
    counts = [len(one) for one in samples]
    over = [int((one > limit).sum()) for one in samples]
    return share_interval(
        over,
        counts,
        deff=max(design_effect(over, counts), _tail_deff(samples, counts)),
        fail_error=fail_error,
        pass_error=pass_error,
    )


def quantile_interval(
    rounds: Sequence[Floats],
    q: float,
    *,
    fail_error: float = FAIL_ERROR,
    pass_error: float = PASS_ERROR,
) -> Interval:
    """The q-quantile's interval in the values' own unit: `over_limit` read the other way.

    `lower` is the least sample at which "at most 1 - q are over it" is not yet refuted, `upper`
    the least at which it is shown: a limit under `lower` is a FAIL, one from `upper` on a PASS.
    Found by bisection over the order statistics. A bound that no sample gives is infinite: there
    are too few samples, or requests failed. The estimate is the order statistic, not the linear
    rule.
    """
    samples = [np.sort(np.asarray(one, dtype=np.float64)) for one in rounds if len(one)]
    if not samples:
        return Interval(estimate=math.nan, lower=-math.inf, upper=math.inf)
    counts = [len(one) for one in samples]
    tail_deff = _tail_deff(samples, counts)
    # Below the least sample all are over: with few samples even that refutes nothing.
    pooled = np.concatenate(([-np.inf], np.unique(np.concatenate(samples))))

    def at(limit: float) -> ShareInterval:
        over = [len(one) - int(np.searchsorted(one, limit, side="right")) for one in samples]
        deff = max(design_effect(over, counts), tail_deff)
        return share_interval(over, counts, deff=deff, fail_error=fail_error, pass_error=pass_error)

    bounds = [
        _least(pooled, lambda x: at(x).lower <= 1 - q),
        _least(pooled, lambda x: at(x).upper <= 1 - q),
    ]
    estimate = float(np.quantile(np.concatenate(samples), q, method="inverted_cdf"))
    return Interval(estimate=estimate, lower=bounds[0], upper=bounds[1])


def mean_interval(
    values: Sequence[float], *, lower_error: float = FAIL_ERROR, upper_error: float = PASS_ERROR
) -> Interval:
    """Student's t over the rounds' values; infinite bounds with fewer than two of them."""
    from scipy.special import stdtrit

    given = np.asarray([v for v in values if not math.isnan(v)], dtype=np.float64)
    n = len(given)
    mean = float(given.mean()) if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Interval(estimate=mean, lower=-math.inf, upper=math.inf)
    error = float(given.std(ddof=1)) / math.sqrt(n)
    return Interval(
        estimate=mean,
        lower=mean - float(stdtrit(n - 1, 1 - lower_error)) * error,
        upper=mean + float(stdtrit(n - 1, 1 - upper_error)) * error,
    )


def least_effective(q: float, *, error: float = PASS_ERROR) -> int:
    """The effective samples without which no q-quantile passes, even with none over the limit.

    ln(error) / ln(q): 299 for a p99 at 5 %.
    """
    if not 0 < q < 1:
        return 1
    return math.ceil(math.log(error) / math.log(q))


def more_rounds(
    interval: ShareInterval,
    q: float,
    *,
    fail_error: float = FAIL_ERROR,
    pass_error: float = PASS_ERROR,
    most: int = 200,
) -> int | None:
    """About how many more rounds like these would settle it; 0 if it is settled.

    Takes share and design effect as they are now. `None` if `most` rounds would not do, or
    nothing was measured: then the load is too close to the limit, not the sample too small.
    """
    if not interval.n:
        return None
    per_round = interval.n / interval.rounds
    for rounds in range(max(interval.rounds, LEAST_ROUNDS), most + 1):
        n = per_round * rounds
        for_fail = effective_count(n, rounds=rounds, deff=interval.deff, error=fail_error)
        for_pass = effective_count(n, rounds=rounds, deff=interval.deff, error=pass_error)
        lower = _share_lower(interval.estimate, for_fail, fail_error)
        upper = _share_upper(interval.estimate, for_pass, pass_error)
        if classify(lower, upper, 1 - q) is not Outcome.INCONCLUSIVE:
            return rounds - interval.rounds
    return None


def _share_lower(share: float, n: float, error: float) -> float:
    from scipy.special import betaincinv

    if share <= 0:
        return 0.0
    return float(betaincinv(share * n, n - share * n + 1, error))


def _share_upper(share: float, n: float, error: float) -> float:
    from scipy.special import betaincinv

    if share >= 1:
        return 1.0
    return float(betaincinv(share * n + 1, n - share * n, 1 - error))


def _tail_deff(samples: Sequence[Floats], counts: Sequence[int]) -> float:
    if not samples:
        return 1.0
    pooled = np.concatenate(samples)
    # Order statistics, since the linear rule makes NaN of two infinities.
    levels = np.quantile(pooled, _DEFF_QUANTILES, method="inverted_cdf").tolist()
    over = [[int((one > level).sum()) for one in samples] for level in levels]
    return max(1.0, *(design_effect(violations, counts) for violations in over))


def _least(sorted_values: Floats, holds: Callable[[float], bool]) -> float:
    """The least value for which `holds`, which stays true from there on; infinity if none."""
    low, high = 0, len(sorted_values)
    while low < high:
        mid = (low + high) // 2
        if holds(float(sorted_values[mid])):
            high = mid
        else:
            low = mid + 1
    return float(sorted_values[low]) if low < len(sorted_values) else math.inf
