"""Intervals: scipy's where a case reduces to it, honest at every edge."""

import math

import numpy as np
import pytest
from scipy import stats

from vllm_slo.measure import Outcome, classify, mean_interval, over_limit, quantile_interval
from vllm_slo.measure.intervals import (
    design_effect,
    effective_count,
    least_effective,
    more_rounds,
    share_interval,
)


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (0.011, 0.02, Outcome.FAIL),
        (0.005, 0.01, Outcome.PASS),
        (0.01, 0.02, Outcome.INCONCLUSIVE),
        (0.0, 1.0, Outcome.INCONCLUSIVE),
        (-math.inf, math.inf, Outcome.INCONCLUSIVE),
        (math.nan, 0.0, Outcome.INCONCLUSIVE),
        (0.0, math.nan, Outcome.INCONCLUSIVE),
    ],
)
def test_one_rule_decides(lower, upper, expected):
    assert classify(lower, upper, 0.01) is expected


def test_a_limit_that_is_not_a_number_decides_nothing():
    assert classify(0.0, 1.0, math.nan) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("over", "n"), [(0, 300), (3, 300), (7, 450), (299, 300), (40, 40)])
def test_one_round_of_independent_requests_is_binomial(over, n):
    found = share_interval([over], [n], fail_error=0.01, pass_error=0.05)
    exact = stats.binomtest(over, n)
    assert found.lower == pytest.approx(exact.proportion_ci(0.98, "exact").low, abs=1e-9)
    assert found.upper == pytest.approx(exact.proportion_ci(0.90, "exact").high, abs=1e-9)
    assert (found.effective, found.deff) == (n, 1.0)


def test_design_effect_of_equal_rounds_is_between_over_binomial_variance():
    over, n = np.array([2, 9, 4, 0, 10]), 100
    share = over.sum() / 500
    between = np.var(over / n, ddof=1) / 5
    assert design_effect(over, [n] * 5) == pytest.approx(between / (share * (1 - share) / 500))


def test_design_effect_of_independent_rounds_is_about_one():
    rng = np.random.default_rng(0)
    effects = [design_effect(rng.binomial(600, 0.05, 10), [600] * 10) for _ in range(500)]
    assert np.mean(effects) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("over", [[0, 0, 0], [50, 50, 50]])
def test_design_effect_of_none_or_all_is_one(over):
    assert design_effect(over, [50, 50, 50]) == 1.0


def test_effective_count_is_korn_and_graubards():
    t_n, t_r = stats.t.ppf(0.95, 2999), stats.t.ppf(0.95, 4)
    expected = 3000 / 2.5 * (t_n / t_r) ** 2
    assert effective_count(3000, rounds=5, deff=2.5, error=0.05) == pytest.approx(expected)


def test_share_bounds_are_beta_quantiles_at_the_effective_count():
    found = share_interval([3, 1, 0, 9, 2], [100] * 5, fail_error=0.02, pass_error=0.04)
    p = 15 / 500
    for_pass = effective_count(500, rounds=5, deff=found.deff, error=0.04)
    for_fail = effective_count(500, rounds=5, deff=found.deff, error=0.02)
    assert found.estimate == p
    assert found.effective == for_pass
    upper = stats.beta.ppf(0.96, p * for_pass + 1, for_pass - p * for_pass)
    lower = stats.beta.ppf(0.02, p * for_fail, for_fail - p * for_fail + 1)
    assert (found.lower, found.upper) == pytest.approx((lower, upper))


def test_clustering_is_also_looked_for_below_the_limit():
    # One round is slow throughout, but a single request is over the limit.
    rounds = [np.linspace(0, 1, 200) for _ in range(4)] + [np.linspace(5, 9, 200)]
    assert over_limit(rounds, 8.99).deff > 10
    assert share_interval([0, 0, 0, 0, 1], [200] * 5).deff == pytest.approx(1.0, abs=0.01)


def test_failed_requests_are_over_any_limit():
    found = over_limit([np.array([1.0, np.inf])] * 3, 1e12)
    assert (found.estimate, found.n) == (0.5, 6)


def test_the_quantile_interval_is_the_verdict_read_the_other_way():
    rng = np.random.default_rng(2)
    rounds = [rng.lognormal(5, 0.4, 500) for _ in range(10)]
    found = quantile_interval(rounds, 0.99)
    assert found.lower < found.estimate < found.upper < math.inf
    for limit, expected in [
        (found.lower * 0.999, Outcome.FAIL),
        (found.lower, Outcome.INCONCLUSIVE),
        (found.upper * 0.999, Outcome.INCONCLUSIVE),
        (found.upper, Outcome.PASS),
    ]:
        share = over_limit(rounds, limit)
        assert classify(share.lower, share.upper, 0.01) is expected


