"""A simulated request as the `RequestRecord` that a client would have made of it."""

import numpy as np
from numpy.typing import NDArray

from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.admission import Refusal
from vllm_slo.sim.request import Request
from vllm_slo.traffic.workload import PlannedRequest

_NO_TIMES: NDArray[np.float64] = np.empty(0)
_NO_TOKENS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class Events:
    """Turns token times into the events of a stream: one a token, or fewer.

    With a `stream_interval` of n the first token and the last are sent at once, and in between
    every n-th (`vllm/v1/engine/output_processor.py`, 0.32.0). One token an event shares views of
    one array of ones.
    """

    def __init__(self, stream_interval: int = 1) -> None:
        self._interval = stream_interval
        self._ones: NDArray[np.int64] = np.ones(1024, dtype=np.int64)

    def of(self, token_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The events' times, and how many tokens each carries."""
        count = len(token_s)
        if self._interval > 1 and count > 1:
            last = np.arange(0, count, self._interval)  # the last token of each event
            if last[-1] != count - 1:
                last = np.append(last, count - 1)
            return token_s[last], np.diff(last, prepend=-1)
        if count > len(self._ones):
            self._ones = np.ones(2 * count, dtype=np.int64)
        return token_s, self._ones[:count]


def finished_record(
    request: Request,
    planned: PlannedRequest,
    *,
    event_s: NDArray[np.float64],
    event_tokens: NDArray[np.int64],
) -> RequestRecord:
    """The record of a request that got all its tokens.

    Its `queued_s` is from when it reached the server to when it was first scheduled.
    """
    return RequestRecord(
        index=planned.index,
        class_name=planned.class_name,
        planned_prompt_tokens=planned.input_tokens,
        planned_output_tokens=planned.output_tokens,
        scheduled_s=request.sent_s,
        sent_s=request.sent_s,
        event_s=event_s,
        event_tokens=event_tokens,
        finished_s=float(event_s[-1]),
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        finish_reason="length",
        preemptions=request.num_preemptions,
        queued_s=(request.scheduled_s or 0.0) - request.arrival_time,
    )


def refused_record(
    planned: PlannedRequest, refusal: Refusal, *, sent_s: float, over_s: float
) -> RequestRecord:
    """The record of a request that the API server refused."""
    return RequestRecord(
        index=planned.index,
        class_name=planned.class_name,
        planned_prompt_tokens=planned.input_tokens,
        planned_output_tokens=planned.output_tokens,
        scheduled_s=sent_s,
        sent_s=sent_s,
        event_s=_NO_TIMES,
        event_tokens=_NO_TOKENS,
        finished_s=over_s,
        prompt_tokens=None,
        output_tokens=None,
        status=refusal.status,
        error=f"HTTP {refusal.status}: {refusal.message}",
    )
