"""What the API server refuses before the engine sees it, with vLLM's words."""

import math
from dataclasses import dataclass

from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.prefix import PromptHasher
from vllm_slo.sim.request import Request
from vllm_slo.traffic.workload import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An HTTP status and its message."""

    status: int
    message: str


class Admission:
    """Refuses what cannot fit (400) and what a full queue has no room for (503).

    As vLLM 0.32.0: `TokenizeParams` (`vllm/renderers/params.py`), `InputProcessor`
    (`vllm/v1/engine/input_processor.py`), `SamplingParams` (the client asks for exactly its
    output tokens, so a max_tokens that is cut to the context falls below min_tokens), and
    `AsyncLLM.check_admission` (`vllm/v1/engine/async_llm.py`).
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._hasher = PromptHasher(config.block_size)
        self._num_admitted = 0
        self._last_arrival_s = -math.inf
        self.num_in_flight = 0

    def refusal(self, planned: PlannedRequest) -> Refusal | None:
        """Why a request is refused; `None` if it is not."""
        longest = self._config.max_model_len
        prompt, output = planned.input_tokens, planned.output_tokens
        if prompt + output > longest:
            return Refusal(status=400, message=_does_not_fit(prompt, output, longest))
        most = self._config.max_num_queued_reqs
        if most is not None and self.num_in_flight + 1 > most:
            return Refusal(
                status=503,
                message="The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
            )
        return None

    def admit(self, planned: PlannedRequest, *, arrival_s: float) -> Request:
        """The request as the engine gets it; no two arrive at the same time, as on a real clock.

        Two that tie in priority and arrival would preempt each other for ever, in vLLM too.
        """
        self.num_in_flight += 1
        arrival_s = max(arrival_s, math.nextafter(self._last_arrival_s, math.inf))
        self._last_arrival_s = arrival_s
        request = Request(
            self._num_admitted,
            num_prompt_tokens=planned.input_tokens,
            max_tokens=planned.output_tokens,
            arrival_time=arrival_s,
            priority=planned.priority,
        )
        self._num_admitted += 1
        if planned.segments:
            request.prompt = self._hasher.prompt(planned.segments)
            if self._config.enable_prefix_caching:
                request.shared_hashes = self._hasher.shared_hashes(request.prompt)
        return request


def _does_not_fit(prompt: int, output: int, longest: int) -> str:
    if output > longest:
        return (
            f"max_tokens={output} cannot be greater than max_model_len={longest}. "
            "Please request fewer output tokens."
        )
    if prompt > longest:
        return (
            f"This model's maximum context length is {longest} tokens. However, your prompt "
            f"contains {prompt} input tokens, which exceeds this limit even without any output "
            "tokens. Please reduce the length of the input prompt."
        )
    if prompt == longest:
        return (
            f"The decoder prompt (length {prompt}) plus the number of requested output tokens (at "
            f"least 1) is longer than the maximum model length of {longest}. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens (prompt + requested "
            "output tokens)."
        )
    return f"min_tokens must be less than or equal to max_tokens={longest - prompt}, got {output}."