def test_the_quantile_interval_covers_the_truth():
    rng = np.random.default_rng(5)
    missed_low = missed_high = 0
    for _ in range(300):
        rounds = [rng.exponential(1.0, 200) for _ in range(5)]
        found = quantile_interval(rounds, 0.9)
        truth = -math.log(0.1)
        missed_low += truth < found.lower
        missed_high += truth >= found.upper
    # Nominal 1 % and 5 %; six standard errors above.
    assert missed_low <= 300 * 0.01 + 6 * math.sqrt(300 * 0.01)
    assert missed_high <= 300 * 0.05 + 6 * math.sqrt(300 * 0.05)


def test_too_few_samples_bound_nothing_from_above():
    found = quantile_interval([np.arange(1.0, 21.0)] * 3, 0.99)
    assert found.upper == math.inf
    assert quantile_interval([np.array([7.0])], 0.99).lower == -math.inf


EDGES = {
    "nothing": [],
    "empty rounds": [np.empty(0), np.empty(0)],
    "one request": [np.array([3.0])],
    "one round": [np.arange(300.0)],
    "all over": [np.full(100, 9.0)] * 5,
    "none over": [np.full(100, 1.0)] * 5,
    "all equal to the limit": [np.full(100, 5.0)] * 5,
    "all failed": [np.full(100, np.inf)] * 5,
    "rounds of different size": [np.arange(3.0), np.arange(400.0), np.empty(0)],
    "one slow round": [np.full(100, 1.0)] * 4 + [np.full(100, 9.0)],
    "two requests": [np.array([1.0]), np.array([9.0])],
}


@pytest.mark.parametrize("rounds", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_edges_give_bounds_in_order(rounds, q):
    share = over_limit(rounds, 5.0)
    assert 0.0 <= share.lower <= share.upper <= 1.0
    assert 0 <= share.effective <= share.n
    assert share.deff >= 1.0
    if share.n:
        assert share.lower <= share.estimate <= share.upper
        found = quantile_interval(rounds, q)
        assert found.lower <= found.estimate <= found.upper
    more = more_rounds(share, q)
    assert more is None or more >= 0


def test_no_request_says_nothing():
    found = over_limit([], 5.0)
    assert (found.lower, found.upper, found.n, found.effective) == (0.0, 1.0, 0, 0.0)
    assert more_rounds(found, 0.99) is None


@pytest.mark.parametrize(
    ("values", "errors"), [([1.0, 2.0, 4.0], (0.05, 0.05)), ([3.0, 3.5] * 5, (0.01, 0.05))]
)
def test_mean_interval_is_students(values, errors):
    found = mean_interval(values, lower_error=errors[0], upper_error=errors[1])
    at = {"loc": np.mean(values), "scale": stats.sem(values)}
    expected = [
        stats.t.ppf(errors[0], len(values) - 1, **at),
        stats.t.ppf(1 - errors[1], len(values) - 1, **at),
    ]
    assert [found.lower, found.upper] == pytest.approx(expected)


def test_mean_of_fewer_than_two_rounds_is_not_bounded():
    for values in ([], [3.0], [math.nan, 3.0], [math.inf, 3.0]):
        found = mean_interval(values)
        assert (found.lower, found.upper) == (-math.inf, math.inf)
    assert mean_interval([2.0, 2.0, 2.0]).upper == 2.0


@pytest.mark.parametrize(("q", "error", "n"), [(0.99, 0.05, 299), (0.5, 0.05, 5), (0.9, 0.05, 29)])
def test_least_effective_samples_are_those_with_which_none_over_passes(q, error, n):
    assert least_effective(q, error=error) == n
    assert share_interval([0], [n], pass_error=error).upper <= 1 - q
    assert share_interval([0], [n - 1], pass_error=error).upper > 1 - q


def test_more_rounds_settle_it_if_they_are_like_these():
    rounds = [np.r_[np.full(99, 1.0), 9.0] if i % 3 == 0 else np.full(100, 1.0) for i in range(6)]
    share = over_limit(rounds, 5.0)
    assert classify(share.lower, share.upper, 0.01) is Outcome.INCONCLUSIVE
    more = more_rounds(share, 0.99)
    assert more is not None
    enough = over_limit((rounds * 60)[: 6 + more], 5.0)
    assert classify(enough.lower, enough.upper, 0.01) is Outcome.PASS


def test_at_the_limit_no_number_of_rounds_settles_it():
    rounds = [np.r_[np.full(99, 1.0), 9.0]] * 6
    assert more_rounds(over_limit(rounds, 5.0), 0.99) is None


def test_what_is_settled_needs_no_more_rounds():
    assert more_rounds(over_limit([np.full(600, 1.0)] * 5, 5.0), 0.99) == 0
