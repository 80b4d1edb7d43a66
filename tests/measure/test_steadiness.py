"""Whether rounds are steady, and whose fault it is where they are not."""

import pytest

from vllm_slo.measure.steadiness import mser5_truncation, steadiness
from vllm_slo.measure.table import tabulate
from vllm_slo.traffic import Poisson, uniform

SLOTS = 8


@pytest.fixture
def closed_loop(record, run_of):
    """A run of one round in waves: every slot's next request starts when its last one ends."""

    def in_waves(ttft_of_wave, waves=16):
        records = [
            record(index=wave * SLOTS + slot, at=float(wave), ttft=ttft_of_wave(wave, slot))
            for wave in range(waves)
            for slot in range(SLOTS)
        ]
        return run_of(records, workload=uniform(concurrency=SLOTS))

    return in_waves


def found(run):
    return [(one.check, one.fail_allowed) for one in steadiness(run, tabulate(run))]


def test_waves_of_a_closed_loop_and_its_start_are_no_transient(closed_loop):
    assert found(closed_loop(lambda wave, slot: 0.03 * slot + (2.0 if wave == 0 else 0.3))) == []


def test_a_server_that_gets_slower_at_constant_load_is_not_steady(closed_loop):
    run = closed_loop(lambda wave, slot: 0.05 + 0.05 * wave)
    assert found(run) == [("steady state", True)]


def test_a_server_that_warms_up_still_can_neither_pass_nor_fail(closed_loop):
    run = closed_loop(lambda wave, slot: 0.05 + 2.0 / (1 + wave) ** 2)
    assert found(run) == [("steady state", False)]


def test_a_queue_that_only_grows_is_overload(record, run_of):
    records = [record(index=i, at=0.1 * i, ttft=0.05 + 0.1 * i, gaps=(0.01,)) for i in range(200)]
    run = run_of(records, workload=uniform(arrivals=Poisson(10.0)))
    assert ("overload", True) in found(run)


def test_mser_cuts_the_transient_and_no_more():
    import numpy as np

    noise = np.random.default_rng(1).normal(0, 0.01, 400)
    values = np.concatenate((np.linspace(5, 1, 100), np.ones(300))) + noise
    assert 80 <= mser5_truncation(values) <= 120
    assert mser5_truncation(np.ones(400)) == 0
