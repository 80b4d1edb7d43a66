"""What others do, on the same trials: of one limit, in milliseconds."""

import numpy as np
from scipy.special import betaincinv, stdtrit

from benchmarks.calibration.pools import Floats
from benchmarks.calibration.trials import (
    FAIL,
    PASS,
    Decisions,
    Ints,
    Q,
    Trials,
    first_conclusive,
    outcomes,
)

TOLERANCE = 0.1  # of "the mean of three runs within 10 %"


def raw_p99(trials: Trials, metric: str, limit: float, *, rounds: int) -> Decisions:
    """PASS if at most 1 % of all requests of so many rounds are over the limit, else FAIL."""
    over = trials.over(metric, limit)[:, :rounds].sum(axis=1)
    allowed = (1 - Q) * rounds * trials.pool.ttft.shape[1]
    return _at_once(over <= allowed + 1e-9, rounds)


def mean_of_three(trials: Trials, metric: str, limit: float) -> Decisions:
    """PASS if the mean of three rounds' p99 is at most 10 % over the limit, else FAIL."""
    mean = shown_p99(trials.pool.samples(metric))[trials.picks[:, :3]].mean(axis=1)
    return _at_once(mean <= limit * (1 + TOLERANCE), 3)


def log_ratio_t(
    trials: Trials, metric: str, limit: float, *, fail_error: float, pass_error: float
) -> Decisions:
    """Student's interval of the mean of ln(p99 of a round / limit): Welch's, of one sample."""
    logs = np.log(shown_p99(trials.pool.samples(metric)) / limit)

    def at(place: int, look: int) -> Ints:
        drawn = logs[trials.picks[:, :look]]
        mean, error = drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / np.sqrt(look)
        lower = mean - stdtrit(look - 1, 1 - fail_error) * error
        upper = mean + stdtrit(look - 1, 1 - pass_error) * error
        return outcomes(lower, upper, 0.0)

    return first_conclusive(trials.looks, len(trials.picks), at)


def shown_p99(samples: Floats) -> Floats:
    """Each round's p99 by numpy's linear rule, as load generators print it."""
    return np.asarray(np.quantile(samples, Q, axis=1))


def upper_bound(count: int, trials: int, *, confidence: float = 0.99) -> float:
    """Clopper and Pearson's upper bound of a share that was seen `count` times."""
    return 1.0 if count >= trials else float(betaincinv(count + 1, trials - count, confidence))


def lower_bound(count: int, trials: int, *, confidence: float = 0.99) -> float:
    return 0.0 if not count else float(betaincinv(count, trials - count + 1, 1 - confidence))


def _at_once(passes: Floats, rounds: int) -> Decisions:
    return Decisions(
        outcome=np.where(passes, PASS, FAIL), rounds=np.full(len(passes), rounds, dtype=np.int64)
    )
