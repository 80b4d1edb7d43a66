"""When is a server warm? Its step time has settled over successive small batches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vllm_slo.measure.record import RequestRecord
from vllm_slo.traffic.workload import PlannedRequest, Workload

_SEED_OFFSET = 2**62  # far from any seed a round is given: a warm-up prompt is never measured
_OPEN_LOOP_BATCH = 16
# Below these a difference is the clock's and the loop's, not the server's.
_TPOT_FLOOR_S = 0.001
_TTFT_FLOOR_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How a server is warmed up before its first round; `max_batches=0` does nothing.

    A batch holds one request for each closed-loop slot (16 in an open loop), `largest_batch` at
    most, of the workload's own prompt lengths, with outputs cut to `output_tokens`: a step settles
    over steps, not over requests. The server is warm when two successive batches are within
    `tolerance` of each other in the time to the last first token and in the fastest TPOT. No
    further batch is begun after `max_s` seconds.
    """

    max_batches: int = 8
    largest_batch: int = 64
    output_tokens: int = 16
    tolerance: float = 0.15
    max_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """What a warm-up came to: requests sent, and whether step time had settled by then."""

    requests: int
    is_settled: bool


def warm_up_batch(workload: Workload, how: WarmUp, *, number: int) -> Workload:
    """Batch `number` of the warm-up: the workload's first lengths, with prompts of their own.

    Every batch has the same lengths, so that batches compare, and other tokens. Shared prefixes
    are left out, so that no cache is filled for the measured requests.
    """
    size = min(workload.concurrency or _OPEN_LOOP_BATCH, how.largest_batch)

    def plan(_: np.random.Generator) -> Sequence[PlannedRequest]:
        return [
            replace(
                request,
                index=number * size + position,
                output_tokens=min(request.output_tokens, how.output_tokens),
                arrival_s=None,
                segments=(),
            )
            for position, request in enumerate(workload.requests[:size])
        ]

    return Workload(
        name=f"warm-up of {workload.name}",
        plan=plan,
        seed=abs(workload.seed) + _SEED_OFFSET,
        concurrency=size,
    )


def has_settled(
    before: Sequence[RequestRecord], after: Sequence[RequestRecord], *, tolerance: float
) -> bool:
    """Whether two successive batches took the same time to prefill all, and to decode a token.

    The last first token comes when every prompt is prefilled, and the fastest TPOT has no prefill
    of others in it: neither depends on which requests came into a step together. Medians do: where
    one step takes every prompt that is there, two batches that split otherwise by chance differ.
    """
    last_ttft = [max(_known(r.ttft_s for r in batch if r.ok)) for batch in (before, after)]
    least_tpot = [min(_known(r.tpot_s for r in batch if r.ok)) for batch in (before, after)]
    return _is_near(last_ttft, tolerance, _TTFT_FLOOR_S) and _is_near(
        least_tpot, tolerance, _TPOT_FLOOR_S
    )


def _known(values: Iterable[float | None]) -> list[float]:
    """Those that are; nothing at all, of two batches that had none, is equally long."""
    return [value for value in values if value is not None] or [0.0]


def _is_near(pair: Sequence[float], tolerance: float, floor_s: float) -> bool:
    before, after = pair
    return abs(before - after) <= max(floor_s, tolerance * max(before, after))
