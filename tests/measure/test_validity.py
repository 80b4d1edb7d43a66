"""Every fact that makes a run invalid is found, and says what to change."""

from dataclasses import replace

import numpy as np
import pytest

from vllm_slo.measure import (
    ClientFacts,
    EmulationFacts,
    GpuFacts,
    ServerFacts,
    validate,
)
from vllm_slo.measure.steadiness import mser5_truncation
from vllm_slo.settings import Settings
from vllm_slo.traffic import Fixed, Poisson, TrafficClass, mix, uniform

GOOD_SERVER = ServerFacts(preemptions=0, kv_use_max=0.5, running_max=4)
GOOD_GPU = GpuFacts(
    samples=10,
    memory_used_mib_max=1000.0,
    sm_utilisation_percent=80.0,
    sm_clock_mhz_min=1400.0,
    sm_clock_mhz_max=1410.0,
    power_w_mean=300.0,
)


@pytest.fixture
def records(record):
    """An open loop at 10/s, each request in flight for 160 ms."""
    return [record(at=i * 0.1) for i in range(40)]


@pytest.fixture
def closed_records(record):
    """A closed loop of 4 slots: each starts its next request as one finishes."""
    return [record(at=(i // 4) * 0.16) for i in range(40)]


def checks(found):
    return [one.check for one in found]


def test_a_good_run_is_valid(records, closed_records, run_of):
    assert validate(run_of(records), ttft_limit_ms=200, expect_preemptions=False) == []
    closed = run_of(closed_records, closed_records, workload=uniform(concurrency=4))
    assert validate(closed) == []


def test_a_slow_client_is_found(records, run_of):
    late = [replace(one, sent_s=one.scheduled_s + 0.004) for one in records]
    (found,) = validate(run_of(late), ttft_limit_ms=300)
    assert (found.check, found.limit, found.fail_allowed) == ("send lag", 3.0, False)
    assert found.value == pytest.approx(4.0)
    assert "Free a CPU core" in found.message
    assert validate(run_of(late), ttft_limit_ms=500) == []
    assert checks(validate(run_of(late))) == ["send lag"]


def test_a_stalled_event_loop_is_found(records, run_of):
    run = run_of(records, client=ClientFacts(loop_lag_max_s=0.04))
    assert checks(validate(run, ttft_limit_ms=200)) == ["event-loop lag"]
    assert validate(run, ttft_limit_ms=800) == []
    assert validate(run) == []


def test_a_single_stall_of_a_long_round_moves_no_quantile(records, run_of):
    def stalled(share):
        client = ClientFacts(loop_lag_max_s=0.07, loop_stalled_share=share)
        return checks(validate(run_of(records, client=client), ttft_limit_ms=200))

    assert stalled(0.001) == []
    assert stalled(0.01) == ["event-loop lag"]


def test_a_rate_that_was_not_kept_is_found(records, run_of):
    slow = ClientFacts(offered_rps=10.0, achieved_rps=9.7)
    assert checks(validate(run_of(records, client=slow))) == ["achieved rate"]
    kept = ClientFacts(offered_rps=10.0, achieved_rps=9.9)
    assert validate(run_of(records, client=kept)) == []


def test_a_rate_that_the_client_did_not_tell_is_taken_from_the_records(records, run_of):
    # Each request later than the one before: 3.9 s of plan took 4.095 s.
    late = [
        replace(one, sent_s=one.scheduled_s * 1.05, event_s=one.event_s + 1.0, finished_s=6.0)
        for one in records
    ]
    assert "achieved rate" in checks(validate(run_of(late)))
    closed = run_of(late, workload=uniform(concurrency=4))
    assert "achieved rate" not in checks(validate(closed))


def test_a_throttled_pool_is_found(closed_records, run_of):
    workload = uniform(concurrency=4)
    server = replace(GOOD_SERVER, running_max=3)
    (found,) = validate(run_of(closed_records, workload=workload, server=server))
    assert (found.check, found.value, found.limit) == ("throttled pool", 3, 4)
    assert "never ran more than 3 requests" in found.message


def test_a_server_that_makes_requests_wait_is_not_a_throttled_pool(closed_records, run_of):
    workload = uniform(concurrency=4)
    server = replace(GOOD_SERVER, running_max=2)
    full = run_of(
        closed_records, workload=workload, server=server, settings=Settings(max_num_seqs=2)
    )
    assert "throttled pool" not in checks(validate(full))
    waiting = run_of(closed_records, workload=workload, server=replace(server, waiting_max=2))
    assert "throttled pool" not in checks(validate(waiting))


def test_a_loop_as_wide_as_the_server_is_checked_at_the_servers_width(closed_records, run_of):
    run = run_of(closed_records, workload=uniform(), settings=Settings(max_num_seqs=6))
    assert checks(validate(run)) == ["throttled pool", "Little's law"]


def test_work_after_readiness_is_found(records, run_of):
    run = run_of(records, client=ClientFacts(warmup_settled=False))
    assert checks(validate(run)) == ["warm-up"]


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens"])
def test_token_counts_that_are_off_are_found(records, run_of, field):
    records[3] = replace(records[3], **{field: 3})
    (found,) = validate(run_of(records))
    assert (found.check, found.value) == ("token counts", 1)


def test_prompts_that_cannot_be_exact_are_not_held_to_their_length(records, run_of):
    longer = [replace(one, prompt_tokens=25) for one in records]
    run = run_of(longer, client=ClientFacts(exact_prompts=False))
    assert validate(run) == []
    assert checks(validate(run_of(longer))) == ["token counts"]


def test_prefix_hits_are_found_where_no_prompts_share_tokens(records, run_of):
    server = replace(GOOD_SERVER, prefix_cache_hit_tokens=64)
    run = run_of(records, server=server)
    assert checks(validate(run)) == ["prefix-cache hits"]
    assert validate(run, expect_prefix_hits=True) == []


def test_prefix_hits_are_expected_where_prompts_share_tokens(records, run_of):
    shared = TrafficClass("chat", Fixed(100), Fixed(4), shared_prefix_tokens=50)
    workload = mix([shared], arrivals=Poisson(5))
    server = replace(GOOD_SERVER, prefix_cache_hit_tokens=64)
    run = run_of(records, server=server, workload=workload)
    assert validate(run) == []
    assert checks(validate(run, expect_prefix_hits=False)) == ["prefix-cache hits"]


@pytest.mark.parametrize(
    ("preemptions", "expected", "found"),
    [(0, False, []), (3, True, []), (3, False, ["regime"]), (0, True, ["regime"]), (3, None, [])],
)
def test_a_missed_regime_is_found(records, run_of, preemptions, expected, found):
    run = run_of(records, server=replace(GOOD_SERVER, preemptions=preemptions))
    assert checks(validate(run, expect_preemptions=expected)) == found


def test_overruns_are_found(records, run_of):
    def emulated(overruns: int, steps: int = 1000):
        account = EmulationFacts(steps=steps, overruns=overruns, worst_overrun_ms=7.0)
        return run_of(records, target="emulated", emulation=account)

    assert validate(emulated(10)) == []
    (found,) = validate(emulated(11))
    assert (found.check, found.value, found.limit) == ("overruns", 0.011, 0.01)
    assert checks(validate(emulated(0, steps=0))) == ["overruns"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"foreign_pids": (4242,)}, ["foreign processes"]),
        ({"throttle_reasons": ("hw_thermal_slowdown",)}, ["throttling"]),
        ({"throttle_reasons": ("gpu_idle",)}, []),
        ({"sm_clock_mhz_min": 1200.0}, ["clocks"]),
        ({"samples": 0}, ["missing facts"]),
    ],
)
def test_a_disturbed_gpu_is_found(records, run_of, changes, found):
    run = run_of(records, target="gpu", gpu=replace(GOOD_GPU, **changes))
    assert checks(validate(run)) == found


