"""`Counters`: what the simulated server counts, as vLLM's metrics would give it."""

from vllm_slo.measure.run import ServerFacts
from vllm_slo.sim.request import Request


class Counters:
    """Counters over a run, and the largest of each gauge, which vLLM sets after every step."""

    def __init__(self) -> None:
        self.running_max = 0
        self.waiting_max = 0
        self.kv_use_max = 0.0
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.iterations = 0
        self.preemptions = 0
        self._queue_time_s = 0.0
        self._finished = 0

    def gauge(self, running: int, waiting: int, usage: float) -> None:
        """Notes the state after a step."""
        self.running_max = max(self.running_max, running)
        self.waiting_max = max(self.waiting_max, waiting)
        self.kv_use_max = max(self.kv_use_max, usage)

    def iterate(self, steps: int, tokens: int) -> None:
        """Counts steps that gave tokens."""
        self.iterations += steps
        self.generation_tokens += tokens

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
            kv_use_max=self.kv_use_max,
            running_max=self.running_max,
            waiting_max=self.waiting_max,
            queue_time_mean_s=self._queue_time_s / self._finished if self._finished else None,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            iteration_tokens_mean=computed / self.iterations if self.iterations else None,
            prefix_cache_hit_tokens=num_prefix_hit_tokens,
        )
