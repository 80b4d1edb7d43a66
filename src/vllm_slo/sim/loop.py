"""`EngineLoop`: the engine core's loop in virtual time.

As `step_with_batch_queue` and `run_busy_loop` of `vllm/v1/engine/core.py` (0.32.0): take what has
arrived, schedule a step, and wait for the oldest step in flight unless another may be put behind
it. The queue holds one step with synchronous scheduling and two with asynchronous: then step k + 1
is scheduled while the device computes step k, and what arrives meanwhile is seen by step k + 2.
"""

from collections import deque
from collections.abc import Callable

from vllm_slo.device.step import Step, StepTimeModel
from vllm_slo.errors import WorkloadError
from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.admission import Admission
from vllm_slo.sim.clients import NEVER, Clients
from vllm_slo.sim.facts import Counters
from vllm_slo.sim.implicit import ImplicitDecodes
from vllm_slo.sim.records import Events, finished_record, refused_record
from vllm_slo.sim.request import Request
from vllm_slo.sim.step import Scheduler, SchedulerOutput
from vllm_slo.sim.times import Floats, StepTimes
from vllm_slo.traffic.workload import PlannedRequest

OnRecord = Callable[[RequestRecord], None]

# `_process_engine_step` sleeps when nothing was executed although requests are there.
_NOTHING_EXECUTED_S = 0.001


