"""`ImplicitDecodes`: the same schedule, at the cost of its events and not of its batch.

Every request that decodes gets one token in every step, so nothing about it need be touched until
something happens to it. What a step takes of the decoding requests follows from numbers that hold
for all of them:

- how many there are, and the sum of their contexts, which grows by their number each step;
- how many new blocks they take: a request crosses into a new block every block_size steps, so they
  are counted by the residue of that step;
- which finish in it: a heap by the step of the last token.

A request's own counters are brought up to date when it finishes, or when a step is one that cannot
be told from these numbers, because blocks run out or the budget does: such a step is
`VllmV1Scheduler`'s own. Steps in which nothing at all happens are passed over together (`skip`).
"""

import heapq
from collections import deque

from vllm_slo.device.step import Step
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request, RequestStatus
from vllm_slo.sim.scheduler import VllmV1Scheduler
from vllm_slo.sim.step import SchedulerOutput

_UNBOUNDED = 1 << 62
_PASSED_OVER = Step()  # nobody asks what a step was composed of once its time is known


class ImplicitDecodes(VllmV1Scheduler):
    """Decides every step as `VllmV1Scheduler` does; `tests/sim` holds the two to each other."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.step = 0  # the number of the last scheduled step, from one
        self._explicit: list[Request] = []  # running and not decoding, in order of admission
        self._num_decodes = 0
        self._sum_offsets = 0  # a decode's context in step s is s + its offset
        self._crossings = [0] * config.block_size
        self._finishing: list[tuple[int, int, Request]] = []  # by step of the last token
        self._ended: deque[Request] = deque()  # their last token is in flight
        self._in_flight: deque[SchedulerOutput] = deque()
        self._num_admitted = 0
        self._last_decode_order = 0
        self._head_is_blocked = False
        # A newcomer may be put ahead of the head of the queue, or make it need less.
        self._newcomers_may_pass = (
            config.policy == "priority" or config.long_prefill_token_threshold_adaptive
        )

    def add_request(self, request: Request) -> None:
        room = self.config.max_model_len - request.num_prompt_tokens
        request.max_outputs = min(request.max_tokens, room)
        self.waiting.add(request)
        if self._newcomers_may_pass:
            self._head_is_blocked = False

    # What the loop may pass over.

    def quiet_steps(self) -> int:
        """How many coming steps are pure decodes of the same requests, each getting its token."""
        self._end_decodes(self.step + 1)
        if self._explicit:
            self._begin_decodes(self.step + 1)
        if self._explicit or self._ended or not self._num_decodes:
            return 0
        if (
            len(self.waiting) > 0
            and len(self.running) < self._max_num_running_reqs
            and not self._head_is_blocked
        ):
            return 0
        return self._steps_with_blocks(self._finishing[0][0] - self.step)

    @property
    def arrivals_matter(self) -> bool:
        """Whether a request that comes now could change the next steps."""
        return len(self.running) < self._max_num_running_reqs and not (
            self._head_is_blocked and not self._newcomers_may_pass
        )

    @property
    def decode_batch(self) -> tuple[int, int]:
        """The decodes of the next step, and the sum of their contexts in it."""
        return self._num_decodes, (self.step + 1) * self._num_decodes + self._sum_offsets

    @property
    def is_finishing(self) -> bool:
        """Whether the last scheduled step gives some decode its last token."""
        return bool(self._finishing) and self._finishing[0][0] <= self.step

    def skip(self, steps: int) -> tuple[int, int]:
        """Passes over quiet steps but for the output of the last (`skipped_output`).

        Gives the free blocks before the last of them was scheduled, and after.
        """
        if steps > 1:
            self.kv.take(self._num_crossings(steps - 1))
        free_blocks = self.kv.num_free_blocks
        self.step += steps
        self.kv.take(self._crossings[self.step % self.kv.block_size])
        self._num_finished_to_flush = 0
        return free_blocks, self.kv.num_free_blocks

    def skipped_output(self) -> SchedulerOutput:
        """The last of the steps that were passed over, as the output that is now in flight."""
        output = SchedulerOutput({}, _PASSED_OVER, [], [], self.step, self._num_decodes)
        self._in_flight.append(output)
        return output

    def _num_crossings(self, steps: int) -> int:
        """The blocks that the decodes take in the coming steps."""
        size = self.kv.block_size
        cycles, rest = divmod(steps, size)
        first = (self.step + 1) % size
        partial = self._crossings[first : first + rest]
        if first + rest > size:
            partial += self._crossings[: first + rest - size]
        return cycles * self._num_decodes + sum(partial)

    def _steps_with_blocks(self, steps: int) -> int:
        """As many of the coming steps as there are free blocks for."""
        free, size = self.kv.num_free_blocks, self.kv.block_size
        if (steps // size + 1) * self._num_decodes <= free or self._num_crossings(steps) <= free:
            return steps
        cycles = free // self._num_decodes
        steps = cycles * size
        free -= cycles * self._num_decodes
        while (needed := self._crossings[(self.step + steps + 1) % size]) <= free:
            free -= needed
            steps += 1
        return steps

    # One step.

    def schedule(self) -> SchedulerOutput:
        """Decides the next step."""
        self.step += 1
        self._end_decodes(self.step)
        if self._explicit:
            self._begin_decodes(self.step)
        num_running = len(self.running)
        threshold = self.prefill_threshold() if self.config.long_prefill_token_threshold else 0
        chunks = self._chunks(threshold)
        if chunks is None:
            self._materialise()
            output = super().schedule()
            self._explicit = list(self.running)
            self._head_is_blocked = False
        else:
            output = self._schedule_beside_decodes(chunks, threshold)
        if not output.preempted:
            for request in self.running[num_running:]:
                self._num_admitted += 1
                request.order = self._num_admitted
        output.step = self.step
        self._in_flight.append(output)
        return output

    def _chunks(self, threshold: int) -> dict[Request, int] | None:
        """What the requests in prefill compute; `None` if that depends on who goes first.

        It does not as long as there are blocks for all, and the budget falls short, if it does,
        behind the last decode.
        """
        size, free = self.kv.block_size, self.kv.num_free_blocks
        needed = self._crossings[self.step % size]
        budget = self._token_budget - self._num_decodes
        chunks: dict[Request, int] = {}
        for request in self._explicit:
            wanted = self._num_new_tokens(request, threshold, _UNBOUNDED)
            num_new_tokens = min(wanted, budget)
            if num_new_tokens < wanted and request.order < self._last_decode_order:
                return None
            if num_new_tokens > 0:
                chunks[request] = num_new_tokens
                budget -= num_new_tokens
                num_tokens = request.num_computed_tokens + num_new_tokens
                needed += -(-num_tokens // size) - request.num_blocks
        return chunks if needed <= free and budget >= 0 else None

    def _schedule_beside_decodes(
        self, scheduled: dict[Request, int], threshold: int
    ) -> SchedulerOutput:
        self.kv.take(self._crossings[self.step % self.kv.block_size])
        decodes = self._num_decodes
        budget = self._token_budget - decodes
        for request, num_new_tokens in scheduled.items():
            self.kv.allocate_slots(request, num_new_tokens)
            budget -= num_new_tokens
        has_whole_budget = not scheduled
        num_running = len(self.running)
        self._schedule_waiting(scheduled, threshold, budget)
        self._explicit += self.running[num_running:]
        # Decodes only take blocks: a head that does not fit beside them now will not fit later.
        self._head_is_blocked = (
            has_whole_budget
            and len(self.waiting) > 0
            and len(self.running) == num_running < self._max_num_running_reqs
        )
        self._num_finished_to_flush = 0
        return self._advance(
            scheduled, [], decodes=decodes, decode_context=self.step * decodes + self._sum_offsets
        )

    def update_from_output(self, output: SchedulerOutput) -> tuple[list[Request], list[Request]]:
        """Takes the tokens of the oldest step; gives those of `output.sampled`, and who finished.

        Requests that decode implicitly are not among the sampled ones.
        """
        self._in_flight.popleft()
        self._end_decodes(output.step + 1)
        finished = self._append_tokens(output) if output.num_scheduled_tokens else []
        while self._ended and self._ended[0].finish_step <= output.step:
            request = self._ended.popleft()
            self._catch_up(request, request.finish_step, in_flight=0)
            finished.append(request)
        if finished:
            self._head_is_blocked = False
            if len(finished) > 1:
                finished.sort(key=_by_order)
            for request in finished:
                self._finish(request)
        return output.sampled, finished

    def _append_tokens(self, output: SchedulerOutput) -> list[Request]:
        """Appends the tokens of requests that are not implicit; gives those that are done."""
        for request, num_scheduled_tokens in output.num_scheduled_tokens.items():
            request.num_in_flight_tokens -= num_scheduled_tokens
            if request.num_stale_output_tokens:
                request.num_stale_output_tokens -= num_scheduled_tokens
        finished = [
            request
            for request in output.sampled
            if not request.first_implicit_step and self._append_token(request)
        ]
        for request in finished:
            if request.status is RequestStatus.RUNNING:
                self._explicit.remove(request)
        return finished

    # Into implicit decoding, and out of it.

    def _begin_decodes(self, step: int) -> None:
        """Lets requests decode implicitly from `step` on that have nothing else to compute."""
        explicit = []
        for request in self._explicit:
            outputs = request.num_output_tokens + request.num_output_placeholders
            tokens_left = request.max_outputs - outputs
            context = request.num_computed_tokens + 1
            if outputs and tokens_left > 0 and context == request.num_prompt_tokens + outputs:
                request.first_implicit_step = step
                request.finish_step = step + tokens_left - 1
                request.offset = context - step
                self._num_decodes += 1
                self._sum_offsets += request.offset
                self._crossings[(1 - request.offset) % self.kv.block_size] += 1
                if request.order > self._last_decode_order:
                    self._last_decode_order = request.order
                heapq.heappush(self._finishing, (request.finish_step, request.order, request))
            else:
                explicit.append(request)
        self._explicit = explicit

    def _end_decodes(self, step: int) -> None:
        """Takes requests out of the batch whose last token came before `step`."""
        while self._finishing and self._finishing[0][0] < step:
            request = heapq.heappop(self._finishing)[2]
            self._num_decodes -= 1
            self._sum_offsets -= request.offset
            self._crossings[(1 - request.offset) % self.kv.block_size] -= 1
            self._ended.append(request)
        if not self._num_decodes:
            self._last_decode_order = 0

    def _materialise(self) -> None:
        """Brings every request up to date, and the steps in flight, to go on step by step."""
        last_step = self.step - 1
        for request in [*self._ended, *(entry[2] for entry in self._finishing)]:
            if request.first_implicit_step <= last_step:
                self._catch_up(request, last_step, in_flight=len(self._in_flight))
                for output in self._in_flight:
                    output.num_scheduled_tokens[request] = 1
                    output.sampled.append(request)
            request.first_implicit_step = 0
        self._ended.clear()
        self._finishing.clear()
        self._crossings = [0] * self.kv.block_size
        self._num_decodes = self._sum_offsets = self._last_decode_order = 0

    def _catch_up(self, request: Request, last_step: int, *, in_flight: int) -> None:
        """Sets a request's counters to what they are after `last_step` was scheduled."""
        first_step = request.first_implicit_step
        steps = request.token_steps
        if steps and steps[-1] == first_step - 1:
            steps[-1] = last_step
        else:
            steps += (first_step, last_step)
        outputs = request.max_outputs - (request.finish_step - last_step)
        request.num_computed_tokens = last_step + request.offset
        request.num_output_tokens = outputs - in_flight
        request.num_output_placeholders = request.num_in_flight_tokens = in_flight
        request.num_blocks = -(-request.num_computed_tokens // self.kv.block_size)
        self.kv.cache_blocks(request, request.num_computed_tokens - in_flight)


def _by_order(request: Request) -> int:
    return request.order
