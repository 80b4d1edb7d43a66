"""Who sends requests, and when: an open loop by the plan, or a closed loop of slots."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic.workload import MAX_TOKENS, PlannedRequest

NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """The API server's time, in seconds: a request passes it one after another, and so waits.

    `request_s` is what a request takes of it on the way to the engine, `response_s` passes from a
    step's end to the client.
    """

    request_s: float = 0.0
    response_s: float = 0.0


class Clients:
    """Hands out planned requests in the order in which they reach the engine.

    In an open loop `requests` come in order of `arrival_s`; in a closed loop `concurrency` slots
    send them in the order given, one after another, each as soon as its last one is over. They
    are read as they are sent, so a plan may be longer than memory.

    Raises:
        WorkloadError: while sending, on a request that makes no sense; with its place in the plan.
    """

    def __init__(
        self,
        requests: Iterable[PlannedRequest],
        *,
        concurrency: int | None,
        front_end: FrontEnd,
    ) -> None:
        self._requests = _checked(requests, is_open=concurrency is None)
        self._free_s = deque([0.0] * concurrency) if concurrency is not None else None
        self._front_end = front_end
        self._upcoming = next(self._requests, None)
        self.next_s = NEVER  # when the next request reaches the engine; infinity if none is coming
        self._sent_s = 0.0
        self._front_end_free_s = 0.0
        self._look_ahead()

    def send(self) -> tuple[PlannedRequest, float]:
        """The next request, and when it was sent."""
        planned, sent_s = self._upcoming, self._sent_s
        assert planned is not None
        self._front_end_free_s = self.next_s
        if self._free_s is not None:
            self._free_s.popleft()
        self._upcoming = next(self._requests, None)
        self._look_ahead()
        return planned, sent_s

    def over(self, at_s: float) -> None:
        """Tells that a request is over, for the client, at this time."""
        if self._free_s is not None:
            self._free_s.append(at_s)
            self._look_ahead()

    def _look_ahead(self) -> None:
        if self._upcoming is None or (self._free_s is not None and not self._free_s):
            self.next_s = NEVER
            return
        self._sent_s = self._free_s[0] if self._free_s else self._upcoming.arrival_s or 0.0
        start_s = max(self._sent_s, self._front_end_free_s)
        self.next_s = start_s + self._front_end.request_s


def _checked(requests: Iterable[PlannedRequest], *, is_open: bool) -> Iterator[PlannedRequest]:
    before_s = 0.0
    for place, one in enumerate(requests):
        fault = None
        if not (_is_length(one.input_tokens) and _is_length(one.output_tokens)) or one.segments:
            fault = _length_fault(one)
        if fault is None and is_open:
            fault = _arrival_fault(one.arrival_s, before_s)
            before_s = one.arrival_s or 0.0
        if fault is not None:
            raise WorkloadError(f"request {place} (index {one.index}): {fault}")
        yield one


def _is_length(tokens: object) -> bool:
    return type(tokens) is int and 1 <= tokens <= MAX_TOKENS


def _length_fault(one: PlannedRequest) -> str | None:
    for name in ("input_tokens", "output_tokens"):
        tokens = getattr(one, name)
        if not _is_length(tokens):
            return f"{name} must be a whole number from 1 to {MAX_TOKENS}, not {tokens!r}"
    if one.segments:
        tokens = sum(segment.tokens for segment in one.segments)
        if tokens != one.input_tokens:
            return f"its segments are {tokens} tokens, its input_tokens {one.input_tokens}"
    return None


def _arrival_fault(arrival_s: float | None, before_s: float) -> str | None:
    if arrival_s is None:
        return "an open loop needs its arrival_s; give the workload arrivals, or a concurrency"
    if not before_s <= arrival_s < NEVER:
        return (
            "arrival_s must be a number of seconds, not before that of the request before it "
            f"({before_s:g}), not {arrival_s!r}"
        )
    return None
