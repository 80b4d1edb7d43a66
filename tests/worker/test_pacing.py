"""Each step is held to the device's time, on a clock that the test moves."""

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from vllm_slo.device import RooflineModel, Step
from vllm_slo.engine.worker.account import AccountWriter, read_account
from vllm_slo.engine.worker.pacing import Pacer
from vllm_slo.engine.worker.steplog import StepLog

HOST_MS = 2.0
# 2 + 8 + 0.4 + max(0.65, ...) + 0.45 = 11.5 ms for a step of one decode without context.
MODEL = RooflineModel(host=HOST_MS, weights=8.0, token=0.0, activation=0.0, kv=0.0)
DECODE = Step(decodes=1, decode_context=0, sampled=1)
DECODE_MS = 11.5


@dataclass
class Clock:
    """Time in milliseconds, moved by sleeping (which oversleeps a little) and by hand."""

    now_ms: float = 1000.0
    oversleep_ms: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_ms / 1e3

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds * 1e3)
        self.now_ms += seconds * 1e3 + self.oversleep_ms

    def work(self, ms: float) -> None:
        self.now_ms += ms


@dataclass
class Engine:
    """An engine whose host works between steps, and whose tiny model computes in them."""

    pacer: Pacer
    clock: Clock
    account_path: Path

    def step(self, *, host_ms: float = 1.0, compute_ms: float = 3.0, idle: bool = False) -> float:
        """Runs one step; when it ended, in milliseconds."""
        self.clock.work(host_ms)
        self.pacer.begin(DECODE, continues=not idle)
        self.clock.work(compute_ms)
        self.pacer.finish()
        return self.clock.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Engine:
    path = tmp_path / "account"
    pacer = Pacer(
        MODEL, host_ms=HOST_MS, account=AccountWriter(path), clock=clock, sleep=clock.sleep
    )
    return Engine(pacer, clock, path)


def test_a_step_after_an_idle_time_ends_its_time_after_it_began_less_the_hosts_share(
    engine: Engine, clock: Clock
) -> None:
    clock.work(500.0)
    begun = clock.now_ms + 1.0
    assert engine.step(host_ms=1.0, idle=True) == pytest.approx(begun - HOST_MS + DECODE_MS)


@pytest.mark.parametrize("host_ms", [0.0, 1.0, 2.0, 5.0])
def test_steps_that_follow_each_other_are_the_modelled_time_apart(
    engine: Engine, host_ms: float
) -> None:
    ends = [engine.step(host_ms=host_ms, idle=i == 0) for i in range(5)]
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    assert gaps == pytest.approx([DECODE_MS] * 4)
    assert read_account(engine.account_path).overruns == 0


def test_oversleeping_does_not_add_up(engine: Engine, clock: Clock) -> None:
    first = engine.step(idle=True)
    clock.oversleep_ms = 0.1
    ends = [engine.step() for _ in range(50)]
    assert ends[-1] == pytest.approx(first + 50 * DECODE_MS + 0.1)
    assert read_account(engine.account_path).overruns == 0


def test_a_step_that_computes_too_long_is_an_overrun_and_later_ones_make_it_good(
    engine: Engine,
) -> None:
    first = engine.step(idle=True)
    assert engine.step(compute_ms=15.0) == pytest.approx(first + 16.0)
    assert engine.step() == pytest.approx(first + 2 * DECODE_MS)
    account = read_account(engine.account_path)
    assert (account.steps, account.overruns) == (3, 1)
    assert account.late_ms == pytest.approx((16.0 - DECODE_MS,))


def test_what_is_late_by_more_than_a_step_moves_the_time_line(engine: Engine) -> None:
    first = engine.step(idle=True)
    late = engine.step(compute_ms=99.0)
    assert late == pytest.approx(first + 100.0)
    # The second step is taken to have been due one step before it ended.
    assert engine.step() == pytest.approx(late + 4.0)
    assert engine.step() == pytest.approx(late + DECODE_MS)


def test_a_host_that_takes_too_long_between_steps_is_an_overrun(engine: Engine) -> None:
    engine.step(idle=True)
    engine.step(host_ms=15.0)
    account = read_account(engine.account_path)
    assert (account.steps, account.overruns) == (2, 1)
    assert account.late_ms == pytest.approx((18.0 - DECODE_MS,))


@pytest.mark.parametrize(("late_ms", "overruns"), [(0.99, 0), (1.01, 1)])
def test_a_millisecond_late_is_tolerated(engine: Engine, late_ms: float, overruns: int) -> None:
    engine.step(idle=True)
    engine.step(host_ms=0.0, compute_ms=DECODE_MS + late_ms)
    assert read_account(engine.account_path).overruns == overruns


def test_a_twentieth_of_a_long_step_is_tolerated(tmp_path: Path, clock: Clock) -> None:
    slow = replace(MODEL, weights=100.0)
    path = tmp_path / "account"
    pacer = Pacer(
        slow, host_ms=HOST_MS, account=AccountWriter(path), clock=clock, sleep=clock.sleep
    )
    engine = Engine(pacer, clock, path)
    engine.step(idle=True)
    long_ms = slow.step_ms(DECODE)
    engine.step(host_ms=0.0, compute_ms=long_ms * 1.049)
    assert read_account(path).overruns == 0
    engine.step(host_ms=0.0, compute_ms=long_ms * 1.06)
    assert read_account(path).overruns == 1


def test_an_idle_time_is_not_lateness(engine: Engine, clock: Clock) -> None:
    engine.step(idle=True)
    clock.work(60_000.0)
    engine.step(idle=True)
    assert read_account(engine.account_path).overruns == 0


def test_newcomers_right_behind_a_step_still_wait_for_the_device(engine: Engine) -> None:
    first = engine.step(idle=True)
    assert engine.step(host_ms=0.0, idle=True) == pytest.approx(first + DECODE_MS)


def test_finishing_without_a_step_does_nothing(engine: Engine, clock: Clock) -> None:
    engine.pacer.finish()
    assert clock.slept == []
    assert read_account(engine.account_path).steps == 0


def test_the_log_has_a_line_per_step_with_its_composition_and_time(
    tmp_path: Path, clock: Clock
) -> None:
    log = StepLog(tmp_path / "steps.jsonl")
    pacer = Pacer(
        MODEL,
        host_ms=HOST_MS,
        account=AccountWriter(tmp_path / "account"),
        log=log,
        clock=clock,
        sleep=clock.sleep,
    )
    step = Step(decodes=2, decode_context=30, prefills=((16, 0), (8, 64)), sampled=3)
    pacer.begin(step, continues=False)
    pacer.finish()
    pacer.close()
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == [
        {
            "decodes": 2,
            "decode_context": 30,
            "prefills": [[16, 0], [8, 64]],
            "sampled": 3,
            "ms": pytest.approx(MODEL.step_ms(step), abs=1e-3),
        }
    ]
