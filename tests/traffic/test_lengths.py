"""Length distributions: what is drawn is what is stated."""

import numpy as np
import pytest

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic import Empirical, Fixed, Lengths, LogNormal, Uniform
from vllm_slo.traffic.lengths import as_lengths

DISTRIBUTIONS: list[Lengths] = [
    Fixed(512),
    Uniform(64, 1024),
    LogNormal(300, 1.2, 1, 2048),
    LogNormal(3, 0.5),
    LogNormal(200, 0.0),
    LogNormal.of_mean(256, sigma=1.5, low=16, high=4096),
    Empirical((5, 5, 700)),
    Empirical((1, 50, 7), (1, 2, 0)),
]


@pytest.mark.parametrize("lengths", DISTRIBUTIONS, ids=str)
def test_mean_and_cv_are_those_of_what_is_drawn(lengths):
    drawn = lengths.draw(np.random.default_rng(3), 200_000)
    # Six standard errors of the mean; the cv's is of the same order for these.
    allowed = 6 * drawn.std() / np.sqrt(len(drawn))
    assert abs(drawn.mean() - lengths.mean) <= allowed + 1e-9
    assert lengths.cv == pytest.approx(drawn.std() / drawn.mean(), rel=0.02, abs=1e-12)


@pytest.mark.parametrize("lengths", DISTRIBUTIONS, ids=str)
def test_more_draws_begin_with_the_fewer(lengths):
    few = lengths.draw(np.random.default_rng(5), 40)
    many = lengths.draw(np.random.default_rng(5), 100)
    assert few.tolist() == many[:40].tolist()
    assert many.dtype == np.int64


def test_uniform_includes_both_ends():
    drawn = Uniform(3, 5).draw(np.random.default_rng(0), 1000)
    assert set(drawn.tolist()) == {3, 4, 5}


def test_lognormal_stays_in_its_range_however_wide_it_is():
    drawn = LogNormal(100, 50.0, 8, 512).draw(np.random.default_rng(0), 10_000)
    assert (drawn.min(), drawn.max()) == (8, 512)


@pytest.mark.parametrize("mean", [20.0, 256.0, 4000.0])
def test_lognormal_of_mean_has_that_mean_after_clipping(mean):
    lengths = LogNormal.of_mean(mean, sigma=1.0, low=16, high=4096)
    assert lengths.mean == pytest.approx(mean, rel=1e-3)


def test_empirical_never_draws_what_has_no_weight():
    drawn = Empirical((1, 50, 7), (1, 2, 0)).draw(np.random.default_rng(0), 5000)
    assert set(drawn.tolist()) == {1, 50}


def test_text_is_short_and_says_the_shape():
    texts = [str(one) for one in (Fixed(512), Uniform(64, 1024), LogNormal(300, 1.2, 1, 2048))]
    assert texts == ["512", "64..1024", "lognormal(median=300, sigma=1.2, 1..2048)"]


def test_plain_values_become_distributions():
    assert as_lengths(512) == Fixed(512)
    assert as_lengths((64, 1024)) == Uniform(64, 1024)
    assert as_lengths(Uniform(1, 2)) == Uniform(1, 2)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: Fixed(0), "tokens must be a whole number"),
        (lambda: Fixed(True), "tokens must be a whole number"),
        (lambda: Fixed(1.5), "not 1.5"),  # type: ignore[arg-type]
        (lambda: Fixed(1 << 40), "not 1099511627776"),
        (lambda: Uniform(9, 3), "low is 9, over high, 3"),
        (lambda: Uniform(-1, 3), "not -1"),
        (lambda: LogNormal(float("nan"), 1.0), "median must be"),
        (lambda: LogNormal(100, float("inf")), "sigma must be"),
        (lambda: LogNormal.of_mean(5000, sigma=1, high=4096), "mean of 5000 is not between"),
        (lambda: Empirical(()), "no values"),
        (lambda: Empirical((3, 0)), "not 0"),
        (lambda: Empirical((3, 4), (1.0,)), "1 weights for 2 values"),
        (lambda: Empirical((3, 4), (0.0, 0.0)), "not all 0"),
        (lambda: Empirical((3, 4), (1.0, float("nan"))), "finite"),
        (lambda: as_lengths((1, 2, 3)), "given as (low, high)"),  # type: ignore[arg-type]
    ],
)
def test_lengths_that_make_no_sense_are_refused(make, fault):
    with pytest.raises(WorkloadError) as caught:
        make()
    assert fault in str(caught.value)
