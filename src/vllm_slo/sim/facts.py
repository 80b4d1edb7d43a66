"""`Counters`: what the simulated server counts, as vLLM's metrics would give it."""

from vllm_slo.measure.run import ServerFacts
from vllm_slo.sim.request import Request


class Counters:
    """Counters over a run, and the extremes of the gauges, which vLLM sets after every step.

    `iterations` are the steps that gave tokens.
    """

    def __init__(self, num_usable_blocks: int) -> None:
        self.running_max = 0
        self.waiting_max = 0
        self.free_blocks_min = self._num_usable_blocks = num_usable_blocks
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.iterations = 0
        self.preemptions = 0
        self._queue_time_s = 0.0
        self._finished = 0

    def gauge(self, running: int, waiting: int, free_blocks: int) -> None:
        """Notes the state after a step."""
        if running > self.running_max:
            self.running_max = running
        if waiting > self.waiting_max:
            self.waiting_max = waiting
        if free_blocks < self.free_blocks_min:
            self.free_blocks_min = free_blocks

    def finish(self, request: Request) -> None:
        """Counts a request that is finished.

        Its queue time is vLLM's: from the step boundary at which the engine takes it to the one at
        which it is first scheduled.
        """
        self.prompt_tokens += request.num_prompt_tokens
        self.preemptions += request.num_preemptions
        self._queue_time_s += (request.scheduled_s or 0.0) - request.queued_s
        self._finished += 1

    def facts(self, *, num_prefix_hit_tokens: int) -> ServerFacts:
        """The figures of the run; an iteration's tokens are the computed ones (`loggers.py`)."""
        computed = self.prompt_tokens - num_prefix_hit_tokens + self.generation_tokens
        return ServerFacts(
            preemptions=self.preemptions,
            kv_use_max=1.0 - self.free_blocks_min / self._num_usable_blocks,
            running_max=self.running_max,
            waiting_max=self.waiting_max,
            queue_time_mean_s=self._queue_time_s / self._finished if self._finished else None,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            iteration_tokens_mean=computed / self.iterations if self.iterations else None,
            prefix_cache_hit_tokens=num_prefix_hit_tokens,
        )
