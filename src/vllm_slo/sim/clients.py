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
    """The API server's time, in seconds: from a send to the engine's input, and from a step's end
    to the client."""

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

    @property
    def next_s(self) -> float:
        """When the next request reaches the engine; infinity if none is on its way."""
        if self._upcoming is None or self._free_s == deque():
            return NEVER
        return self._sent_s() + self._front_end.request_s

    def send(self) -> tuple[PlannedRequest, float]:
        """The next request, and when it was sent."""
        planned, sent_s = self._upcoming, self._sent_s()
        assert planned is not None
        if self._free_s is not None:
            self._free_s.popleft()
        self._upcoming = next(self._requests, None)
        return planned, sent_s

    def over(self, at_s: float) -> None:
        """Tells that a request is over, for the client, at this time."""
        if self._free_s is not None:
            self._free_s.append(at_s)

    def _sent_s(self) -> float:
        if self._free_s is not None:
            return self._free_s[0]
        assert self._upcoming is not None
        return self._upcoming.arrival_s or 0.0


def _checked(requests: Iterable[PlannedRequest], *, is_open: bool) -> Iterator[PlannedRequest]:
    before = 0.0
    for place, one in enumerate(requests):
        for name, tokens in (
            ("input_tokens", one.input_tokens),
            ("output_tokens", one.output_tokens),
        ):
            if (
                isinstance(tokens, bool)
                or not isinstance(tokens, int)
                or not 1 <= tokens <= MAX_TOKENS
            ):
                raise WorkloadError(
                    f"request {place} (index {one.index}): {name} must be a whole number from 1 to "
                    f"{MAX_TOKENS}, not {tokens!r}"
                )
        if is_open:
            if one.arrival_s is None:
                raise WorkloadError(
                    f"request {place} (index {one.index}): an open loop needs its arrival_s\n"
                    "give the workload arrivals, or a concurrency"
                )
            if not math.isfinite(one.arrival_s) or one.arrival_s < before:
                raise WorkloadError(
                    f"request {place} (index {one.index}): arrival_s must be a number of seconds, "
                    f"not before the one before it ({before:g}), not {one.arrival_s!r}"
                )
            before = one.arrival_s
        if one.segments and sum(s.tokens for s in one.segments) != one.input_tokens:
            raise WorkloadError(
                f"request {place} (index {one.index}): its segments are "
                f"{sum(s.tokens for s in one.segments)} tokens, its input_tokens {one.input_tokens}"
            )
        yield one
