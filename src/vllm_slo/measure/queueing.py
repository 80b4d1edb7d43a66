"""Waiting for a slot, foreseen from how full the server was: what few rounds may not show.

Near saturation a few bad minutes hold all the waiting. Rounds that happen to have none of it look
well under any limit, and all alike. How many requests were in the server at once tells them from
rounds of a server that has room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from vllm_slo.measure.table import Floats, Ints, Table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occupancy:
    """What arriving requests found in a server with `slots`, in an open loop.

    Of each round, shape (rounds,): `requests`, the sum over them of the others that were `found`
    there, and of its square, and `arriving_s`, the time from the first arrival to the last.
    """

    slots: int
    requests: Floats
    found: Floats
    found_squared: Floats
    arriving_s: Floats

    @property
    def mean_found(self) -> float:
        return float(self.found.sum() / self.requests.sum())

    @property
    def full_share(self) -> float:
        """The share of requests that find all slots taken, were there room for all."""
        mean = self.mean_found
        variance = float(self.found_squared.sum() / self.requests.sum()) - mean**2
        return float(full_share(mean, variance, slots=self.slots))

    def wait_s(self, share: float, *, error: float) -> float:
        """The wait that at most `share` of the requests exceed; wrong with the probability `error`.

        Negative where fewer than that find the server full, infinite where more comes in than
        goes out, or with one round. The rounds are the clusters: Student's bound with the
        jackknife's standard error (Tukey 1958; Efron and Stein, Ann. Stat. 9, 1981).
        """
        columns = self.requests, self.found, self.found_squared, self.arriving_s
        return float(wait_bounds_s(columns, slots=self.slots, share=share, error=error))


def occupancy(table: Table, *, slots: int) -> Occupancy | None:
    """That of an open loop's rounds; `None` with fewer than two requests in any round.

    Requests that failed are left out: how long the server had them is not known.
    """
    table = table.where(table.ok)
    rounds = _rounds(table)
    if not rounds or min(len(one) for one in rounds) < 2:
        return None
    found = found_by_arrivals(table)
    return Occupancy(
        slots=slots,
        requests=np.array([float(len(one)) for one in found]),
        found=np.array([one.sum() for one in found]),
        found_squared=np.array([(one**2).sum() for one in found]),
        arriving_s=np.array([np.ptp(table.scheduled_s[one]) for one in rounds]),
    )


def found_by_arrivals(table: Table) -> list[Floats]:
    """How many others were in the server as each request came, an array for each round."""
    found = []
    for one in _rounds(table):
        arrivals = np.sort(table.scheduled_s[one])
        gone = np.searchsorted(np.sort(table.finished_s[one]), arrivals, side="right")
        found.append((np.arange(len(arrivals)) - gone).astype(np.float64))
    return found


def full_share(mean: ArrayLike, variance: ArrayLike, *, slots: int) -> Floats:
    """P(N >= slots) of the number N in a server with room for all.

    Under Poisson arrivals it is Poisson's, whatever the lengths (M/G/infinity), and arrivals see
    it as it is (Wolff, Operations Research 30, 1982). What spreads it further, bursts and steps
    that take longer the more requests there are, is in the dispersion D, its variance over its
    mean: P(Gamma(slots / D) <= mean / D).
    """
    from scipy.special import gammainc

    mean = np.asarray(mean, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(mean > 0, np.maximum(1.0, variance / mean), 1.0)
    return np.asarray(gammainc(slots / spread, np.maximum(0.0, mean) / spread))


def wait_bounds_s(columns: Sequence[Floats], *, slots: int, share: float, error: float) -> Floats:
    """`Occupancy.wait_s` of many: its four columns, each of shape (..., rounds)."""
    rounds = columns[0].shape[-1]
    sums = [x.sum(axis=-1) for x in columns]
    whole = _wait_s(sums, rounds, slots=slots, share=share)
    if rounds < 2:
        return np.full_like(whole, math.inf)
    rest = [total[..., None] - x for total, x in zip(sums, columns, strict=True)]
    without = _wait_s(rest, rounds - 1, slots=slots, share=share)
    with np.errstate(invalid="ignore"):
        spread = ((without - without.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1)
        bound = whole + _student(rounds - 1, error) * np.sqrt((rounds - 1) / rounds * spread)
    # Infinite without some round: more comes in than goes out, or nobody finds anybody.
    bound = np.where(np.isnan(bound), np.inf, bound)
    return np.asarray(np.where(np.isinf(whole), whole, bound))


def _wait_s(sums: Sequence[Floats], rounds: int, *, slots: int, share: float) -> Floats:
    """The wait that `share` of the requests exceed, from the sums of `Occupancy`'s columns.

    From P(wait > t) = full_share * exp(-(slots / W - rate) t), the wait of M/M/c, where W is the
    time in the server and mean = rate * W; lengths that vary less than exponential ones wait less.
    Negative where full_share < share.
    """
    requests, found, found_squared, arriving_s = sums
    mean = found / requests
    full = full_share(mean, found_squared / requests - mean**2, slots=slots)
    full = np.maximum(full, 1e-300)  # so that a logarithm is left of what floats take for nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        spare = (requests - rounds) / arriving_s * (slots / mean - 1)
        wait = np.log(full / share) / spare
    wait = np.where(mean <= 0, -np.inf, wait)
    return np.asarray(np.where(spare > 0, wait, np.inf))


def _student(freedom: int, error: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - error))


def _rounds(table: Table) -> Sequence[Ints]:
    """The places of each round's requests."""
    return [np.flatnonzero(table.round_index == one) for one in np.unique(table.round_index)]
