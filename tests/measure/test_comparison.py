"""Two builds in pairs: exact, and honest with few pairs."""

import math

import numpy as np
import pytest
from scipy import stats

from vllm_slo.measure import Outcome, compare
from vllm_slo.measure.comparison import hodges_lehmann, signed_rank_interval, walsh_averages


@pytest.mark.parametrize("n", [5, 7, 10, 20])
def test_bounds_are_where_wilcoxons_exact_test_turns(n):
    d = np.random.default_rng(n).normal(0.1, 0.2, n)
    errors = {"greater": 0.05, "less": 0.05}
    found = signed_rank_interval(d, lower_error=0.05, upper_error=0.05)

    def p_value(centre: float, alternative: str) -> float:
        return float(stats.wilcoxon(d - centre, alternative=alternative, method="exact").pvalue)

    step = 1e-9
    assert p_value(found.lower - step, "greater") <= errors["greater"]
    assert p_value(found.lower + step, "greater") > errors["greater"]
    assert p_value(found.upper + step, "less") <= errors["less"]
    assert p_value(found.upper - step, "less") > errors["less"]


@pytest.mark.parametrize(("n", "error", "bounded"), [(4, 0.05, False), (5, 0.05, True)])
def test_five_pairs_are_needed_at_five_percent(n, error, bounded):
    found = signed_rank_interval(np.arange(1.0, n + 1), upper_error=error)
    assert math.isfinite(found.upper) is bounded


@pytest.mark.parametrize(("n", "bounded"), [(6, False), (7, True)])
def test_seven_pairs_are_needed_at_one_percent(n, bounded):
    found = signed_rank_interval(np.arange(1.0, n + 1), lower_error=0.01)
    assert math.isfinite(found.lower) is bounded


def test_hodges_lehmann_is_the_median_of_all_pair_means():
    d = [0.3, -0.1, 0.7, 0.2]
    pairs = [(a + b) / 2 for i, a in enumerate(d) for b in d[i:]]
    assert walsh_averages(d).tolist() == pytest.approx(sorted(pairs))
    assert hodges_lehmann(d) == pytest.approx(np.median(pairs))


def test_the_interval_covers_its_centre():
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(2000):
        found = signed_rank_interval(rng.normal(0.0, 1.0, 8), lower_error=0.05)
        missed += found.lower > 0.0
    assert missed <= 2000 * 0.05 + 4 * math.sqrt(2000 * 0.05)


def test_a_regression_is_found_and_stated_as_a_ratio():
    rng = np.random.default_rng(0)
    a = rng.lognormal(6, 0.5, 10)
    found = compare(a.tolist(), (a * 1.3 * rng.lognormal(0, 0.02, 10)).tolist(), tolerance=0.1)
    assert found.outcome is Outcome.FAIL
    assert found.ratio == pytest.approx(1.3, rel=0.02)
    assert found.lower < found.ratio < found.upper


def test_worse_within_tolerance_passes_and_is_shown():
    a = np.linspace(100, 200, 10)
    found = compare(a.tolist(), (a * np.linspace(1.02, 1.04, 10)).tolist(), tolerance=0.1)
    assert (found.outcome, found.is_worse_within) == (Outcome.PASS, True)


def test_equal_builds_pass_with_enough_pairs_only():
    assert compare([1.0] * 5, [1.0] * 5, tolerance=0.1).outcome is Outcome.PASS
    assert compare([1.0] * 4, [1.0] * 4, tolerance=0.1).outcome is Outcome.INCONCLUSIVE
    assert not compare([1.0] * 5, [1.0] * 5, tolerance=0.1).is_worse_within


def test_a_round_that_failed_counts_as_worse_and_a_missing_one_not_at_all():
    found = compare([1.0] * 9, [math.inf] * 8 + [None], tolerance=0.1)
    assert (found.outcome, found.pairs, found.dropped) == (Outcome.FAIL, 8, 1)
    assert compare([math.inf] * 5, [math.inf] * 5, tolerance=0.1).ratio == 1.0
    swapped = compare([math.inf, 1.0] * 4, [1.0, math.inf] * 4, tolerance=0.1)
    assert swapped.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_pairs_bound_nothing(n):
    found = compare([1.0] * n, [2.0] * n, tolerance=0.1)
    assert (found.lower, found.upper, found.outcome) == (0.0, math.inf, Outcome.INCONCLUSIVE)


def test_figures_that_make_no_ratio_are_refused():
    with pytest.raises(ValueError, match="make no pairs"):
        compare([1.0], [], tolerance=0.1)
    with pytest.raises(ValueError, match="over 0"):
        compare([1.0], [0.0], tolerance=0.1)
