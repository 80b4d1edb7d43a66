"""Waiting for a slot, foreseen from how full the server was: what few rounds may not show.

Near saturation a few bad minutes hold all the waiting. Rounds that happen to have none of it look
well under any limit, and all alike. How many requests were in the server at once tells them from
rounds of a server that has room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_slo.measure.table import Floats, Ints, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What arriving requests found in the server, in an open loop.

    `found` is the mean number of others that were there, `dispersion` that number's variance over
    its mean (1 for a server with room, under Poisson arrivals), `rate` the arrivals a second.
    """

    found: float
    dispersion: float
    rate: float
    slots: int

    @property
    def full_share(self) -> float:
        """The share of requests that find all slots taken, had there been room for all.

        The number in a server with room is Poisson's, whatever the lengths (M/G/infinity), and
        arrivals see it as it is (Wolff, Operations Research 30, 1982). What spreads it further,
        bursts and steps that take longer the more requests there are, is in the dispersion D:
        P(N >= slots) = P(Gamma(slots / D) <= found / D).
        """
        from scipy.special import gammainc

        if self.found <= 0:
            return 0.0
        spread = max(1.0, self.dispersion)
        return float(gammainc(self.slots / spread, self.found / spread))

    def waiting_share(self, seconds: float) -> float:
        """The share of requests that wait longer than that for a slot.

        `full_share` * exp(-(slots / W - rate) * seconds), the wait of M/M/c, where W is the time
        in the server and found = rate * W. Lengths that vary less than exponential ones wait
        less. All that find it full, when more comes in than goes out.
        """
        if self.found <= 0:
            return 0.0
        spare = self.rate * (self.slots / self.found - 1)
        return self.full_share * math.exp(-max(0.0, spare) * max(0.0, seconds))

    def longest_wait_s(self, share: float) -> float:
        """The least wait that at most `share` of the requests exceed; infinite if there is none."""
        full = self.full_share
        if full <= share:
            return 0.0
        spare = self.rate * (self.slots / self.found - 1)
        return math.log(full / share) / spare if spare > 0 and share > 0 else math.inf


def occupancy(table: Table, *, slots: int) -> Occupancy | None:
    """That of an open loop's rounds; `None` with fewer than two requests in every round.

    Requests that failed are left out: how long the server had them is not known.
    """
    table = table.where(table.ok)
    counts = found_by_arrivals(table)
    arriving_s = gaps = 0.0
    for one in _rounds(table):
        if len(one) > 1:
            arriving_s += float(np.ptp(table.scheduled_s[one]))
            gaps += len(one) - 1
    if arriving_s <= 0:
        return None
    found = np.concatenate(counts)
    mean = float(found.mean())
    return Occupancy(
        found=mean,
        dispersion=float(found.var()) / mean if mean > 0 else 1.0,
        rate=gaps / arriving_s,
        slots=slots,
    )


def found_by_arrivals(table: Table) -> list[Floats]:
    """How many others were in the server as each request came, an array for each round."""
    found = []
    for one in _rounds(table):
        arrivals = np.sort(table.scheduled_s[one])
        gone = np.searchsorted(np.sort(table.finished_s[one]), arrivals, side="right")
        found.append((np.arange(len(arrivals)) - gone).astype(np.float64))
    return found


def _rounds(table: Table) -> Sequence[Ints]:
    """The places of each round's requests."""
    return [np.flatnonzero(table.round_index == one) for one in np.unique(table.round_index)]