def test_clocks_that_changed_between_rounds_are_found(records, run_of):
    slower = replace(GOOD_GPU, sm_clock_mhz_min=1100.0, sm_clock_mhz_max=1110.0)
    first = run_of(records, target="gpu", gpu=GOOD_GPU)
    second = run_of(records, target="gpu", gpu=slower)
    assert checks(validate(first.joined(second))) == ["clocks"]


@pytest.mark.parametrize(
    ("target", "facts", "named"),
    [
        ("sim", {"server": ServerFacts()}, "server.preemptions, server.kv_use_max"),
        ("emulated", {}, "the padding worker's account"),
        ("gpu", {}, "NVML samples"),
    ],
)
def test_facts_that_the_target_should_have_are_missed(records, run_of, target, facts, named):
    (found,) = validate(run_of(records, target=target, **facts))
    assert (found.check, found.value) == ("missing facts", None)
    assert named in found.message


def test_a_url_need_not_know_its_server(records, run_of):
    run = run_of(records, target="url", server=ServerFacts())
    assert validate(run) == []
    assert checks(validate(run, expect_preemptions=False)) == ["regime"]


def test_overload_allows_a_fail(record, run_of):
    queue = [record(at=i * 0.1, ttft=0.1 + i * 0.05) for i in range(80)]
    (found,) = validate(run_of(queue))
    assert (found.check, found.fail_allowed) == ("overload", True)
    assert found.value == pytest.approx(2.0, abs=0.3)


def test_a_busy_server_is_not_overloaded(record, run_of):
    rng = np.random.default_rng(0)
    busy = [[record(at=i * 0.1, ttft=rng.exponential(0.5)) for i in range(80)] for _ in range(5)]
    assert validate(run_of(*busy)) == []


def test_rounds_that_never_settle_are_found(record, run_of):
    rng = np.random.default_rng(0)

    def slow_for_most_of_a_round():
        return [record(at=i * 0.1, ttft=rng.exponential(0.01) + 2.0 * (i < 80)) for i in range(120)]

    five = [slow_for_most_of_a_round() for _ in range(5)]
    (found,) = validate(run_of(*five))
    assert (found.check, found.value) == ("steady state", 1.0)
    assert validate(run_of(*five[:4])) == []  # too few rounds to say


