import numpy as np
import pytest

from vllm_slo.errors import SloError
from vllm_slo.slo import Outcome
from vllm_slo.slo.compare import compare_builds

ROW = "ttft_p99_ms = 1\noutput_tok_s = 1\nitl_p99_ms = 1"


def ttfts(rounds=10, factor=1.0, noise_seed=1):
    """Rounds whose p99s differ widely, as loads do; `factor` is all that tells builds apart."""
    schedule = np.random.default_rng(3).lognormal(5, 0.5, (rounds, 300))
    own = np.random.default_rng(noise_seed).uniform(0.99, 1.01, schedule.shape)
    return (factor * schedule * own).tolist()


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.0, Outcome.PASS),
        (0.5, Outcome.PASS),
        (1.05, Outcome.PASS),
        (1.1, Outcome.INCONCLUSIVE),
        (1.3, Outcome.FAIL),
    ],
)
def test_b_is_held_to_a_within_the_tolerance(make_run, make_row, factor, expected):
    a, b = make_run(ttfts()), make_run(ttfts(factor=factor, noise_seed=2))
    found = compare_builds(a, b, make_row("ttft_p99_ms = 1"), tolerance=0.1)
    assert expected == found.outcome
    assert factor == pytest.approx(found.figures[0].comparison.ratio, rel=0.02)


def test_worse_within_tolerance_is_said(make_run, make_row):
    a, b = make_run(ttfts()), make_run(ttfts(factor=1.05, noise_seed=2))
    (figure,) = compare_builds(a, b, make_row("ttft_p99_ms = 1")).figures
    assert (Outcome.PASS, True) == (figure.outcome, "worse, within tolerance" in figure.message)


def test_less_throughput_is_worse(make_run, make_row):
    a, b = make_run(ttfts()), make_run(ttfts(), window_s=13.0)
    (figure,) = compare_builds(a, b, make_row("output_tok_s = 1")).figures
    assert (Outcome.FAIL, 1.3) == (figure.outcome, pytest.approx(figure.comparison.ratio))


def test_failed_requests_of_b_are_a_regression(make_run, make_row):
    broken = [[float("nan")] * 10 + one[10:] for one in ttfts()]
    found = compare_builds(make_run(ttfts()), make_run(broken), make_row("ttft_p99_ms = 1"))
    assert Outcome.FAIL == found.outcome


def test_too_few_pairs_are_inconclusive(make_run, make_row):
    a, b = make_run(ttfts(4)), make_run(ttfts(4, factor=3))
    found = compare_builds(a, b, make_row(ROW))
    assert Outcome.INCONCLUSIVE == found.outcome
    assert "needs more pairs" in found.figures[0].message


@pytest.mark.parametrize("rounds", [[], [[]] * 9, [[float("nan")] * 9] * 9])
def test_nothing_measured_never_passes_and_never_crashes(make_run, make_row, rounds):
    found = compare_builds(make_run(rounds), make_run(rounds), make_row("ttft_p99_ms = 1"))
    assert Outcome.PASS != found.outcome


def test_an_invalid_run_decides_nothing(make_run, make_row):
    run = make_run(ttfts())
    found = compare_builds(run, run, make_row(ROW), invalid=["B: a late client"])
    assert (Outcome.INVALID, ("B: a late client",)) == (found.outcome, found.reasons)


def test_rounds_that_make_no_pairs_are_an_error(make_run, make_row):
    with pytest.raises(SloError, match="cannot be compared"):
        compare_builds(make_run(ttfts(5)), make_run(ttfts(6)), make_row(ROW))


def test_a_row_without_a_figure_to_compare_is_an_error(make_run, make_row):
    run = make_run(ttfts(5))
    with pytest.raises(SloError, match="no latency or throughput limit"):
        compare_builds(run, run, make_row("preemptions = 1"))
