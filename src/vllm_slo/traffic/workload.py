"""`Workload`: a seeded, reproducible list of planned requests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of prompt tokens drawn from `key`: two prompts that share a key share the tokens."""

    key: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of the plan.

    `arrival_s` counts from the start of the round, in seconds; `None` in a closed loop, where a
    request starts when a slot comes free. `class_name` names the traffic class. A lower
    `priority` is more urgent, as in vLLM. `segments` compose the prompt; their tokens add up to
    `input_tokens`; one segment of its own when empty.
    """

    index: int
    input_tokens: int
    output_tokens: int
    arrival_s: float | None = None
    class_name: str = "all"
    priority: int = 0
    segments: tuple[Segment, ...] = ()


Plan = Callable[[np.random.Generator], Sequence[PlannedRequest]]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is sent: a plan, drawn from `seed` the first time `requests` is read.

    The same seed gives the same plan on every target; `reseeded` gives the plan of another round.
    `concurrency` is the number of closed-loop slots, `None` in an open loop. `params` describes
    the plan in plain values, for reports and for matching threshold rows.
    """

    name: str
    plan: Plan
    seed: int = 0
    concurrency: int | None = None
    params: tuple[tuple[str, object], ...] = ()

    @cached_property
    def requests(self) -> tuple[PlannedRequest, ...]:
        return tuple(self.plan(np.random.default_rng(self.seed)))

    def reseeded(self, seed: int) -> "Workload":
        return replace(self, seed=seed)

    @property
    def is_closed_loop(self) -> bool:
        return self.concurrency is not None

    def prompt_ids(self, request: PlannedRequest, *, vocab_size: int) -> NDArray[np.int64]:
        """The prompt's token ids, shape (input_tokens,), exact and reproducible.

        Ids below 16 are left out: tokenizers keep their special tokens there or at the end, and a
        prompt must not contain one.
        """
        segments = request.segments or (
            Segment(key=(self.seed, request.index), tokens=request.input_tokens),
        )
        parts = [
            np.random.default_rng([abs(k) for k in s.key]).integers(16, vocab_size, s.tokens)
            for s in segments
        ]
        return np.concatenate(parts)
