"""`RequestRecord`: what happened to one request, and the per-request metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRecord:
    """One request as the client saw it. All times are seconds from the start of the round.

    `event_s` are the arrival times of the events that carried tokens, `event_tokens` how many
    tokens each carried (same shape), or `None` where the server did not say: then it is unknown,
    never guessed. `prompt_tokens` and `output_tokens` are the server's own counts, `None` where
    it sent none. A request that failed keeps what it had and says why in `error`.
    """

    index: int = 0
    class_name: str = "all"
    planned_prompt_tokens: int
    planned_output_tokens: int
    scheduled_s: float
    sent_s: float
    event_s: NDArray[np.float64]
    event_tokens: NDArray[np.int64] | None
    finished_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None = None
    first_answer_event_s: float | None = None
    status: int | None = 200
    error: str | None = None
    preemptions: int = 0
    queued_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        """First event that carries a token, minus `scheduled`: a late client hides nothing."""
        return float(self.event_s[0]) - self.scheduled_s if len(self.event_s) else None

    @property
    def first_answer_token_s(self) -> float | None:
        """As TTFT, for the first token after the reasoning; equals TTFT where there is none."""
        if self.first_answer_event_s is None:
            return None
        return self.first_answer_event_s - self.scheduled_s

    @property
    def send_lag_s(self) -> float:
        return self.sent_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """(last token event - first) / (output tokens - tokens in the first event).

        `None`, never 0, where no token follows the first event. Where the tokens per event are
        not known the first is taken to carry one, and `Summary.approximate` says so.
        """
        if self.output_tokens is None or len(self.event_s) < 2:
            return None
        in_first = 1 if self.event_tokens is None else int(self.event_tokens[0])
        after_first = self.output_tokens - in_first
        if after_first < 1:
            return None
        return float(self.event_s[-1] - self.event_s[0]) / after_first

    @property
    def itl_s(self) -> NDArray[np.float64]:
        """Gaps between token events, each divided by the later event's tokens where known."""
        gaps = np.diff(self.event_s)
        return gaps if self.event_tokens is None else gaps / self.event_tokens[1:]

    @property
    def e2e_s(self) -> float | None:
        return None if self.finished_s is None else self.finished_s - self.scheduled_s
