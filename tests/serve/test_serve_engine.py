"""The engine by a clock of the test's own: exactly the simulator's times, and honest when late."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_slo.device import RooflineModel, device_model
from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request
from vllm_slo.sim.serve.engine import Engine, ServedScheduler, StepDone
from vllm_slo.sim.serve.outlet import Outlet
from vllm_slo.sim.simulate import simulate
from vllm_slo.traffic.workload import PlannedRequest


class VirtualTime:
    """A clock, and a waker whose callbacks come exactly when they are due, or `late_s` after."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.late_s = 0.0
        self._due: tuple[float, Callable[[], None]] | None = None

    def __call__(self) -> float:
        return self.now_s

    def set(self, due_s: float, callback: Callable[[], None]) -> None:
        self._due = (due_s, callback)

    def run_until(self, end_s: float) -> None:
        """Wakes whom it must before `end_s`, and stops there."""
        while self._due is not None and self._due[0] + self.late_s < end_s:
            (due_s, callback), self._due = self._due, None
            self.now_s = max(self.now_s, due_s + self.late_s)
            callback()
        self.now_s = max(self.now_s, end_s) if end_s < float("inf") else self.now_s


class Recorder:
    """An engine on virtual time, and the times of its tokens by request."""

    def __init__(self, config: SchedulerConfig, *, model: RooflineModel | None = None) -> None:
        self.time = VirtualTime()
        self.token_s: dict[int, list[float]] = {}
        self.admitted: list[tuple[int, int]] = []
        self.engine = Engine(
            ServedScheduler(config),
            model or device_model("a100-80gb", scheduling=_scheduling(config)),  # type: ignore[arg-type]
            waker=self.time,
            clock=self.time,
            on_admit=lambda request, cached: self.admitted.append((request.request_id, cached)),
            on_step=self._on_step,
        )

    def _on_step(self, step: StepDone) -> None:
        for request in step.sampled:
            self.token_s.setdefault(request.request_id, []).append(self.time())

    def add(self, number: int, prompt: int, output: int) -> Request:
        request = Request(
            number, num_prompt_tokens=prompt, max_tokens=output, arrival_time=self.time()
        )
        self.engine.add(request)
        return request


def _scheduling(config: SchedulerConfig) -> str:
    return "async" if config.async_scheduling else "sync"


def _config(**fields: Any) -> SchedulerConfig:
    return SchedulerConfig(**{"num_gpu_blocks": 200, "max_model_len": 512, **fields})


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 200), st.integers(1, 60), st.floats(0.0003, 0.2)),
        min_size=1,
        max_size=25,
    ),
    is_async=st.booleans(),
    max_num_seqs=st.integers(1, 12),
    num_gpu_blocks=st.integers(33, 90),
)
def test_tokens_come_when_the_simulator_says_they_do(plan, is_async, max_num_seqs, num_gpu_blocks):
    config = _config(
        async_scheduling=is_async, max_num_seqs=max_num_seqs, num_gpu_blocks=num_gpu_blocks
    )
    arrivals = np.cumsum([gap for _, _, gap in plan]).tolist()
    records: list[RequestRecord] = []
    simulate(
        [
            PlannedRequest(index=n, input_tokens=i, output_tokens=o, arrival_s=at)
            for n, ((i, o, _), at) in enumerate(zip(plan, arrivals, strict=True))
        ],
        config=config,
        device=device_model("a100-80gb", scheduling="async" if is_async else "sync"),
        on_record=records.append,
    )
    recorder = Recorder(config)
    for n, ((i, o, _), at) in enumerate(zip(plan, arrivals, strict=True)):
        recorder.time.run_until(at)
        recorder.add(n, i, o)
    recorder.time.run_until(float("inf"))
    assert len(plan) == len(records) == len(recorder.token_s)
    for record in records:
        assert record.event_s.tolist() == pytest.approx(recorder.token_s[record.index], abs=1e-9)


METRONOME = RooflineModel(
    host=10.0, weights=0.0, token=0.0, activation=0.0, kv=0.0, fixed=0.0, head=0.0, head_row=0.0,
    decode=0.0, prefill_token=0.0, prefill_pair=0.0,
)  # fmt: skip


def test_a_late_wake_up_moves_no_later_token():
    recorder = Recorder(_config(async_scheduling=False), model=METRONOME)
    recorder.add(0, 4, 4)
    recorder.time.late_s = 0.003
    recorder.time.run_until(0.016)
    recorder.time.late_s = 0.0
    recorder.time.run_until(1.0)
    # The first wake-up starts the engine, late too: the device's time counts from then.
    assert [0.016, 0.023, 0.033, 0.043] == pytest.approx(recorder.token_s[0])
    pace = recorder.engine.pace
    assert (4, 1, 0.0) == (pace.steps, pace.late_steps, pace.lost_s)
    assert 0.003 == pytest.approx(pace.worst_late_s)


