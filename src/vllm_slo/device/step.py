"""The composition of one engine step, and what a device model must answer about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step computes.

    `decodes` requests decode one token each over contexts that add up to `decode_context` tokens
    (this step's token included). `prefills` are (chunk, prior context) pairs in tokens. `sampled`
    rows go through the LM head: every decode and every prefill that completes its prompt.
    """

    decodes: int = 0
    decode_context: int = 0
    prefills: Sequence[tuple[int, int]] = ()
    sampled: int = 0

    @property
    def tokens(self) -> int:
        return self.decodes + sum(chunk for chunk, _ in self.prefills)


class StepTimeModel(Protocol):
    """A device, as the time it takes for a step. Times in milliseconds."""

    def step_ms(self, step: Step) -> float:
        """The time of one step."""
        ...

    def decode_run_ms(
        self, *, decodes: int, decode_context: int, steps: int
    ) -> NDArray[np.float64]:
        """The times of `steps` successive pure decode steps, shape (steps,).

        The batch is the same in each; the summed context is `decode_context` in the first and
        grows by `decodes` a step. Equals `step_ms` called step by step.
        """
        ...
