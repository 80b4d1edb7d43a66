"""`Engine`: a scheduler and a device model in wall time."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_slo.device.step import StepTimeModel
from vllm_slo.sim.request import Request, RequestStatus
from vllm_slo.sim.scheduler import VllmV1Scheduler
from vllm_slo.sim.step import SchedulerOutput

# As the emulated target's (`engine/worker/pacing.py`): a step that ends this much after it was due
# was not held to its time.
TOLERANCE_S = 0.001
TOLERANCE_SHARE = 0.05
# `_process_engine_step` of `vllm/v1/engine/core.py` sleeps when nothing was executed although
# requests are there.
_NOTHING_EXECUTED_S = 0.001


class ServedScheduler(VllmV1Scheduler):
    """vLLM's scheduler with what a server needs besides: requests are given up by their client."""

    def abort(self, request: Request) -> None:
        """Ends an unfinished request and frees its blocks, as `finish_requests` does.

        A token of it that is in flight is dropped when it arrives.
        """
        if request.status is not RequestStatus.FINISHED:
            self._finish(request)

    def update_from_output(self, output: SchedulerOutput) -> tuple[list[Request], list[Request]]:
        output.sampled = [r for r in output.sampled if r.status is not RequestStatus.FINISHED]
        return super().update_from_output(output)


class Waker(Protocol):
    """Calls back at a moment of the clock that the engine runs by."""

    def set(self, due_s: float, callback: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A step that the device has finished, and whose tokens are to be handed out.

    `due_s` is when the device was to finish it.
    """

    output: SchedulerOutput
    sampled: Sequence[Request]
    finished: Sequence[Request]
    due_s: float


@dataclass(slots=True, kw_only=True)
class Pace:
    """How well the device's times were held: a late step's tokens came after they were due.

    `lost_s` is by how much the device's time line had to be moved, `worst_hand_out_s` the longest
    that it took to hand out the tokens of one step.
    """

    steps: int = 0
    late_steps: int = 0
    worst_late_s: float = 0.0
    lost_s: float = 0.0
    worst_hand_out_s: float = 0.0

    def count(self, *, late_s: float, step_s: float) -> None:
        self.steps += 1
        self.worst_late_s = max(self.worst_late_s, late_s)
        self.lost_s += max(0.0, late_s - step_s)
        if late_s > max(TOLERANCE_S, TOLERANCE_SHARE * step_s):
            self.late_steps += 1

    def hand_out(self, took_s: float) -> None:
        self.worst_hand_out_s = max(self.worst_hand_out_s, took_s)


class Engine:
    """vLLM's engine loop, synchronous or asynchronous (two steps deep), by the wall clock.

    Arrivals are seen when a step is scheduled. A step is due its modelled time after the one before
    was due: the device keeps a time line of its own, which a late wake-up does not move. Only what
    a step is late by more than its own time is lost for good. `on_admit` is told of a request that
    is scheduled for the first time, and how many of its tokens were cached; `on_step` hands out the
    tokens of a step, and the next is scheduled after it.
    """

    def __init__(
        self,
        scheduler: ServedScheduler,
        model: StepTimeModel,
        *,
        waker: Waker,
        clock: Callable[[], float],
        on_admit: Callable[[Request, int], None],
        on_step: Callable[[StepDone], None],
    ) -> None:
        self.scheduler = scheduler
        self.pace = Pace()
        self.model = model
        self._depth = 2 if scheduler.config.async_scheduling else 1
        self._waker = waker
        self._clock = clock
        self._on_admit = on_admit
        self._on_step = on_step
        self._arrivals: list[Request] = []
        self._in_flight: deque[tuple[SchedulerOutput, float, float]] = deque()
        # By the modelled times: when the device is done with what came before, and where the loop
        # is. Both may lag behind the clock by what the host is late.
        self._free_at_s = 0.0
        self._loop_s = 0.0
        self._is_executed = False  # whether the last turn scheduled any tokens
        self._is_awake = False

    def gauges(self) -> tuple[int, int, float]:
        """How many requests run, how many wait, and the share of KV blocks in use."""
        running, waiting, free = self.scheduler.gauges()
        usable = self.scheduler.kv.num_usable_blocks
        usage = 1.0 - free / usable if usable else 0.0
        return running, waiting + len(self._arrivals), usage

    def add(self, request: Request) -> None:
        """Takes a request; it is seen when the next step is scheduled."""
        self._arrivals.append(request)
        self._wake()

    def abort(self, request: Request) -> None:
        """Gives up a request, whatever has become of it."""
        if request in self._arrivals:
            self._arrivals.remove(request)
            request.status = RequestStatus.FINISHED
            return
        self.scheduler.abort(request)
        self._wake()

    def _wake(self) -> None:
        """Starts the loop, where it is idle, as soon as what came together has been read."""
        if not self._is_awake:
            self._is_awake = True
            self._waker.set(self._clock(), self._begin)

    def _begin(self) -> None:
        self._loop_s = max(self._loop_s, self._clock())
        self._turn()

    def _turn(self) -> None:
        """Schedules as deep as the loop goes, and waits for the oldest step."""
        self._is_executed = False
        while len(self._in_flight) < self._depth and self._has_requests():
            for request in self._arrivals:
                self.scheduler.add_request(request)
            self._arrivals.clear()
            output = self.scheduler.schedule()
            tokens = output.total_num_scheduled_tokens
            self._is_executed = tokens > 0
            step_s = self.model.step_ms(output.composition) / 1e3 if tokens else 0.0
            self._note_admitted(output)
            self._in_flight.append((output, step_s, self._loop_s))
        if not self._in_flight:
            self._is_awake = False
            return
        self._waker.set(self._due_s(), self._finish_step)

    def _note_admitted(self, output: SchedulerOutput) -> None:
        now = self._clock()
        for request, tokens in output.num_scheduled_tokens.items():
            if request.scheduled_s is None:
                request.scheduled_s = now
                self._on_admit(request, request.num_computed_tokens - tokens)

    def _has_requests(self) -> bool:
        return bool(self._arrivals) or self.scheduler.has_requests()

    def _due_s(self) -> float:
        _, step_s, scheduled_s = self._in_flight[0]
        return max(self._free_at_s, scheduled_s) + step_s

    def _finish_step(self) -> None:
        due_s = self._due_s()
        output, step_s, _ = self._in_flight.popleft()
        now = self._clock()
        if step_s:
            self.pace.count(late_s=now - due_s, step_s=step_s)
        self._free_at_s = max(due_s, now - step_s) if step_s else due_s
        self._loop_s = max(self._loop_s, self._free_at_s)
        sampled, finished = self.scheduler.update_from_output(output)
        self._on_step(StepDone(output=output, sampled=sampled, finished=finished, due_s=due_s))
        self.pace.hand_out(self._clock() - now)
        if self._is_executed or not self.scheduler.has_requests():
            self._turn()
        else:
            self._loop_s += _NOTHING_EXECUTED_S
            self._waker.set(self._loop_s, self._turn)
