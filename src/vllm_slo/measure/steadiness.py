"""Did the rounds reach a steady state, or was the server overloaded?"""

import numpy as np

from vllm_slo.measure import metrics
from vllm_slo.measure.invalid import Invalid
from vllm_slo.measure.run import Run
from vllm_slo.measure.table import Floats, Table

BATCH = 5
# With fewer batches than this the truncation point is chance.
LEAST_BATCHES = 20
# One round of a steady M/M/1 queue at utilisation 0.5 looks unsettled in 15-30 % of cases (100 to
# 600 requests), so more than three quarters of at least five must: then it is 0.5-3 % of runs,
# and 7 % at utilisation 0.8.
LEAST_ROUNDS = 5
MOST_UNSETTLED_SHARE = 0.75
# The statistic is a variance of what is left: of very few batches it is near zero by chance.
_LEFT_OUT = 5
# How far a line through the round rises, over its mean, for a queue that only grows: one that
# grows from nothing at a constant pace rises by 2.
OVERLOAD_RISE = 1.0


def steadiness(run: Run, table: Table) -> list[Invalid]:
    found = (_overload(run, table), _truncation(run, table), _drift(run, table))
    return [one for one in found if one]


def mser5_truncation(values: Floats) -> int:
    """How many first values to cut for the steadiest rest, by MSER-5.

    White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69 (1997); batches of 5 as in White, Cobb and Spratt (2000).
    """
    count = len(values) // BATCH
    if count <= _LEFT_OUT:
        return 0
    means = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    means = means - means.mean()  # so that the sums of squares do not cancel
    left = np.arange(count, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    statistic = (squares - sums**2 / left) / left**2
    return int(np.argmin(statistic[:-_LEFT_OUT])) * BATCH


def _truncation(run: Run, table: Table) -> Invalid | None:
    """Beyond half of a round in nearly all rounds, of an open loop: its queue builds up from an
    empty server."""
    if run.workload.is_closed_loop:
        return None
    late, looked_at = 0, 0
    for i in range(len(run.rounds)):
        values = _in_order(table, i)[1]
        if len(values) < LEAST_BATCHES * BATCH:
            continue
        looked_at += 1
        late += mser5_truncation(values) > len(values) / 2
    if looked_at < LEAST_ROUNDS or late <= MOST_UNSETTLED_SHARE * looked_at:
        return None
    return Invalid(
        check="steady state",
        value=late / looked_at,
        limit=MOST_UNSETTLED_SHARE,
        message=f"TTFT had not settled by the middle of {late} of {looked_at} rounds (MSER-5). "
        "Make rounds longer with requests=..., or lower the load",
    )


def _overload(run: Run, table: Table) -> Invalid | None:
    """In-flight and TTFT both rise through the round, in an open loop."""
    if run.workload.is_closed_loop:
        return None
    rises = []
    for i in range(len(run.rounds)):
        at, ttft = _in_order(table, i)
        if len(at) >= LEAST_BATCHES:
            rises.append((_rise(at, _in_flight(table, i, at)), _rise(at, ttft)))
    if not rises:
        return None
    in_flight, ttft = np.median(np.array(rises), axis=0).tolist()
    if not (in_flight > OVERLOAD_RISE and ttft > OVERLOAD_RISE):
        return None
    return Invalid(
        check="overload",
        value=min(in_flight, ttft),
        limit=OVERLOAD_RISE,
        message=f"requests in flight and TTFT rose through the round, by {in_flight:.1f} and "
        f"{ttft:.1f} times their means: the server gets more than it can serve, and its latency "
        "depends on how long the round is. Lower the rate; a FAIL stands, a PASS would not",
        fail_allowed=True,
    )


def _drift(run: Run, table: Table) -> Invalid | None:
    """TTFT moves on through the rounds of a closed loop, in most of them the same way.

    All slots start together, which is part of the scenario, and where lengths are alike they go on
    in waves: MSER takes such a wave for a transient. What is in flight is constant, so a drift is
    the server's: it warms up still, heats up, or leaks. The first wave is left out.
    """
    slots = run.concurrency
    if slots is None:
        return None
    rises = []
    for i in range(len(run.rounds)):
        at, ttft = _in_order(table, i)
        if len(at) - slots >= LEAST_BATCHES:
            rises.append(_rise(at[slots:], ttft[slots:]))
    if not rises:
        return None
    rise = float(np.median(np.array(rises)))
    if abs(rise) <= OVERLOAD_RISE:
        return None
    return Invalid(
        check="steady state",
        value=rise,
        limit=OVERLOAD_RISE,
        message=f"TTFT moved by {rise:+.1f} times its mean from the second wave of a round to its "
        "last, at a constant number of requests in flight: the server is not steady. Look for "
        "work after readiness in its log, or make rounds longer with requests=...",
        fail_allowed=rise > 0,
    )


def _in_order(table: Table, round_index: int) -> tuple[Floats, Floats]:
    """When each request of a round was scheduled, in order, and its TTFT; both shape (k,)."""
    ttft = metrics.ttft_ms(table)
    chosen = (table.round_index == round_index) & ~np.isnan(ttft)
    order = np.argsort(table.scheduled_s[chosen], kind="stable")
    return table.scheduled_s[chosen][order], ttft[chosen][order]


def _in_flight(table: Table, round_index: int, at: Floats) -> Floats:
    """Requests of a round that have started and not finished, at each time of `at`."""
    chosen = table.round_index == round_index
    started = np.searchsorted(np.sort(table.scheduled_s[chosen]), at, side="right")
    ends = np.fmax(table.finished_s, table.last(table.event_s))[chosen]
    ends = np.where(np.isnan(ends), table.sent_s[chosen], ends)
    return (started - np.searchsorted(np.sort(ends), at, side="right")).astype(np.float64)


def _rise(at: Floats, values: Floats) -> float:
    """How far the least-squares line rises from first to last, over the mean of the values.

    0 where there is no line: all at one time, or nothing but zeros.
    """
    spread = at - at.mean()
    mean, width = float(values.mean()), float((spread**2).sum())
    if mean <= 0 or width <= 0:
        return 0.0
    slope = float((spread * values).sum()) / width
    return slope * float(at[-1] - at[0]) / mean
