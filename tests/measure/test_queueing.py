"""What a full server is foreseen to do, against queues whose waits are known."""

import math

import numpy as np
import pytest
from scipy.stats import poisson

from vllm_slo.measure.queueing import Occupancy, found_by_arrivals, full_share, occupancy
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import EngineInfo, Round, Run
from vllm_slo.measure.table import tabulate
from vllm_slo.settings import Settings
from vllm_slo.traffic.workload import Workload


def run_of(rounds: list[list[tuple[float, float | None]]]) -> Run:
    """Requests as (arrival, end) in seconds; no end is a failure."""
    return Run(
        workload=Workload(name="w", plan=lambda _: []),
        settings=Settings(),
        engine=EngineInfo(target="sim", device="d", model="m", vllm_version="0.32.0"),
        rounds=tuple(
            Round(
                seed=seed,
                records=[
                    RequestRecord(
                        class_name="all",
                        planned_prompt_tokens=1,
                        planned_output_tokens=1,
                        scheduled_s=arrival,
                        sent_s=arrival,
                        event_s=np.empty(0) if end is None else np.array([end]),
                        event_tokens=np.ones(0 if end is None else 1, dtype=np.int64),
                        finished_s=end,
                        prompt_tokens=1,
                        output_tokens=1,
                        error="broken" if end is None else None,
                    )
                    for arrival, end in one
                ],
                window_s=(0.0, 100.0),
            )
            for seed, one in enumerate(rounds)
        ),
    )


def test_an_arrival_finds_those_that_have_come_and_not_gone():
    table = tabulate(run_of([[(0, 5), (1, 2), (2, 9), (3, 4)], [(0, 1)]]))
    assert [[0, 1, 1, 2], [0]] == [one.tolist() for one in found_by_arrivals(table)]


def test_rounds_are_apart_and_failures_are_left_out():
    found = occupancy(tabulate(run_of([[(0, 9), (1, None), (4, 9)], [(0, 9), (2, 9)]])), slots=8)
    assert [[2, 2], [1, 1], [1, 1], [4, 2]] == [
        one.tolist() for one in (found.requests, found.found, found.found_squared, found.arriving_s)
    ]
    assert 0.5 == found.mean_found


@pytest.mark.parametrize("rounds", [[], [[(0, 1)]], [[(0, 1)], [(0, 1)]]])
def test_without_two_arrivals_in_a_round_there_is_nothing_to_tell(rounds):
    assert occupancy(tabulate(run_of(rounds)), slots=8) is None


@pytest.mark.parametrize(("mean", "slots"), [(4.0, 8), (20.0, 32), (30.0, 32)])
def test_with_the_variance_of_poisson_the_full_share_is_poissons(mean, slots):
    assert pytest.approx(poisson.sf(slots - 1, mean)) == full_share(mean, mean, slots=slots)


def alike(found: float, *, rounds: int, spread: float = 0.0, slots: int = 32) -> Occupancy:
    """Rounds of 100 requests, 5 a second, that found as many on average, give or take."""
    means = found * (1 + spread * np.resize([-1.0, 1.0], rounds))
    return Occupancy(
        slots=slots,
        requests=np.full(rounds, 100.0),
        found=100 * means,
        found_squared=100 * (means**2 + means),
        arriving_s=np.full(rounds, 99 / 5),
    )


def test_the_wait_of_rounds_that_are_alike_is_that_of_the_formula():
    full = poisson.sf(31, 26.0)
    expected = math.log(full / 0.01) / (5 * (32 / 26 - 1))
    assert pytest.approx(expected) == alike(26, rounds=5).wait_s(0.01, error=0.05)
    assert pytest.approx(0) == alike(26, rounds=5).wait_s(full, error=0.05)
    assert alike(10, rounds=5).wait_s(0.01, error=0.05) < 0


def test_the_fewer_and_the_more_unlike_the_rounds_the_longer_a_wait_cannot_be_ruled_out():
    few, many, unlike = (
        alike(22, rounds=rounds, spread=spread).wait_s(0.01, error=0.05)
        for rounds, spread in ((4, 0.05), (20, 0.05), (20, 0.2))
    )
    assert many < few
    assert many < unlike


@pytest.mark.parametrize("rounds", [1, 5])
def test_more_coming_in_than_going_out_waits_for_ever(rounds):
    assert np.inf == alike(40, rounds=rounds).wait_s(0.01, error=0.05)


def test_an_empty_server_makes_nobody_wait():
    assert 0 == alike(0, rounds=5).full_share
    assert -np.inf == alike(0, rounds=5).wait_s(0.01, error=0.05)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_server_far_larger_than_its_load_makes_nobody_wait(spread):
    assert alike(2, rounds=5, slots=512, spread=spread).wait_s(0.01, error=0.01) < 0


def test_one_round_rules_no_wait_out():
    assert np.inf == alike(10, rounds=1).wait_s(0.01, error=0.05)


@pytest.mark.parametrize(("load", "at_most"), [(0.5, 2.0), (0.6, 2.5), (0.75, 5.0), (0.9, np.inf)])
def test_of_a_queue_with_slots_it_foresees_no_less_than_the_wait_there_is(load, at_most):
    """M/M/8, simulated: 60,000 arrivals in 20 pieces."""
    slots, n = 8, 60_000
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / (load * slots), n))
    service = rng.exponential(1.0, n)
    free = np.zeros(slots)
    ends, waits = np.empty(n), np.empty(n)
    for i in range(n):
        slot = int(free.argmin())
        start = max(arrivals[i], free[slot])
        waits[i], ends[i] = start - arrivals[i], start + service[i]
        free[slot] = ends[i]
    pieces = np.array_split(np.arange(n), 20)
    rounds = [list(zip(arrivals[p].tolist(), ends[p].tolist(), strict=True)) for p in pieces]
    foreseen = occupancy(tabulate(run_of(rounds)), slots=slots).wait_s(0.01, error=0.05)
    true = float(np.quantile(waits, 0.99))
    assert true <= foreseen <= at_most * true
