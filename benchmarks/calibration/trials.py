"""Thousands of trials of the rule at once, decided as `vllm_slo.slo.judge` decides each.

A trial is 20 rounds drawn from a pool with replacement. So the pool is the population: the truth
about it is known exactly, and trials are independent of each other. What is not covered is that
another pool of the same cell would be a slightly different population; the pools are large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

from benchmarks.calibration.pools import MAX_NUM_SEQS, METRICS, Floats, Pool
from vllm_slo.measure.queueing import wait_bounds_s
from vllm_slo.measure.tolerance import tolerance_factor

Ints = NDArray[np.int64]

PASS, INCONCLUSIVE, FAIL = -1, 0, 1
Q = 0.99
TAIL_QUANTILES = (0.95, 0.90)  # as measure.intervals has them
# The rule: bounds of the share over the limit with rounds as clusters, a PASS by the rounds'
# distance from the limit too, and none where the queue is foreseen to be longer.
WHOLE_RULE = frozenset({"clusters", "distance", "queue"})
_CHUNK = 250  # trials whose samples are in memory at once


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Of each trial, shape (trials,): the outcome and the rounds that it took."""

    outcome: Ints
    rounds: Ints

    def share(self, outcome: int) -> float:
        return float((self.outcome == outcome).mean())

    def count(self, outcome: int) -> int:
        return int((self.outcome == outcome).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class Tails:
    """Both of shape (trials, looks): the larger design effect of the sample's p95 and p90, and
    the p90 itself."""

    deff: Floats
    level: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """`picks`, shape (trials, rounds), says which rounds of `pool` each trial ran, in order."""

    pool: Pool
    picks: Ints
    looks: tuple[int, ...]

    @classmethod
    def draw(cls, pool: Pool, trials: int, *, looks: tuple[int, ...], seed: int) -> "Trials":
        picks = np.random.default_rng(seed).integers(pool.rounds, size=(trials, looks[-1]))
        return cls(pool=pool, picks=picks, looks=looks)

    def over(self, metric: str, limit: float) -> Ints:
        """How many requests of each round are over `limit`, shape (trials, rounds)."""
        over: Ints = (self.pool.samples(metric) > limit).sum(axis=1)[self.picks]
        return over

    @cached_property
    def tails(self) -> dict[str, "Tails"]:
        """By metric: what the judge reads off each look's sample, whatever the limit."""
        return {metric: self._tails(metric) for metric in METRICS}

    def _tails(self, metric: str) -> "Tails":
        samples = self.pool.samples(metric)
        deff = np.empty((len(self.picks), len(self.looks)))
        lower_level = np.empty_like(deff)
        for start in range(0, len(self.picks), _CHUNK):
            picks = self.picks[start : start + _CHUNK]
            for at, look in enumerate(self.looks):
                drawn = samples[picks[:, :look]]
                pooled = drawn.reshape(len(picks), -1)
                # the order statistic that method="inverted_cdf" takes
                places = [int(np.ceil(q * pooled.shape[1])) - 1 for q in TAIL_QUANTILES]
                levels = np.partition(pooled, places, axis=1)[:, places]
                deffs = [
                    design_effects((drawn > level[:, None, None]).sum(axis=2), samples.shape[1])
                    for level in levels.T
                ]
                deff[start : start + len(picks), at] = np.maximum(*deffs)
                lower_level[start : start + len(picks), at] = levels[:, 1]
        return Tails(deff=deff, level=lower_level)

    def rounds_bound(self, metric: str, look: int, *, error: float) -> Floats:
        """`measure.tolerance.rounds_bound` of each trial, in milliseconds."""
        samples = self.pool.samples(metric)
        place = int(np.ceil(Q * samples.shape[1])) - 1
        logs = np.log(samples[:, place])[self.picks[:, :look]]
        factor = tolerance_factor(look, Q, error=error)
        return np.asarray(np.exp(logs.mean(axis=1) + factor * logs.std(axis=1, ddof=1)))

    def foreseen_wait_s(self, look: int, *, error: float) -> Floats:
        """`measure.queueing.Occupancy.wait_s` of each trial."""
        pool, picks = self.pool, self.picks[:, :look]
        requests = np.full(pool.rounds, float(pool.ttft.shape[1]))
        columns = [
            one[picks] for one in (requests, pool.found, pool.found_squared, pool.arriving_s)
        ]
        return wait_bounds_s(columns, slots=MAX_NUM_SEQS, share=1 - Q, error=error)

    def length_s(self, decisions: Decisions) -> Floats:
        """The time of each trial's rounds, drained one after another, shape (trials,)."""
        lengths = np.cumsum(self.pool.length_s[self.picks], axis=1)
        return lengths[np.arange(len(lengths)), decisions.rounds - 1]


def design_effects(over: Ints, per_round: int) -> Floats:
    """`measure.intervals.design_effect` of many trials: `over` is (trials, rounds)."""
    rounds = over.shape[1]
    share = over.sum(axis=1) / (rounds * per_round)
    spread = ((over - share[:, None] * per_round) ** 2).sum(axis=1)
    between = rounds / (rounds - 1) * spread / (rounds * per_round) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        deff = between / (share * (1 - share) / (rounds * per_round))
    return np.where((share > 0) & (share < 1), deff, 1.0)


def bounds(
    over: Ints,
    per_round: int,
    deff: Floats,
    *,
    fail_error: float,
    pass_error: float,
    clustered: bool = True,
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the share over the limit, as `share_interval` gives them.

    Not `clustered` takes requests as independent: Clopper and Pearson's bounds.
    """
    rounds = over.shape[1]
    n = rounds * per_round
    share = over.sum(axis=1) / n

    def effective(error: float) -> Floats:
        if not clustered:
            return np.full(len(over), float(n))
        ratio = stdtrit(n - 1, 1 - error) / stdtrit(rounds - 1, 1 - error)
        return np.asarray(np.minimum(n, n / np.maximum(deff, 1.0) * ratio**2))

    for_fail, for_pass = effective(fail_error), effective(pass_error)
    with np.errstate(invalid="ignore"):
        lower = betaincinv(share * for_fail, for_fail - share * for_fail + 1, fail_error)
        upper = betaincinv(share * for_pass + 1, for_pass - share * for_pass, 1 - pass_error)
    return np.where(share > 0, lower, 0.0), np.where(share < 1, upper, 1.0)


def outcomes(lower: Floats, upper: Floats, limit: float) -> Ints:
    """`classify`, for many."""
    return np.where(lower > limit, FAIL, np.where(upper <= limit, PASS, INCONCLUSIVE))


def judge_row(
    trials: Trials,
    limits: dict[str, float],
    *,
    fail_error: float,
    pass_error: float,
    parts: frozenset[str] = WHOLE_RULE,
) -> Decisions:
    """The row's verdict in each trial. `limits` are p99 limits by metric, in milliseconds.

    The errors are those of one limit at one look. `parts` are those of the rule that are on.
    """
    over = {metric: trials.over(metric, limit) for metric, limit in limits.items()}
    per_round = trials.pool.ttft.shape[1]

    def of_limit(metric: str, limit: float, place: int, look: int) -> Ints:
        counts = over[metric][:, :look]
        deff = np.ones(len(counts))
        if "clusters" in parts:
            tail = trials.tails[metric].deff[:, place]
            deff = np.maximum(design_effects(counts, per_round), tail)
        lower, upper = bounds(
            counts,
            per_round,
            deff,
            clustered="clusters" in parts,
            fail_error=fail_error,
            pass_error=pass_error,
        )
        outcome = outcomes(lower, upper, 1 - Q)
        if "distance" in parts:
            is_within = trials.rounds_bound(metric, look, error=pass_error) <= limit
            outcome[(outcome == INCONCLUSIVE) & is_within] = PASS
        if "queue" in parts and metric == "ttft":
            wait_ms = limit - trials.tails[metric].level[:, place]
            wait_s = trials.foreseen_wait_s(look, error=pass_error)
            is_foreseen = (wait_s > 0) & (wait_s * 1e3 > wait_ms)
            outcome[(outcome == PASS) & is_foreseen] = INCONCLUSIVE
        return outcome

    def at(place: int, look: int) -> Ints:
        # FAIL if any limit fails, PASS if all pass
        by_limit = [of_limit(metric, limit, place, look) for metric, limit in limits.items()]
        return np.asarray(np.max(by_limit, axis=0))

    return first_conclusive(trials.looks, len(trials.picks), at)


def first_conclusive(
    looks: Sequence[int], trials: int, at: Callable[[int, int], Ints]
) -> Decisions:
    """Stops each trial at its first look that is conclusive. `at(place, look)`: all outcomes."""
    outcome = np.full(trials, INCONCLUSIVE)
    rounds = np.full(trials, looks[-1])
    for place, look in enumerate(looks):
        now = at(place, look)
        settled = (outcome == INCONCLUSIVE) & (now != INCONCLUSIVE)
        outcome[settled], rounds[settled] = now[settled], look
    return Decisions(outcome=outcome, rounds=rounds)
