"""Showing a limit to be kept by how far the rounds stay from it, not by counting.

Where all requests of a round share what makes them slow, as they do in TPOT, counting says little:
twenty rounds are hardly more than twenty observations. But their distance from the limit, in units
of how much they differ, says a lot.
"""

import math
from collections.abc import Sequence

import numpy as np

from vllm_slo.measure.intervals import PASS_ERROR
from vllm_slo.measure.table import Floats

# The share of rounds that are shown to keep a limit, each by itself. For a p99: with one round in
# a hundred over it, the requests of all others, most of them well below, leave room for that one.
ROUNDS_WITHIN = 0.99


def rounds_bound(rounds: Sequence[Floats], q: float, *, error: float = PASS_ERROR) -> float:
    """The value that the q-quantile of a round stays under, in at least 99 % of rounds.

    The upper tolerance bound of a normal distribution of the logarithms, mean + k * sd, where k
    is the quantile of a noncentral t (Owen 1968, "A survey of properties and applications of the
    noncentral t-distribution", Technometrics 10). Of a q over 99 % that share of rounds. Wrong
    with the probability `error`. Infinite with fewer than two rounds, or where requests failed
    past the quantile; NaN never.
    """
    figures = [np.quantile(one, q, method="inverted_cdf") for one in rounds if len(one)]
    n = len(figures)
    if n < 2 or not all(0 < one < math.inf for one in figures):
        return math.inf
    logs = np.log(figures)
    bound = float(logs.mean()) + tolerance_factor(n, q, error=error) * float(logs.std(ddof=1))
    return math.exp(bound) if bound < 700 else math.inf


def tolerance_factor(rounds: int, q: float, *, error: float) -> float:
    """k of the bound: 5.74, 3.98 and 3.30 for 5, 10 and 20 rounds at q = 0.99 and 5 %."""
    from scipy.special import nctdtrit, ndtri

    root = math.sqrt(rounds)
    return float(nctdtrit(rounds - 1, ndtri(max(q, ROUNDS_WITHIN)) * root, 1 - error)) / root


def rounds_to_keep(
    rounds: Sequence[Floats], limit: float, q: float, *, error: float, most: int
) -> int | None:
    """About how many more rounds like these show `limit` to be kept; `None` if `most` do not."""
    figures = [np.quantile(one, q, method="inverted_cdf") for one in rounds if len(one)]
    if len(figures) < 2 or limit <= 0 or not all(0 < one < math.inf for one in figures):
        return None
    logs = np.log(figures)
    room, spread = math.log(limit) - float(logs.mean()), float(logs.std(ddof=1))
    for count in range(len(figures), most + 1):
        if tolerance_factor(count, q, error=error) * spread <= room:
            return count - len(figures)
    return None