def test_a_drift_through_a_closed_loop_is_found(record, run_of):
    rng = np.random.default_rng(0)

    def loop(ttft):
        # Each of 4 slots starts anew as its request finishes.
        records, free = [], [0.0] * 4
        for i in range(100):
            slot = int(np.argmin(free))
            records.append(record(at=free[slot], ttft=ttft(i)))
            free[slot] = float(records[-1].finished_s)
        return records

    workload = uniform(concurrency=4)
    steady = [loop(lambda i: rng.exponential(0.1) + (0.5 if i < 4 else 0.0)) for _ in range(5)]
    assert validate(run_of(*steady, workload=workload)) == []
    (slower,) = validate(run_of(loop(lambda i: 0.01 * i), workload=workload))
    assert (slower.check, slower.fail_allowed) == ("steady state", True)
    (faster,) = validate(run_of(loop(lambda i: 0.01 * (105 - i)), workload=workload))
    assert (faster.check, faster.fail_allowed) == ("steady state", False)


def test_a_server_that_died_is_all_that_is_said(records, run_of):
    dead = run_of(records, server=ServerFacts(), server_died="out of memory")
    (found,) = validate(dead)
    assert (found.check, found.fail_allowed) == ("server", True)
    assert "out of memory" in found.message


def test_mser_cuts_what_came_before_the_steady_state():
    rng = np.random.default_rng(1)
    steady = rng.normal(10, 1, 300)
    assert mser5_truncation(steady) <= 150
    begun = steady + np.where(np.arange(300) < 60, 40.0, 0.0)
    assert mser5_truncation(begun) == 60
    assert mser5_truncation(np.full(300, 7.0)) == 0
    assert mser5_truncation(steady[:20]) == 0


def test_idle_slots_of_a_closed_loop_break_littles_law(record, run_of):
    # Each slot rests for as long as a request takes.
    idle = [record(at=(i // 4) * 0.32) for i in range(40)]
    (found,) = validate(run_of(idle, workload=uniform(concurrency=4)))
    assert found.check == "Little's law"
    assert found.value == pytest.approx(0.5, abs=0.06)


def test_a_window_that_is_not_the_records_breaks_littles_law(records, run_of):
    # Half of the requests finish long after the others: nothing in flight that X R tells of.
    lost = [
        replace(one, finished_s=one.finished_s + 30.0, scheduled_s=one.scheduled_s - 30.0)
        if i % 2
        else one
        for i, one in enumerate(records)
    ]
    run = run_of(lost, window_s=(0.0, 40.0))
    assert "Little's law" in checks(validate(run))


def test_more_tokens_than_the_sequences_can_give_are_found(record, run_of):
    at_once = [record(gaps=[0.02] * 50) for _ in range(16)]
    run = run_of(at_once, settings=Settings(max_num_seqs=8))
    (found,) = validate(run)
    assert (found.check, found.limit) == ("decode bound", pytest.approx(8 / 0.02))
    assert found.value == pytest.approx(16 / 0.02)
    assert validate(replace(run, settings=Settings(max_num_seqs=16))) == []
    preempted = run_of(
        at_once,
        settings=Settings(max_num_seqs=8),
        server=replace(GOOD_SERVER, preemptions=4),
    )
    assert validate(preempted) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"scheduled_s": 99.0, "sent_s": 99.0},
        {"event_s": np.array([0.3, 0.2, 0.25, 0.4])},
        {"event_s": np.array([0.1, np.inf, 0.25, 0.4])},
        {"finished_s": -1.0},
    ],
)
def test_times_that_run_backwards_are_found(records, run_of, changes):
    records[0] = replace(records[0], **changes)
    assert "time order" in checks(validate(run_of(records, window_s=(0.0, 4.2))))


def test_a_run_without_requests_is_invalid(run_of):
    assert checks(validate(run_of())) == ["requests"]
    assert checks(validate(run_of([]))) == ["requests"]


def test_a_run_in_which_all_fail_does_not_crash(failed, run_of):
    for workload in (uniform(concurrency=2), uniform(arrivals=Poisson(3))):
        found = validate(run_of([failed() for _ in range(30)], workload=workload))
        assert all(one.message for one in found)


def test_every_finding_says_what_to_do(records, failed, run_of):
    run = run_of(
        [replace(one, sent_s=one.sent_s + 0.09, output_tokens=1) for one in records],
        client=ClientFacts(
            loop_lag_max_s=1.0, warmup_settled=False, offered_rps=9.0, achieved_rps=1.0
        ),
        server=ServerFacts(preemptions=2, prefix_cache_hit_tokens=1),
        gpu=replace(GOOD_GPU, foreign_pids=(1,), throttle_reasons=("sw_power_cap",)),
        emulation=EmulationFacts(steps=10, overruns=5),
    )
    found = validate(run, expect_preemptions=False)
    assert len(set(checks(found))) >= 10
    assert all(len(one.message.split(" ")) > 10 for one in found)
