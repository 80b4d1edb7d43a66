"""`StepTimes`: when each step ended; a request's token times are views of it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST_CAPACITY = 1 << 14


class StepTimes:
    """The end of every step, in seconds; steps are counted from one.

    Only steps from `oldest_needed` on are kept when the buffer is full, so that memory follows the
    requests that are alive; views handed out before stay as they are. `delay_s` passes between a
    step's end and its tokens' arrival.
    """

    def __init__(self, oldest_needed: Callable[[], int], *, delay_s: float = 0.0) -> None:
        self._oldest_needed = oldest_needed
        self._delay_s = delay_s
        self._buffer: Floats = np.empty(_LEAST_CAPACITY)
        self._first_step = 1
        self._length = 0

    def append(self, end_s: float) -> None:
        """Notes the end of the next step."""
        if self._length == len(self._buffer):
            self._make_room(1)
        self._buffer[self._length] = end_s
        self._length += 1

    def draft(self, start_s: float, ms: Floats) -> Floats:
        """The ends of the next steps, which take `ms` one after another; not noted yet."""
        end = self._length + len(ms)
        if end > len(self._buffer):
            self._make_room(len(ms))
            end = self._length + len(ms)
        ends_s = self._buffer[self._length : end]
        np.divide(ms, 1000.0, out=ends_s)
        ends_s[0] += start_s
        return ends_s.cumsum(out=ends_s)

    def keep(self, steps: int) -> None:
        """Notes the first of the drafted ends."""
        self._length += steps

    def of(self, token_steps: list[int]) -> Floats:
        """When the tokens of runs of steps arrive, given as the first and last step of each run."""
        at = self._first_step
        if len(token_steps) == 2:
            times_s = self._buffer[token_steps[0] - at : token_steps[1] - at + 1]
        else:
            first_and_last = zip(token_steps[::2], token_steps[1::2], strict=True)
            runs = [self._buffer[first - at : last - at + 1] for first, last in first_and_last]
            times_s = np.concatenate(runs)
        return times_s + self._delay_s if self._delay_s else times_s

    def _make_room(self, steps: int) -> None:
        dropped = min(max(self._oldest_needed() - self._first_step, 0), self._length)
        kept = self._buffer[dropped : self._length]
        self._buffer = np.empty(max(_LEAST_CAPACITY, 2 * (len(kept) + steps)))
        self._buffer[: len(kept)] = kept
        self._first_step += dropped
        self._length = len(kept)
