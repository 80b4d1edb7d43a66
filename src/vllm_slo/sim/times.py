"""`StepTimes`: when each step ended; a request's token times are views of it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST_CAPACITY = 1 << 14


class StepTimes:
    """The end of every step, in seconds; steps are counted from one.

    Only steps from `oldest_needed` on are kept when the buffer is full, so that memory follows the
    requests that are alive; views handed out before stay as they are.
    """

    def __init__(self, oldest_needed: Callable[[], int]) -> None:
        self._oldest_needed = oldest_needed
        self._buffer: Floats = np.empty(_LEAST_CAPACITY)
        self._first_step = 1
        self._length = 0

    def append(self, end_s: float) -> None:
        if self._length == len(self._buffer):
            self._make_room(1)
        self._buffer[self._length] = end_s
        self._length += 1

    def extend(self, ends_s: Floats) -> None:
        if self._length + len(ends_s) > len(self._buffer):
            self._make_room(len(ends_s))
        self._buffer[self._length : self._length + len(ends_s)] = ends_s
        self._length += len(ends_s)

    def of(self, token_steps: list[int]) -> Floats:
        """The ends of runs of steps, given as the first and last of each; a view of a lone run."""
        at = self._first_step
        runs = [
            self._buffer[token_steps[i] - at : token_steps[i + 1] - at + 1]
            for i in range(0, len(token_steps), 2)
        ]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def _make_room(self, steps: int) -> None:
        dropped = min(max(self._oldest_needed() - self._first_step, 0), self._length)
        kept = self._buffer[dropped : self._length]
        self._buffer = np.empty(max(_LEAST_CAPACITY, 2 * (len(kept) + steps)))
        self._buffer[: len(kept)] = kept
        self._first_step += dropped
        self._length = len(kept)
