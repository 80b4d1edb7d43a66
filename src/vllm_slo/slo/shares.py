"""A limit on a quantile or a share, judged by rounds: the count over it, the distance from it,
and the queue that is foreseen."""

import math
from dataclasses import dataclass

import numpy as np

from vllm_slo.measure.intervals import (
    Interval,
    ShareInterval,
    classify,
    least_effective,
    more_rounds,
    over_limit,
    quantile_interval,
)
from vllm_slo.measure.queueing import Occupancy
from vllm_slo.measure.tolerance import rounds_bound, rounds_to_keep
from vllm_slo.slo.evidence import Samples
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.verdict import LimitVerdict, Outcome

# Of more rounds than that it is not worth saying that they would settle it.
MOST_ROUNDS = 200
# What waits for a slot waits in these.
_WITH_WAITING = ("ttft", "e2e")
# What a request takes that does not wait, on the safe side.
_WITHOUT_WAITING = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How often one limit may be wrong at one look."""

    fail: float
    pass_: float


def judge_share(
    limit: Limit,
    evidence: Samples,
    *,
    errors: Errors,
    rounds: int,
    least_rounds: int,
    occupancy: Occupancy | None,
    busy: float | None,
) -> LimitVerdict:
    """Judges a limit by its samples in at least `least_rounds` rounds.

    FAIL if the share over the limit is shown to be more than allowed. PASS if it is shown to be
    no more, or if the rounds are shown to keep the limit one by one; of the percentiles that
    waiting for a slot is part of, only if `occupancy` does not foresee more waiting than that.
    """
    n, q = evidence.count, 1 - evidence.allowed
    interval = over_limit(
        evidence.by_round, evidence.limit, fail_error=errors.fail, pass_error=errors.pass_
    )
    outcome = Outcome(classify(interval.lower, interval.upper, evidence.allowed))
    kept_from = _kept_from(limit, evidence, errors)
    if outcome is Outcome.INCONCLUSIVE and kept_from <= evidence.limit:
        outcome = Outcome.PASS
    waited_from = _waited_from(limit, evidence, occupancy, errors)
    message = (
        f"{evidence.over:,} of {n:,} over it, {math.floor(evidence.allowed * n + 1e-9):,} allowed; "
        f"{interval.effective:,.0f} effective samples"
    )
    if rounds < least_rounds:
        outcome = Outcome.INCONCLUSIVE
        message += f"; needs at least {least_rounds - rounds} more rounds"
    elif outcome is Outcome.PASS and waited_from > evidence.limit:
        outcome = Outcome.INCONCLUSIVE
        message += "; " + _foreseen(occupancy, evidence.allowed, waited_from)
    elif outcome is Outcome.INCONCLUSIVE:
        message += "; " + missing(_more_rounds(limit, evidence, interval, errors), busy)
    shown = None
    if limit.quantile is not None:
        bounds = quantile_interval(
            evidence.by_round, q, fail_error=errors.fail, pass_error=errors.pass_
        )
        shown = bounds.lower, max(min(bounds.upper, kept_from), waited_from, bounds.lower)
    elif limit.name == "goodput":
        shown = 1 - interval.upper, 1 - interval.lower
    return LimitVerdict(
        limit=limit,
        outcome=outcome,
        measured=evidence.shown,
        samples=n,
        effective_samples=interval.effective,
        interval=shown,
        message=message,
    )


def missing(rounds: int | None, busy: float | None) -> str:
    """What an inconclusive limit needs: so many rounds, or another load or limit."""
    if rounds is not None:
        return "needs about 1 more round" if rounds <= 1 else f"needs about {rounds} more rounds"
    why = "" if busy is None else f": utilisation is {busy:.2g}"
    return (
        f"not reachable at this load{why}, and what is measured is too near the limit. "
        "Gate at a lower load, or leave more headroom"
    )


def more_of_mean(found: Interval, limit: float, rounds: int) -> int | None:
    """About how many more rounds move the bound to the limit: it nears the mean as 1 / sqrt(n)."""
    bound = found.upper if found.estimate < limit else found.lower
    gap = abs(found.estimate - limit)
    needed = rounds * ((bound - found.estimate) / gap) ** 2 if gap > 0 else math.inf
    return math.ceil(needed) - rounds if needed <= MOST_ROUNDS else None


def _kept_from(limit: Limit, evidence: Samples, errors: Errors) -> float:
    """The least limit that the rounds are shown to keep one by one; infinite if none is."""
    q = limit.quantile
    if q is None or evidence.count < least_effective(q, error=errors.pass_):
        return math.inf
    return rounds_bound(evidence.by_round, q, error=errors.pass_)


def _waited_from(
    limit: Limit, evidence: Samples, occupancy: Occupancy | None, errors: Errors
) -> float:
    """The least limit in ms that no more requests than allowed are foreseen to wait beyond."""
    if occupancy is None or limit.quantile is None or limit.metric not in _WITH_WAITING:
        return -math.inf
    wait_s = occupancy.wait_s(evidence.allowed, error=errors.pass_)
    if wait_s <= 0:
        return -math.inf
    pooled = np.concatenate(evidence.by_round)
    return float(np.quantile(pooled, _WITHOUT_WAITING, method="inverted_cdf")) + wait_s * 1e3


def _more_rounds(
    limit: Limit, evidence: Samples, interval: ShareInterval, errors: Errors
) -> int | None:
    """About how many more rounds like these would settle it, by whichever way is shorter."""
    q = 1 - evidence.allowed
    ways = [
        more_rounds(interval, q, fail_error=errors.fail, pass_error=errors.pass_, most=MOST_ROUNDS)
    ]
    if limit.quantile is not None:
        keeps = rounds_to_keep(
            evidence.by_round, evidence.limit, q, error=errors.pass_, most=MOST_ROUNDS
        )
        per_round = evidence.count / interval.rounds
        sampled = math.ceil(least_effective(q, error=errors.pass_) / per_round) - interval.rounds
        ways.append(None if keeps is None else max(keeps, sampled))
    known = [one for one in ways if one is not None]
    return min(known) if known else None


def _foreseen(occupancy: Occupancy | None, allowed: float, waited_from: float) -> str:
    assert occupancy is not None
    text = (
        f"no PASS this near to a full server: requests found {occupancy.mean_found:.1f} of "
        f"{occupancy.slots} slots taken, about {occupancy.full_share:.1%} would find all taken"
    )
    if math.isinf(waited_from):
        return f"{text}. Gate at a lower load"
    return (
        f"{text}, and a wait beyond {waited_from:,.0f} ms of {allowed:.2g} of them cannot be ruled "
        "out. Gate at a lower load, or leave more headroom"
    )
