"""What a full server is foreseen to do, against queues whose waits are known."""

import numpy as np
import pytest
from scipy.stats import poisson

from vllm_slo.measure.queueing import Occupancy, found_by_arrivals, occupancy
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
    # 0 and 1 others in both; two gaps in 4 + 2 seconds
    assert (0.5, 0.5, 2 / 6) == (found.found, found.dispersion, found.rate)


@pytest.mark.parametrize("rounds", [[], [[(0, 1)]], [[(0, 1)], [(0, 1)]]])
def test_without_two_arrivals_in_a_round_there_is_nothing_to_tell(rounds):
    assert occupancy(tabulate(run_of(rounds)), slots=8) is None


@pytest.mark.parametrize(("found", "slots"), [(4.0, 8), (20.0, 32), (30.0, 32)])
def test_with_the_dispersion_of_poisson_the_full_share_is_poissons(found, slots):
    full = Occupancy(found=found, dispersion=1.0, rate=1.0, slots=slots).full_share
    assert pytest.approx(poisson.sf(slots - 1, found)) == full


def test_the_longest_wait_is_where_the_waiting_share_is_what_is_allowed():
    busy = Occupancy(found=26.0, dispersion=1.2, rate=5.0, slots=32)
    assert pytest.approx(0.01) == busy.waiting_share(busy.longest_wait_s(0.01))
    assert 0 == Occupancy(found=4.0, dispersion=1.0, rate=5.0, slots=32).longest_wait_s(0.01)


def test_more_coming_in_than_going_out_waits_for_ever():
    overloaded = Occupancy(found=40.0, dispersion=1.0, rate=5.0, slots=32)
    assert np.inf == overloaded.longest_wait_s(0.01)
    assert overloaded.full_share == overloaded.waiting_share(1e6)


def test_an_empty_server_makes_nobody_wait():
    empty = Occupancy(found=0.0, dispersion=1.0, rate=1.0, slots=8)
    assert (0, 0, 0) == (empty.full_share, empty.waiting_share(0), empty.longest_wait_s(0.01))


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_of_a_queue_with_slots_it_foresees_at_least_the_waiting_there_is(load):
    """M/M/8, simulated: 60,000 arrivals; foreseen from arrivals that mostly did not wait."""
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
    found = occupancy(
        tabulate(run_of([list(zip(arrivals.tolist(), ends.tolist(), strict=True))])), slots=slots
    )
    for seconds in (0.0, 0.25, 0.5):
        waiting = float((waits > seconds).mean())
        assert 0.7 * waiting <= found.waiting_share(seconds) <= 3 * waiting
