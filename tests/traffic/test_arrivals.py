"""Arrival processes: sorted, at the stated rate, with the stated spread."""

import numpy as np
import pytest

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic import ClosedLoop, Constant, Gamma, OnOff, OpenLoop, Poisson

PROCESSES: list[OpenLoop] = [
    Poisson(5),
    Gamma(5, 0.25),
    Gamma(5, 4.0),
    Constant(5),
    OnOff(20, 1, 3),
    OnOff(10, 2, 8, 1),
]


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_arrivals_are_sorted_and_come_at_the_stated_rate(process):
    arrivals = process.draw(np.random.default_rng(1), 100_000)
    assert arrivals[0] >= 0
    assert (np.diff(arrivals) >= 0).all()
    assert len(arrivals) / arrivals[-1] == pytest.approx(process.rate, rel=0.03)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_more_arrivals_begin_with_the_fewer(process):
    few = process.draw(np.random.default_rng(2), 30)
    many = process.draw(np.random.default_rng(2), 90)
    assert few.tolist() == many[:30].tolist()


@pytest.mark.parametrize(
    ("process", "cv"),
    [(Poisson(3), 1.0), (Gamma(3, 1.0), 1.0), (Gamma(3, 0.25), 2.0), (Gamma(3, 4.0), 0.5)],
    ids=str,
)
def test_gaps_spread_as_burstiness_says(process, cv):
    gaps = np.diff(process.draw(np.random.default_rng(3), 200_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02)


def test_gamma_draws_what_vllm_bench_serve_draws():
    # benchmarks/serve.py: theta = 1 / (rate * burstiness); gamma(shape=burstiness, scale=theta)
    expected = np.cumsum(np.random.default_rng(4).gamma(0.5, 1 / (6 * 0.5), 20))
    assert Gamma(6, 0.5).draw(np.random.default_rng(4), 20).tolist() == expected.tolist()


def test_constant_starts_at_zero_and_is_even():
    assert Constant(4).draw(np.random.default_rng(0), 4).tolist() == [0.0, 0.25, 0.5, 0.75]


def test_nothing_arrives_while_a_burst_is_off():
    arrivals = OnOff(50, on_s=1, off_s=3).draw(np.random.default_rng(0), 5000)
    assert (arrivals % 4 <= 1).all()


def test_on_and_off_phases_have_their_own_rates():
    arrivals = OnOff(50, on_s=2, off_s=8, rate_off=5).draw(np.random.default_rng(0), 70_000)
    periods = arrivals[-1] // 10
    is_on = (arrivals % 10 < 2) & (arrivals < periods * 10)
    is_off = (arrivals % 10 >= 2) & (arrivals < periods * 10)
    assert is_on.sum() / (2 * periods) == pytest.approx(50, rel=0.02)
    assert is_off.sum() / (8 * periods) == pytest.approx(5, rel=0.03)


def test_a_closed_loop_has_slots_of_its_own_or_of_the_server():
    assert (ClosedLoop(8).slots, ClosedLoop(8).slots_per_seq) == (8, None)
    assert (ClosedLoop().slots, ClosedLoop().slots_per_seq) == (None, 1.0)
    assert str(ClosedLoop("max_num_seqs", times=2)) == "2 x max_num_seqs"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0),
        lambda: Poisson(-1),
        lambda: Poisson(float("nan")),
        lambda: Poisson(float("inf")),
        lambda: Poisson("5"),  # type: ignore[arg-type]
        lambda: Gamma(5, 0),
        lambda: Constant(0),
        lambda: OnOff(5, 0, 1),
        lambda: OnOff(5, 1, 1, -2),
        lambda: ClosedLoop(0),
        lambda: ClosedLoop("seqs"),  # type: ignore[arg-type]
        lambda: ClosedLoop(4, times=2),
        lambda: ClosedLoop(times=0),
    ],
)
def test_processes_that_make_no_sense_are_refused(make):
    with pytest.raises(WorkloadError):
        make()