class EngineLoop:
    """Drives one scheduler on one device until every request is over.

    A request that arrives at the very moment of a step boundary is seen at the next one; one that
    finds the engine idle, at once.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device: StepTimeModel,
        clients: Clients,
        *,
        admission: Admission,
        on_record: OnRecord,
        depth: int,
        response_s: float = 0.0,
        stream_interval: int = 1,
    ) -> None:
        self.counters = Counters(scheduler.gauges()[2])
        self.num_steps = 0
        self.clock_s = 0.0
        self._scheduler = scheduler
        self._implicit = scheduler if isinstance(scheduler, ImplicitDecodes) else None
        self._device = device
        self._clients = clients
        self._admission = admission
        self._on_record = on_record
        self._depth = depth
        self._response_s = response_s
        self._device_free_s = 0.0
        self._decode_step_s = 0.01  # of the last quiet step
        self._inbox: deque[Request] = deque()
        self._in_flight: deque[tuple[SchedulerOutput, float]] = deque()
        self._planned: dict[Request, PlannedRequest] = {}  # of the requests that are alive
        self._events = Events(stream_interval)
        self._times = StepTimes(self._oldest_needed_step, delay_s=response_s)

    def run(self) -> None:
        """Runs until no request is left.

        Raises:
            WorkloadError: the plan has a request that makes no sense.
        """
        scheduler = self._scheduler
        while True:
            if self._clients.next_s < self.clock_s:
                self._receive(self.clock_s)
            is_idle = not (self._in_flight or self._inbox or scheduler.has_requests())
            if is_idle and not self._wait_for_arrival():
                return
            if self._inbox:
                self._hand_over()
            if self._implicit is not None and self._pass_quiet_steps(self._implicit):
                continue
            is_executed = False
            if scheduler.has_requests():
                is_executed = self._schedule()
                has_room = len(self._in_flight) < self._depth
                if has_room and (is_executed or scheduler.has_requests()):
                    continue
            output, end_s = self._in_flight.popleft()
            self._update(output, end_s)
            if not is_executed and scheduler.has_requests():
                self._check_progress()
                self.clock_s += _NOTHING_EXECUTED_S

    def _schedule(self) -> bool:
        """Schedules a step and hands it to the device; whether there is anything in it."""
        output = self._scheduler.schedule()
        self.num_steps += 1
        output.step = self.num_steps
        end_s = max(self._device_free_s, self.clock_s)
        is_executed = bool(output.num_scheduled_tokens or output.composition.decodes)
        if is_executed:
            end_s += self._device.step_ms(output.composition) / 1000.0
        self._device_free_s = end_s
        self._times.append(end_s)
        for request in output.num_scheduled_tokens:
            if request.scheduled_s is None:
                request.scheduled_s = self.clock_s
        for request in output.sampled:
            request.note_token(output.step)
        self._in_flight.append((output, end_s))
        return is_executed

    def _update(self, output: SchedulerOutput, end_s: float) -> None:
        """Waits for a step and takes its tokens."""
        self.clock_s = max(self.clock_s, end_s)
        if self._clients.next_s < self.clock_s:
            self._receive(self.clock_s)
        if output.num_sampled:
            self.counters.iterations += 1
            self.counters.generation_tokens += output.num_sampled
        for request in self._scheduler.update_from_output(output)[1]:
            self._finish(request)
        self.counters.gauge(*self._scheduler.gauges())

    def _finish(self, request: Request) -> None:
        self._admission.num_in_flight -= 1
        self.counters.finish(request)
        event_s, event_tokens = self._events.of(self._times.of(request.token_steps))
        record = finished_record(
            request, self._planned.pop(request), event_s=event_s, event_tokens=event_tokens
        )
        self._clients.over(self.clock_s + self._response_s)
        self._on_record(record)

    # Arrivals.

    def _receive(self, before_s: float) -> None:
        """Takes what reached the server before this time, or refuses it as the API server does."""
        while self._clients.next_s < before_s:
            self._receive_one()

    def _receive_one(self) -> None:
        arrival_s = self._clients.next_s
        planned, sent_s = self._clients.send()
        refusal = self._admission.refusal(planned)
        if refusal is not None:
            over_s = arrival_s + self._response_s
            self._clients.over(over_s)
            self._on_record(refused_record(planned, refusal, sent_s=sent_s, over_s=over_s))
            return
        request = self._admission.admit(planned, arrival_s=arrival_s)
        request.sent_s = sent_s
        self._planned[request] = planned
        self._inbox.append(request)

    def _wait_for_arrival(self) -> bool:
        """Lets the time pass until the idle engine gets a request; False if none is to come."""
        while not self._inbox:
            arrival_s = self._clients.next_s
            if arrival_s == NEVER:
                return False
            self.clock_s = max(self.clock_s, arrival_s)
            while self._clients.next_s <= self.clock_s:
                self._receive_one()
        return True

    def _hand_over(self) -> None:
        while self._inbox:
            request = self._inbox.popleft()
            request.queued_s = self.clock_s
            self._scheduler.add_request(request)

    # Quiet steps.

    def _pass_quiet_steps(self, scheduler: ImplicitDecodes) -> bool:
        """Passes over steps in which the same requests decode and nothing else happens.

        Step j of them is scheduled at the end of the step before it or, with asynchronous
        scheduling, of the one before that; only what arrived before that time is seen by it.
        """
        if len(self._in_flight) != self._depth - 1:
            return False
        steps = scheduler.quiet_steps()
        if not steps:
            return False
        lag = self._depth - 1
        start_s = max(self._device_free_s, self.clock_s)
        decodes, context = scheduler.decode_batch
        arrival_s = self._clients.next_s if scheduler.arrivals_matter else NEVER
        if steps == 1 or arrival_s <= start_s:
            # The plain step that comes before an event is not worth an array.
            steps = 1
            step = Step(decodes=decodes, decode_context=context, sampled=decodes)
            end_s = start_s + self._device.step_ms(step) / 1000.0
            before_end_s = start_s
            self._times.append(end_s)
        else:
            if arrival_s < NEVER:
                # A guess: where it is too low, the next quiet steps go on from there.
                guess = int((arrival_s - start_s) / (self._decode_step_s or 1.0)) + 3
                steps = min(steps, guess)
            ms = self._device.decode_run_ms(decodes=decodes, decode_context=context, steps=steps)
            ends_s = self._times.draft(start_s, ms)
            if arrival_s < NEVER:
                unseen = 1 + int(ends_s.searchsorted(arrival_s, side="right"))
                steps = min(steps, unseen + lag)
            self._times.keep(steps)
            end_s = float(ends_s[steps - 1])
            before_end_s = float(ends_s[steps - 2]) if steps > 1 else start_s
        if lag:
            self._update(*self._in_flight.popleft())
        if steps > 1 and (self._inbox or self._clients.next_s < end_s):
            at = steps - 2 - lag
            self._take_unseen(start_s, ends_s, before_s=start_s if at < 0 else float(ends_s[at]))

        self.num_steps += steps
        self._device_free_s = end_s
        self._decode_step_s = end_s - before_end_s
        free_blocks, free_blocks_after = scheduler.skip(steps)
        is_last_updated = not lag and not scheduler.is_finishing
        updated = steps if is_last_updated else steps - 1
        self.counters.iterations += updated
        self.counters.generation_tokens += decodes * updated
        # The other gauges do not fall in quiet steps: the next step's will do.
        self.counters.gauge(0, 0, free_blocks_after if lag or is_last_updated else free_blocks)
        if is_last_updated:
            self.clock_s = end_s
        elif lag:
            self.clock_s = before_end_s
            self._in_flight.append((scheduler.skipped_output(), end_s))
        else:
            self._update(scheduler.skipped_output(), end_s)
        return True

    def _take_unseen(self, start_s: float, ends_s: Floats, *, before_s: float) -> None:
        """Hands over what comes during quiet steps, as at the boundary that would have seen it."""
        self._receive(before_s)
        while self._inbox and self._inbox[0].arrival_time < before_s:
            request = self._inbox.popleft()
            at = int(ends_s.searchsorted(request.arrival_time, side="right"))
            is_before_start = request.arrival_time < start_s
            request.queued_s = start_s if is_before_start else float(ends_s[at])
            self._scheduler.add_request(request)

    def _oldest_needed_step(self) -> int:
        return min(
            (request.token_steps[0] for request in self._planned if request.token_steps),
            default=self.num_steps,
        )

    def _check_progress(self) -> None:
        running, waiting, _ = self._scheduler.gauges()
        if waiting and not running and not self._in_flight:
            raise WorkloadError(
                f"{waiting} waiting requests can never be scheduled with these settings"
            )
