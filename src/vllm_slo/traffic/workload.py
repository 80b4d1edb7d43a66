"""`Workload`: a seeded, reproducible list of planned requests."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic.prompts import draw_ids

MAX_TOKENS = 1 << 24  # longer than any model's context; a length above it is a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of prompt tokens drawn from `key`: two prompts that share a key share the tokens.

    A shorter segment of the same key has the first tokens of a longer one.
    """

    key: tuple[int, ...]
    tokens: int


OWN, CLASS_PREFIX, TRACE_BLOCK = 1, 2, 3  # the first number of a segment's key: whose tokens


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


@runtime_checkable
class SizedByServer(Protocol):
    """A plan whose number of requests follows from the number of closed-loop slots."""

    def sized(self, concurrency: int) -> Self: ...


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is sent: a plan, drawn from `seed` the first time `requests` is read.

    The same seed gives the same plan on every target; `reseeded` gives the plan of another round.
    `concurrency` is the number of closed-loop slots, `None` in an open loop. `params` describes
    the plan in plain values, for reports and for matching threshold rows.

    A closed loop may be as wide as the server: then `concurrency_per_seq` holds its slots as a
    multiple of the server's max_num_seqs, and `concurrency` is `None` until `for_server`.

    Raises:
        WorkloadError: a negative seed, or no slots.
    """

    name: str
    plan: Plan
    seed: int = 0
    concurrency: int | None = None
    concurrency_per_seq: float | None = None
    params: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise WorkloadError(f"{self.name}: a seed is a whole number >= 0, not {self.seed}")
        if self.concurrency is not None and self.concurrency < 1:
            raise WorkloadError(f"{self.name}: concurrency must be >= 1, not {self.concurrency}")

    @cached_property
    def requests(self) -> tuple[PlannedRequest, ...]:
        """The plan, in order of index.

        Raises:
            WorkloadError: the number of slots depends on a server that is not known yet.
        """
        if self.concurrency_per_seq is not None and self.concurrency is None:
            raise WorkloadError(
                f"{self.name}: its concurrency follows the server's max_num_seqs, which is not "
                "known yet\ncall workload.for_server(max_num_seqs), or give concurrency=..."
            )
        return tuple(self.plan(np.random.default_rng(self.seed)))

    def reseeded(self, seed: int) -> "Workload":
        """The same traffic, drawn anew: the plan of another round."""
        return replace(self, seed=seed)

    def for_server(self, max_num_seqs: int) -> "Workload":
        """This workload with its slots made a number, where they follow the server's."""
        if self.concurrency_per_seq is None:
            return self
        concurrency = math.ceil(self.concurrency_per_seq * max_num_seqs)
        plan = self.plan.sized(concurrency) if isinstance(self.plan, SizedByServer) else self.plan
        return replace(self, concurrency=concurrency, plan=plan)

    @property
    def is_closed_loop(self) -> bool:
        return self.concurrency is not None or self.concurrency_per_seq is not None

    def prompt_ids(self, request: PlannedRequest, *, vocab_size: int) -> NDArray[np.int64]:
        """The prompt's token ids, shape (input_tokens,), exact and reproducible.

        Every segment's tokens depend on the workload's seed too, so that a round finds nothing
        of an earlier round in a prefix cache.
        """
        if not request.segments:
            return draw_ids((self.seed, OWN, request.index), request.input_tokens, vocab_size)
        parts = [draw_ids((self.seed, *s.key), s.tokens, vocab_size) for s in request.segments]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