def test_time_is_lost_for_good_only_beyond_a_step():
    recorder = Recorder(_config(async_scheduling=False), model=METRONOME)
    recorder.add(0, 4, 4)
    recorder.time.run_until(0.001)
    recorder.time.late_s = 0.025
    recorder.time.run_until(0.0351)
    recorder.time.late_s = 0.0
    recorder.time.run_until(1.0)
    # Due at 10, read at 35: the device can have ended its next step at 35, and goes on from there.
    assert [0.035, 0.0351, 0.045, 0.055] == pytest.approx(recorder.token_s[0])
    assert 0.015 == pytest.approx(recorder.engine.pace.lost_s)


def test_an_idle_engine_starts_its_step_when_a_request_comes():
    recorder = Recorder(_config(async_scheduling=False), model=METRONOME)
    recorder.add(0, 4, 1)
    recorder.time.run_until(0.5)
    recorder.add(1, 4, 2)
    recorder.time.run_until(2.0)
    assert {0: [0.01], 1: [0.51, 0.52]} == {
        number: pytest.approx(times) for number, times in recorder.token_s.items()
    }
    assert (0, 0, 0.0) == recorder.engine.gauges()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("abort_s", [0.0, 0.005, 0.0101, 0.025, 0.0951])
def test_an_abort_frees_everything_and_leaves_the_others_alone(is_async, policy, abort_s):
    def run(with_abort: bool) -> Recorder:
        config = _config(async_scheduling=is_async, max_num_seqs=2, policy=policy)
        recorder = Recorder(config, model=METRONOME)
        requests = [recorder.add(n, 20, 10) for n in range(2)]
        requests.append(recorder.add(2, 20, 10))  # waits for a place
        if with_abort:
            recorder.time.run_until(abort_s)
            recorder.engine.abort(requests[2])
            recorder.engine.abort(requests[0])
            recorder.engine.abort(requests[0])
        recorder.time.run_until(5.0)
        return recorder

    plain, aborted = run(False), run(True)
    assert plain.token_s[1] == pytest.approx(aborted.token_s[1])
    assert 10 == len(plain.token_s[0])
    assert [at for at in plain.token_s[0] if at <= abort_s] == aborted.token_s.get(0, [])
    assert 2 not in aborted.token_s
    assert (0, 0, 0.0) == aborted.engine.gauges()
    assert not aborted.engine.scheduler.has_requests()


@pytest.mark.parametrize("is_async", [False, True])
def test_preempted_requests_can_be_aborted(is_async):
    config = _config(
        async_scheduling=is_async, max_model_len=160, num_gpu_blocks=12, max_num_seqs=4
    )
    recorder = Recorder(config, model=METRONOME)
    requests = [recorder.add(n, 16, 100) for n in range(4)]
    while not any(request.num_preemptions for request in requests):
        recorder.time.run_until(recorder.time() + 0.01)
        assert recorder.time() < 5.0
    for request in requests:
        recorder.engine.abort(request)
    recorder.time.run_until(recorder.time() + 1.0)
    assert (0, 0, 0.0) == recorder.engine.gauges()


# Writing to a client that does not read.


def test_what_is_written_while_the_client_does_not_read_is_joined_and_kept():
    sent: list[tuple[bytes, bool]] = []

    async def main() -> None:
        may_write = asyncio.Event()

        async def send(message: Any) -> None:
            await may_write.wait()
            sent.append((message["body"], message["more_body"]))

        outlet = Outlet(send)
        for data in (b"a", b"b", b"c"):
            outlet.write(data, is_last=False)
        await asyncio.sleep(0)
        assert [] == sent
        may_write.set()
        while len(sent) < 2:
            await asyncio.sleep(0)
        outlet.write(b"d", is_last=False)
        may_write.clear()
        outlet.write(b"e", is_last=False)
        outlet.write(b"f", is_last=True)
        await asyncio.sleep(0)
        may_write.set()
        while sent[-1][1]:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [(b"a", True), (b"bc", True), (b"d", True), (b"e", True), (b"f", False)] == sent


def test_what_is_written_to_a_client_that_reads_is_sent_at_once():
    sent: list[bytes] = []

    async def main() -> None:
        async def send(message: Any) -> None:
            sent.append(message["body"])

        outlet = Outlet(send)
        for data in (b"a", b"b"):
            outlet.write(data, is_last=data == b"b")
            assert data == sent[-1]

    asyncio.run(main())
