"""What one scheduling step decides, and the interface that every scheduler has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_slo.device.step import Step
from vllm_slo.sim.request import Request


@dataclass(slots=True)
class SchedulerOutput:
    """One step: how many tokens each request computes, in the order they were scheduled.

    `composition` is what the device is to compute, `sampled` the requests that get a token from
    it. `preempted` lost their blocks while this step was scheduled. `step` counts the calls of
    `schedule`, from one. `num_sampled` counts all tokens it gives, those of requests that are not
    named in `sampled` too (`implicit.py`).
    """

    num_scheduled_tokens: dict[Request, int]
    composition: Step
    sampled: list[Request]
    preempted: list[Request] = field(default_factory=list)
    step: int = 0
    num_sampled: int = 0

    @property
    def total_num_scheduled_tokens(self) -> int:
        return self.composition.tokens


class Scheduler(Protocol):
    """Chooses each step's work; the loop calls `schedule`, then `update_from_output` in order.

    Every change of state is between steps. `update_from_output` gives the requests that got a
    token, and those of them that are finished.
    """

    def add_request(self, request: Request) -> None: ...

    def has_requests(self) -> bool:
        """Whether the engine must be stepped: unfinished requests, or finished ones to flush."""
        ...

    def schedule(self) -> SchedulerOutput: ...

    def update_from_output(
        self, output: SchedulerOutput
    ) -> tuple[Sequence[Request], Sequence[Request]]: ...

    def gauges(self) -> tuple[int, int, int]:
        """How many requests run, how many wait, and how many KV blocks nobody holds."""
        ...

    @property
    def num_prefix_hit_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, not counting those of preempted requests."""
        ...
