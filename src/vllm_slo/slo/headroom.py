"""Headroom: how far beyond a measured value its limit lies."""

import math

from vllm_slo.slo.limits import Limit

DEFAULT_HEADROOM = 0.2


def with_headroom(limit: Limit, measured: float, headroom: float) -> float | None:
    """A measured value moved away by `headroom`, to three digits, never towards the value.

    `None` where that is no limit: a lower bound of 0, or an infinite value.
    """
    away = measured * (1 + headroom if limit.bound == "upper" else 1 - headroom)
    if not math.isfinite(away) or away < 0 or (away == 0 and limit.bound == "lower"):
        return None
    if away == 0:
        return 0.0
    digits = 2 - math.floor(math.log10(away))
    # In whole steps of the last digit; the nudge takes rounding of the product for what it is.
    steps = away * 10.0**digits
    whole = math.ceil(steps - 1e-6) if limit.bound == "upper" else math.floor(steps + 1e-6)
    return min(round(whole / 10.0**digits, digits), limit.most)
