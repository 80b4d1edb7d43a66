"""The tolerance bound, against tables and against what it claims."""

import math

import numpy as np
import pytest
from scipy.stats import nct, norm

from vllm_slo.measure.tolerance import rounds_bound, rounds_to_keep, tolerance_factor


@pytest.mark.parametrize(("rounds", "factor"), [(5, 5.741), (10, 3.981), (20, 3.295)])
def test_the_factor_is_that_of_the_published_tables(rounds, factor):
    """NIST/SEMATECH e-Handbook 7.2.6.3; Natrella 1963, table A-7: 99 % at 95 % confidence."""
    assert pytest.approx(factor, abs=1e-3) == tolerance_factor(rounds, 0.99, error=0.05)


@pytest.mark.parametrize("error", [0.05 / 3, 0.01 / 12])
def test_the_factor_agrees_with_scipy_stats(error):
    expected = nct.ppf(1 - error, 6, norm.ppf(0.999) * math.sqrt(7)) / math.sqrt(7)
    assert pytest.approx(expected, rel=1e-6) == tolerance_factor(7, 0.999, error=error)


def test_of_normal_rounds_it_is_too_low_as_often_as_it_says():
    rng = np.random.default_rng(3)
    true = math.exp(4 + 0.1 * norm.ppf(0.99))
    trials = 4000
    draws = rng.lognormal(4, 0.1, size=(trials, 10, 1))
    too_low = sum(rounds_bound(list(one), 0.99, error=0.05) < true for one in draws)
    assert pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / trials)) == too_low / trials


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [[1.0, 2.0]],
        [[1.0, 2.0], []],
        [[1.0, math.inf], [1.0, 2.0]],
        [[0.0], [0.0]],
    ],
)
def test_what_gives_no_bound_gives_infinity(rounds):
    samples = [np.array(one) for one in rounds]
    assert math.inf == rounds_bound(samples, 0.99)
    assert rounds_to_keep(samples, 3.0, 0.99, error=0.05, most=100) is None


def test_failures_short_of_the_quantile_leave_a_bound():
    rounds = [np.append(np.full(299, 10.0), np.inf)] * 3
    assert pytest.approx(10.0) == rounds_bound(rounds, 0.99)


def test_as_many_more_rounds_as_it_says_would_do():
    logs = np.array([-0.1, 0.1] * 4)
    rounds = [np.array([math.exp(one)]) for one in logs]
    limit = math.exp(0.35)
    more = rounds_to_keep(rounds, limit, 0.99, error=0.05, most=100)
    spread = float(logs.std(ddof=1))
    kept = [tolerance_factor(8 + k, 0.99, error=0.05) * spread <= 0.35 for k in (more - 1, more)]
    assert [False, True] == kept
    assert rounds_to_keep(rounds, math.exp(0.2), 0.99, error=0.05, most=100) is None
