"""What a step computes, read from vLLM's `SchedulerOutput` (vllm/v1/core/sched/output.py)."""

from typing import Any

from vllm_slo.device.step import Step


class StepReader:
    """Turns each `SchedulerOutput` of one engine into a `Step`.

    The scheduler sends a request's prompt only once, so the reader keeps prompt lengths of the
    requests that are alive.
    """

    def __init__(self) -> None:
        self._prompt_tokens: dict[str, int] = {}

    def read(self, scheduled: Any) -> tuple[Step, bool]:
        """The step, and whether it follows the one before it without an idle time between.

        A step that goes on with a request known from before follows directly: the engine had
        work. One of newcomers only may come after any pause.
        """
        for request_id in scheduled.finished_req_ids:
            self._prompt_tokens.pop(request_id, None)
        counts = scheduled.num_scheduled_tokens
        decodes = decode_context = sampled = 0
        prefills: list[tuple[int, int]] = []
        continues = False

        for request in scheduled.scheduled_new_reqs:
            # vLLM's second model runner sends a preempted request as new again, with the outputs
            # it has so far as part of what is to be prefilled.
            continues = continues or request.req_id in self._prompt_tokens
            prompt = _prompt_tokens(request)
            self._prompt_tokens[request.req_id] = prompt
            again = getattr(request, "prefill_token_ids", None)
            tokens = max(prompt, len(again)) if again is not None else prompt
            count = counts[request.req_id]
            prefills.append((count, request.num_computed_tokens))
            sampled += request.num_computed_tokens + count >= tokens

        cached = scheduled.scheduled_cached_reqs
        continues = continues or bool(cached.req_ids)
        for request_id, computed, outputs in zip(
            cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
        ):
            count = counts[request_id]
            tokens = self._prompt_tokens[request_id] + outputs
            completes = computed + count >= tokens
            if outputs and count == 1 and completes:
                decodes += 1
                decode_context += computed + 1
            else:
                prefills.append((count, computed))
            sampled += completes

        step = Step(
            decodes=decodes,
            decode_context=decode_context,
            prefills=tuple(prefills),
            sampled=int(sampled),
        )
        return step, continues


def _prompt_tokens(request: Any) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    embeds = getattr(request, "prompt_embeds", None)
    return 0 if embeds is None else int(embeds.shape[0])
