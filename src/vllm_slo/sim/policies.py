"""What vLLM's scheduler replaced, behind the same interface, so that the gain can be shown.

- `StaticBatching`: request-level scheduling, as servers had it before Orca (Yu et al., OSDI 2022).
- `WholePrefills`: iteration-level scheduling with whole prompts, as in Orca and in vLLM before
  chunked prefill (Agrawal et al., Sarathi-Serve, OSDI 2024).
"""

from dataclasses import replace

from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request, RequestStatus
from vllm_slo.sim.scheduler import VllmV1Scheduler
from vllm_slo.sim.step import SchedulerOutput


class WholePrefills(VllmV1Scheduler):
    """Iteration-level scheduling that computes each prompt whole, in one step.

    A prompt joins the decodes of the step in which it is admitted, however long it is; the token
    budget only ends the admission of more prompts into that step.
    """

    def _first_chunk(self, num_tokens: int, threshold: int, budget: int) -> int:
        return num_tokens


class StaticBatching(VllmV1Scheduler):
    """Request-level scheduling: a batch is admitted together, and runs until its last token.

    A request that is done early keeps its row and its blocks until the whole batch is done, and
    its row is computed on. Its tokens are delivered as they come. Each request is given blocks for
    all its tokens at once, so nothing is preempted; prompts are computed whole, and nothing is
    shared or asynchronous.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(replace(config, enable_prefix_caching=False, async_scheduling=False))
        self._done: list[Request] = []

    def schedule(self) -> SchedulerOutput:
        """Decides the next step."""
        self._num_finished_to_flush = 0
        if not self.running:
            return self._advance(self._admit_batch(), [])
        for request in self._done:
            request.num_computed_tokens += 1
        return self._advance(
            {request: 1 for request in self.running if request.status is RequestStatus.RUNNING},
            [],
            decodes=len(self._done),
            decode_context=sum(request.num_computed_tokens for request in self._done),
        )

    def _admit_batch(self) -> dict[Request, int]:
        scheduled: dict[Request, int] = {}
        while len(self.waiting) > 0 and len(self.running) < self.config.max_num_running_reqs:
            request = self.waiting.peek()
            num_tokens = min(
                request.num_prompt_tokens + request.max_tokens, self.config.max_model_len
            )
            if not self.kv.allocate_slots(request, num_tokens):
                break
            self.waiting.pop()
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            scheduled[request] = request.num_prompt_tokens
        return scheduled

    def _finish(self, request: Request) -> None:
        request.status = RequestStatus.FINISHED
        self._num_finished_to_flush += 1
        self._done.append(request)
        if len(self._done) == len(self.running):
            for one in self.running:
                self.kv.free(one)
            self.running.clear()
            self._done.clear()
