"""`VllmV1Scheduler`: vLLM V1's scheduler, step by step.

The algorithm of `vllm/v1/core/sched/scheduler.py` and `async_scheduler.py` (0.31.0 and 0.32.0,
which agree) for a text model with full attention, one GPU, no speculative decoding, no connector.
There is no prefill phase and no decode phase: a request has tokens that are not computed yet, and
a step computes some of them. `tests/fidelity` holds every step of it to vLLM's own class.
"""

from vllm_slo.device.step import Step
from vllm_slo.sim.blocks import KVCacheManager
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request, RequestStatus
from vllm_slo.sim.request_queue import create_request_queue
from vllm_slo.sim.step import SchedulerOutput


class VllmV1Scheduler:
    """Running requests first, then waiting ones; preempts by recompute when blocks run out."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = KVCacheManager(config)
        self.waiting = create_request_queue(config.policy)
        self.running: list[Request] = []  # in order of admission
        self.num_prefix_hit_tokens = 0
        self.num_preemptions = 0
        self._max_num_running_reqs = config.max_num_running_reqs
        self._token_budget = config.token_budget
        self._num_finished_to_flush = 0

    def add_request(self, request: Request) -> None:
        self.waiting.add(request)

    def has_requests(self) -> bool:
        """Whether the engine must be stepped: unfinished requests, or finished ones to flush."""
        return bool(self.running or len(self.waiting) or self._num_finished_to_flush)

    def counts(self) -> tuple[int, int]:
        """How many requests are running, and how many are waiting."""
        return len(self.running), len(self.waiting)

    def gauges(self) -> tuple[int, int, int]:
        """How many requests run, how many wait, and how many KV blocks nobody holds."""
        return len(self.running), len(self.waiting), self.kv.num_free_blocks

    def schedule(self) -> SchedulerOutput:
        """Decides the next step."""
        scheduled: dict[Request, int] = {}
        threshold = self.prefill_threshold()
        budget, preempted = self._schedule_running(scheduled, threshold)
        if not preempted:
            self._schedule_waiting(scheduled, threshold, budget)
        self._num_finished_to_flush = 0
        return self._advance(scheduled, preempted)

    def prefill_threshold(self) -> int:
        """The most tokens of one request in this step; 0 is no limit.

        A request that is alone starves nobody.
        """
        threshold = self.config.long_prefill_token_threshold
        if not threshold:
            return 0
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            return max(threshold, self.config.max_num_batched_tokens // num_requests)
        return threshold

    def _schedule_running(
        self, scheduled: dict[Request, int], threshold: int
    ) -> tuple[int, list[Request]]:
        budget = self._token_budget
        preempted: list[Request] = []
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_new_tokens = self._num_new_tokens(request, threshold, budget)
            if num_new_tokens == 0:
                index += 1
                continue
            while not self.kv.allocate_slots(request, num_new_tokens):
                victim = self._victim()
                if self.running.index(victim) < index:
                    index -= 1
                self.running.remove(victim)
                budget += scheduled.pop(victim, 0)
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    return budget, preempted
            scheduled[request] = num_new_tokens
            budget -= num_new_tokens
            index += 1
        return budget, preempted

    def _num_new_tokens(self, request: Request, threshold: int, budget: int) -> int:
        placeholders = request.num_output_placeholders
        if (
            placeholders
            and request.num_computed_tokens + 2 - placeholders
            >= request.num_prompt_tokens + request.max_tokens
        ):
            return 0  # its last token is in flight
        num_new_tokens = request.num_tokens + placeholders - request.num_computed_tokens
        if 0 < threshold < num_new_tokens:
            num_new_tokens = threshold
        room = self.config.max_model_len - request.num_computed_tokens - 1
        return min(num_new_tokens, budget, room)

    def _victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self.running, key=lambda r: (r.priority, r.arrival_time))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        """Recompute: all its blocks are freed, its outputs are kept, it waits again.

        What is in flight is still delivered when it arrives, as stale output.
        """
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.prepend(request)

    def _schedule_waiting(self, scheduled: dict[Request, int], threshold: int, budget: int) -> None:
        """Admits from the head of the queue until one does not fit: it blocks the rest."""
        while budget > 0 and len(self.waiting) and len(self.running) < self._max_num_running_reqs:
            request = self.waiting.peek()
            # Stale output is drained before the next step at the loop's depth of two.
            assert not request.num_stale_output_tokens
            num_hits = self.kv.get_computed_blocks(request)
            num_computed_tokens = num_hits * self.kv.block_size
            num_new_tokens = request.num_tokens - num_computed_tokens
            if threshold or num_new_tokens > budget:
                num_new_tokens = self._first_chunk(num_new_tokens, threshold, budget)
            if not num_new_tokens:
                break
            if not self.kv.admit(
                request,
                num_new_tokens,
                num_hits,
                full_sequence_must_fit=self.config.scheduler_reserve_full_isl,
                has_scheduled_reqs=bool(self.running),
            ):
                break
            if not request.num_preemptions:
                self.num_prefix_hit_tokens += num_computed_tokens
            self.waiting.pop()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = num_computed_tokens
            scheduled[request] = num_new_tokens
            budget -= num_new_tokens

    def _first_chunk(self, num_tokens: int, threshold: int, budget: int) -> int:
        """How many of its tokens an admitted request computes first; 0 if it must wait."""
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        if num_tokens <= budget:
            return num_tokens
        return budget if self.config.enable_chunked_prefill else 0

    def _advance(
        self,
        scheduled: dict[Request, int],
        preempted: list[Request],
        *,
        decodes: int = 0,
        decode_context: int = 0,
    ) -> SchedulerOutput:
        """Counts the scheduled tokens as computed, and says what the device is to compute.

        `decodes` and `decode_context` are what it is to decode besides.
        """
        num_sampled = decodes
        prefills: list[tuple[int, int]] = []
        sampled: list[Request] = []
        for request, num_new_tokens in scheduled.items():
            context = request.num_computed_tokens
            outputs = request.num_output_tokens + request.num_output_placeholders
            request.num_computed_tokens = context + num_new_tokens
            request.num_in_flight_tokens += num_new_tokens
            request.is_prefill_chunk = (
                request.num_computed_tokens < request.num_prompt_tokens + outputs
            )
            if request.is_prefill_chunk:
                prefills.append((num_new_tokens, context))
                continue
            sampled.append(request)
            if self.config.async_scheduling:
                request.num_output_placeholders += 1
            if outputs and num_new_tokens == 1:
                decodes += 1
                decode_context += context + 1
            else:
                prefills.append((num_new_tokens, context))
        composition = Step(
            decodes=decodes,
            decode_context=decode_context,
            prefills=prefills,
            sampled=num_sampled + len(sampled),
        )
        return SchedulerOutput(
            scheduled, composition, sampled, preempted, num_sampled=composition.sampled
        )

    def update_from_output(self, output: SchedulerOutput) -> tuple[list[Request], list[Request]]:
        """Takes the tokens of a step that the device has finished.

        Gives the requests that got a token, and those that are finished by it.
        """
        for request, num_scheduled_tokens in output.num_scheduled_tokens.items():
            request.num_in_flight_tokens -= num_scheduled_tokens
            if request.num_stale_output_tokens:
                request.num_stale_output_tokens -= num_scheduled_tokens
        finished = [request for request in output.sampled if self._append_token(request)]
        for request in finished:
            self._finish(request)
        return output.sampled, finished

    def _append_token(self, request: Request) -> bool:
        """Appends one output token; True if it is the request's last."""
        request.num_output_tokens += 1
        if request.status is RequestStatus.RUNNING and self.config.async_scheduling:
            request.num_output_placeholders -= 1
            self.kv.cache_blocks(
                request, request.num_computed_tokens - request.num_output_placeholders
            )
        return (
            request.num_tokens >= self.config.max_model_len
            or request.num_output_tokens >= request.max_tokens
        )

    def _finish(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv.free(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        self._num_finished_to_flush += 1
