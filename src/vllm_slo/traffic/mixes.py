"""Mixtures of traffic classes, and the plan that draws requests from one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic.arrivals import OpenLoop
from vllm_slo.traffic.lengths import Ints, Lengths, as_lengths, check_weights, choose
from vllm_slo.traffic.workload import CLASS_PREFIX, OWN, PlannedRequest, Segment

# 5 rounds of 64 are 320 requests, over the 299 that a p99 needs (docs: verdicts).
LEAST_REQUESTS = 64
REQUESTS_PER_SLOT = 4
OPEN_LOOP_REQUESTS = 300


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One kind of request in a mixture.

    `input` and `output` are lengths in tokens: a number, a (low, high) pair or a distribution.
    `weight` is its share of requests, relative to the other classes. A lower `priority` is more
    urgent, as in vLLM. The first `shared_prefix_tokens` of a prompt are the same for the whole
    class and count in `input`; a prompt shorter than that shares all of itself.
    """

    name: str
    input: Lengths
    output: Lengths
    weight: float = 1.0
    priority: int = 0
    shared_prefix_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise WorkloadError("TrafficClass: a class needs a name")
        object.__setattr__(self, "input", as_lengths(self.input))
        object.__setattr__(self, "output", as_lengths(self.output))
        check_weights(f"TrafficClass {self.name}", [self.weight], 1)
        if self.shared_prefix_tokens < 0:
            raise WorkloadError(
                f"TrafficClass {self.name}: shared_prefix_tokens must be >= 0, "
                f"not {self.shared_prefix_tokens}"
            )

    def __str__(self) -> str:
        text = f"{self.name}: {self.weight:g} x {self.input} in, {self.output} out"
        if self.priority:
            text += f", priority {self.priority}"
        if self.shared_prefix_tokens:
            text += f", {self.shared_prefix_tokens} shared"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPlan:
    """A `Plan` that draws requests of `classes`, at the times of `arrivals` in an open loop.

    Without `requests` there are 4 for each of the closed loop's `slots`, and at least 64. Classes,
    arrivals and each class's lengths have random streams of their own: two plans from one seed
    that differ in arrivals or in the number of requests agree in the lengths they share.
    """

    classes: tuple[TrafficClass, ...]
    arrivals: OpenLoop | None = None
    requests: int | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        if not self.classes:
            raise WorkloadError("a mix needs at least one class")
        names = [c.name for c in self.classes]
        if len(set(names)) < len(names):
            raise WorkloadError(f"two classes of a mix have one name: {', '.join(names)}")
        check_weights("mix", [c.weight for c in self.classes], len(self.classes))
        if self.requests is not None and self.requests < 1:
            raise WorkloadError(f"requests must be >= 1, not {self.requests}")

    @property
    def count(self) -> int | None:
        """How many requests there are; `None` until `sized`, where that depends on the slots."""
        if self.requests is not None or self.slots is None:
            return self.requests
        return max(LEAST_REQUESTS, REQUESTS_PER_SLOT * self.slots)

    def sized(self, concurrency: int) -> "MixPlan":
        return replace(self, slots=concurrency)

    def __call__(self, rng: np.random.Generator) -> Sequence[PlannedRequest]:
        n = self.count
        if n is None:
            raise WorkloadError("the number of requests is not known: give requests=...")
        class_rng, arrival_rng, *length_rngs = rng.spawn(2 + 2 * len(self.classes))
        kinds = choose(class_rng, [c.weight for c in self.classes], n)
        inputs, outputs = self._lengths(kinds, length_rngs)
        times = None if self.arrivals is None else self.arrivals.draw(arrival_rng, n).tolist()
        classes = self.classes
        return [
            PlannedRequest(
                index=i,
                input_tokens=size,
                output_tokens=answer,
                arrival_s=None if times is None else times[i],
                class_name=classes[kind].name,
                priority=classes[kind].priority,
                segments=_segments(classes[kind], kind, i, size),
            )
            for i, (kind, size, answer) in enumerate(
                zip(kinds.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
            )
        ]

    def _lengths(self, kinds: Ints, rngs: Sequence[np.random.Generator]) -> tuple[Ints, Ints]:
        inputs, outputs = np.empty_like(kinds), np.empty_like(kinds)
        for kind, one in enumerate(self.classes):
            chosen = kinds == kind
            count = int(chosen.sum())
            inputs[chosen] = one.input.draw(rngs[2 * kind], count)
            outputs[chosen] = one.output.draw(rngs[2 * kind + 1], count)
        return inputs, outputs


def _segments(one: TrafficClass, kind: int, index: int, tokens: int) -> tuple[Segment, ...]:
    if not one.shared_prefix_tokens:
        return ()
    shared = min(one.shared_prefix_tokens, tokens)
    prefix = Segment(key=(CLASS_PREFIX, kind), tokens=shared)
    if shared == tokens:
        return (prefix,)
    return prefix, Segment(key=(OWN, index), tokens=tokens - shared)
