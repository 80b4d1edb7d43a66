"""The study of builds: how often the comparison of B with A finds what is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from benchmarks.calibration.peers import TOLERANCE, shown_p99
from benchmarks.calibration.pools import Cell, Floats, Pool, pool_of
from benchmarks.calibration.trials import Q
from vllm_slo.measure.comparison import signed_rank_interval
from vllm_slo.measure.intervals import FAIL_ERROR, PASS_ERROR, classify

RATIOS = (1.0, 1.1, 1.2, 1.3)  # the p99 of a round with B, over that of the same round with A
PAIRS = (5, 7, 10, 20)
SHOWN_PAIRS = 10
COMMON, SEPARATE, WELCH, MEAN = (
    "pairs, common schedules",
    "pairs, separate schedules",
    "Welch on ln p99",
    "mean of 3 within 10 %",
)
_SEARCH_ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRates:
    trials: int
    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStudy:
    """One build in one cell. `typical` is the median over rounds of p99_B / p99_A, `pooled` the
    ratio of the p99s of all rounds. `rates` are by rule and pairs; those of `at_boundary` are
    with the tolerance at the true ratio, where a FAIL is wrong, and a PASS no less."""

    cell: Cell
    wanted: float
    slowdown: float
    typical: float
    pooled: float
    rates: Mapping[str, Mapping[int, BuildRates]]
    at_boundary: Mapping[str, Mapping[int, BuildRates]]


def study_builds(
    cell: Cell,
    a: Pool,
    *,
    pairs: int,
    trials: int,
    seed: int,
    cache: Path | None,
    ratios: Sequence[float] = RATIOS,
) -> list[BuildStudy]:
    """Builds of which every step takes longer than A's, by so much that p99s have these ratios."""
    studies = []
    figures_a = _figures(a)[:pairs]
    for ratio in ratios:
        slowdown = slowdown_for(cell, a, ratio, seed=seed)
        slower = replace(cell, build="B", slowdown=slowdown)
        b = pool_of(slower, pairs, seed=seed, cache=cache)
        figures_b = _figures(b)
        difference = np.log(figures_b / figures_a)
        apart = np.log(figures_b[:, None] / figures_a[None, :])
        typical = float(np.median(difference))
        rng = np.random.default_rng((seed, round(ratio * 100)))
        i, j = rng.integers(pairs, size=(2, trials, max(PAIRS)))
        boundary = {COMMON: typical, SEPARATE: float(np.median(apart)), WELCH: _mean(apart)}
        rates, at_boundary = {}, {}
        for name, d, others in (
            (COMMON, difference[i], None),
            (SEPARATE, np.log(figures_b[j] / figures_a[i]), None),
            (WELCH, np.log(figures_b[j]), np.log(figures_a[i])),
        ):
            rates[name] = {n: _decide(d, others, n, np.log1p(TOLERANCE)) for n in PAIRS}
            at_boundary[name] = {n: _decide(d, others, n, boundary[name]) for n in PAIRS}
        shown = [shown_p99(one.ttft)[:pairs] for one in (a, b)]
        passed = shown[1][j[:, :3]].mean(axis=1) <= 1.1 * shown[0][i[:, :3]].mean(axis=1)
        count = int(passed.sum())
        rates[MEAN] = {3: BuildRates(trials=trials, passed=count, failed=trials - count)}
        studies.append(
            BuildStudy(
                cell=cell,
                wanted=ratio,
                slowdown=slowdown,
                typical=float(np.exp(typical)),
                pooled=b.p99["ttft"] / float(np.quantile(a.ttft[:pairs], Q)),
                rates=rates,
                at_boundary=at_boundary,
            )
        )
    return studies


def slowdown_for(cell: Cell, a: Pool, ratio: float, *, seed: int, steps: int = 4) -> float:
    """The factor on every step's time that multiplies a typical round's p99 of TTFT by `ratio`.

    By the secant method on logarithms, over the first rounds, to about a hundredth: what the ratio
    then is gets measured.
    """
    if ratio == 1:
        return 1.0
    base = _figures(a)[:_SEARCH_ROUNDS]

    def reached(slowdown: float) -> float:
        slower = replace(cell, build="B", slowdown=slowdown)
        return float(np.median(np.log(_figures(pool_of(slower, len(base), seed=seed)) / base)))

    wanted = float(np.log(ratio))
    x0, y0, x1 = 0.0, 0.0, wanted / 2
    for _ in range(steps):
        y1 = reached(float(np.exp(x1)))
        if abs(y1 - wanted) < 0.005 or y1 <= y0:
            break
        x0, y0, x1 = x1, y1, max(0.0, x1 + (wanted - y1) * (x1 - x0) / (y1 - y0))
    return float(np.exp(x1))


def _figures(pool: Pool) -> Floats:
    """Each round's p99 of TTFT, as `compare_builds` takes it, shape (rounds,)."""
    return np.asarray(np.quantile(pool.ttft, Q, axis=1, method="inverted_cdf"))


def _mean(values: Floats) -> float:
    return float(values.mean())


def _decide(d: Floats, others: Floats | None, pairs: int, allowed: float) -> BuildRates:
    """Counts verdicts: of the signed rank interval of `d`, or of Welch's of `d` over `others`."""
    verdicts = []
    for place in range(len(d)):
        if others is None:
            found = signed_rank_interval(d[place, :pairs].tolist())
            lower, upper = found.lower, found.upper
        else:
            lower, upper = _welch(d[place, :pairs], others[place, :pairs])
        verdicts.append(classify(lower, upper, allowed))
    return BuildRates(
        trials=len(d),
        passed=sum(one == "PASS" for one in verdicts),
        failed=sum(one == "FAIL" for one in verdicts),
    )


def _welch(b: Floats, a: Floats) -> tuple[float, float]:
    """Welch's interval of the difference of means (Biometrika 34, 1947)."""
    parts = [float(one.var(ddof=1)) / len(one) for one in (a, b)]
    error = float(np.sqrt(sum(parts)))
    if not error:
        return float(b.mean() - a.mean()), float(b.mean() - a.mean())
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(one) - 1) for part, one in zip(parts, (a, b), strict=True)
    )
    centre = float(b.mean() - a.mean())
    lower = centre - float(stdtrit(freedom, 1 - FAIL_ERROR)) * error
    return lower, centre + float(stdtrit(freedom, 1 - PASS_ERROR)) * error
