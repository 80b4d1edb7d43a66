"""The definitions of the latency metrics, over a `Table`. Milliseconds; NaN where undefined."""

import numpy as np

from vllm_slo.measure.table import Bools, Floats, Ints, Table

LATENCIES = ("ttft", "tpot", "itl", "e2e", "send_lag")


def ttft_ms(table: Table) -> Floats:
    """First event that carries a token, minus `scheduled`, shape (n,)."""
    return (table.first(table.event_s) - table.scheduled_s) * 1e3


def send_lag_ms(table: Table) -> Floats:
    return (table.sent_s - table.scheduled_s) * 1e3


def e2e_ms(table: Table) -> Floats:
    """Finished minus `scheduled`, shape (n,), of the requests that succeeded."""
    return np.where(table.ok, table.finished_s - table.scheduled_s, np.nan) * 1e3


def decode_tokens(table: Table) -> Floats:
    """Output tokens after the first event, shape (n,): the divisor of TPOT.

    Where the server did not say how many tokens the first event carried, one is taken.
    """
    in_first = table.first(table.event_tokens)
    in_first[np.isnan(in_first)] = 1.0
    after_first: Floats = table.output_tokens - in_first
    return after_first


def tpot_ms(table: Table) -> Floats:
    """(last token event - first) / (output tokens - tokens in the first event), shape (n,)."""
    after_first = decode_tokens(table)
    spans = table.last(table.event_s) - table.first(table.event_s)
    defined = (table.events >= 2) & (after_first >= 1)
    values = np.full(len(table), np.nan)
    values[defined] = spans[defined] * 1e3 / after_first[defined]
    return values


def itl_ms(table: Table) -> tuple[Floats, Ints]:
    """Every gap between a request's token events, and the request it belongs to.

    Both have shape (gaps,). A gap is divided by the tokens of the later event where they are
    known; else it is the time between chunks.
    """
    if len(table.event_s) < 2:
        return np.empty(0), np.empty(0, dtype=np.int64)
    # A request's first event ends no gap.
    ends_gap = np.ones(len(table.event_s) - 1, dtype=bool)
    firsts = table.first_at[table.events > 0]
    ends_gap[firsts[firsts > 0] - 1] = False
    gaps = np.diff(table.event_s)[ends_gap] * 1e3
    tokens = table.event_tokens[1:][ends_gap]
    owner = np.repeat(np.arange(len(table)), np.maximum(table.events - 1, 0))
    per_token: Floats = gaps / np.fmax(tokens, 1.0)  # fmax: 1 where the tokens are not known
    return per_token, owner


def meets(table: Table, limits_ms: dict[str, float]) -> Bools:
    """Which requests meet every limit, shape (n,): a failed one never does.

    `limits_ms` is by metric: ttft, tpot, itl (every gap of the request), e2e. A request for
    which a metric is undefined, as TPOT is for a single token, meets that limit.

    Raises:
        ValueError: another metric.
    """
    good = table.ok.copy()
    for metric, limit in limits_ms.items():
        if metric == "itl":
            gaps, owner = itl_ms(table)
            good[owner[gaps > limit]] = False
        elif metric in PER_REQUEST:
            good &= ~(PER_REQUEST[metric](table) > limit)
        else:
            known = ", ".join((*PER_REQUEST, "itl"))
            raise ValueError(f"goodput knows no limit on {metric!r}: one of {known}")
    return good


PER_REQUEST = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms, "send_lag": send_lag_ms}


def undefined_because(table: Table, metric: str) -> dict[str, int]:
    """How many requests lack a metric, by reason. Shapes and metrics as above."""
    no_token = table.events == 0
    reasons = {"no token came": no_token}
    if metric in ("tpot", "itl"):
        one_event = (table.events == 1) & ~no_token
        after_first = decode_tokens(table)
        nothing_after = one_event & ~(after_first >= 1) & ~np.isnan(after_first)
        reasons["no token after the first event"] = nothing_after
        reasons["tokens came in one event"] = one_event & ~nothing_after
        if metric == "tpot":
            several = table.events >= 2
            reasons["the server sent no token count"] = several & np.isnan(after_first)
            reasons["token count too low"] = several & (after_first < 1)
    elif metric == "e2e":
        unfinished = table.ok & np.isnan(table.finished_s)
        reasons = {"failed": ~table.ok, "no finishing time": unfinished}
    elif metric == "send_lag":
        reasons = {}
    counted = {reason: int(chosen.sum()) for reason, chosen in reasons.items()}
    return {reason: count for reason, count in counted.items() if count}
