"""Laws that any run obeys: what breaks one was measured or recorded wrong."""

import math

import numpy as np

from vllm_slo.measure import metrics
from vllm_slo.measure.invalid import Invalid
from vllm_slo.measure.run import Round, Run
from vllm_slo.measure.table import Bools, Floats, Table

MOST_LITTLE_ERROR = 0.10
# tok/s and TPOT are both means over a window: they need not meet to the last percent.
DECODE_TOLERANCE = 1.10


def sanity(run: Run, table: Table) -> list[Invalid]:
    """Time order, Little's law and the throughput that max_num_seqs can give."""
    disordered = _time_order(table)
    if disordered:
        return [disordered]  # the other laws would only say so again
    found = (_littles_law(run, table), _busy_slots(run, table), _decode_bound(run, table))
    return [one for one in found if one]


def _time_order(table: Table) -> Invalid | None:
    """Latencies are finite and not negative, and quantiles rise."""
    broken = 0
    quantiles: list[str] = []
    for name, definition in metrics.PER_REQUEST.items():
        values = definition(table)
        values = values[~np.isnan(values)]
        broken += int((~np.isfinite(values) | (values < 0)).sum())
        if len(values) and np.quantile(values, 0.5) > np.quantile(values, 0.99):
            quantiles.append(name)
    gaps, _ = metrics.itl_ms(table)
    broken += int((~(gaps >= 0)).sum())
    if not broken and not quantiles:
        return None
    return Invalid(
        check="time order",
        value=broken,
        limit=0,
        message=f"{broken} times run backwards or are not numbers"
        + (f", p50 is over p99 for {', '.join(quantiles)}" if quantiles else "")
        + ". Client and server times must come from one monotonic clock: report this as a bug",
    )


def littles_law_error(one: Round, table: Table) -> tuple[float, float]:
    """|N - X R| / N over the round's window, and the share of it that edges may explain.

    N is the time average of requests in flight, by integrating each one's time between sending
    and finishing over the window; X counts those that finish in the window, R is their mean time
    from `scheduled`. Only requests that finished count. NaN where there are none. Requests that
    straddle an edge of the window make a difference of up to R / window (Little, Operations
    Research 9, 1961; for finite windows Jewell 1967).
    """
    start, end = one.window_s
    finished = ~np.isnan(table.finished_s)
    sent, done = table.sent_s[finished], table.finished_s[finished]
    inside: Bools = (done >= start) & (done <= end)
    window = end - start
    if window <= 0 or not inside.any():
        return math.nan, 0.0
    in_flight = _integral(sent, done, start, end) / window
    times = done[inside] - table.scheduled_s[finished][inside]
    straddles = bool((sent < start).any() or (done > end).any())
    edges = float(times.mean()) / window if straddles else 0.0
    rate = float(inside.sum()) / window
    if in_flight <= 0:
        return math.nan, edges
    return abs(in_flight - rate * float(times.mean())) / in_flight, edges


def _littles_law(run: Run, table: Table) -> Invalid | None:
    for i, one in enumerate(run.rounds):
        error, edges = littles_law_error(one, table.where(table.round_index == i))
        limit = MOST_LITTLE_ERROR + edges
        if error > limit:
            return Invalid(
                check="Little's law",
                value=error,
                limit=limit,
                message=f"requests in flight and rate x time differ by {error:.0%} in round "
                f"{i + 1}, at most {limit:.0%} is allowed. Requests waited at the client, or "
                "records are missing: look at send lag and at failed requests",
            )
    return None


def _busy_slots(run: Run, table: Table) -> Invalid | None:
    """Little's law of a closed loop: until the last request starts, every slot is taken."""
    slots = run.concurrency
    if slots is None:
        return None
    for i in range(len(run.rounds)):
        part = table.where(table.round_index == i)
        last_start = float(part.scheduled_s.max(initial=0.0))
        first_start = float(part.scheduled_s.min(initial=last_start))
        ends = _ends(part)
        if len(part) <= slots or last_start <= first_start:
            continue
        taken = _integral(part.scheduled_s, ends, first_start, last_start)
        in_flight = taken / (last_start - first_start)
        error = abs(in_flight - slots) / slots
        if error > MOST_LITTLE_ERROR:
            return Invalid(
                check="Little's law",
                value=error,
                limit=MOST_LITTLE_ERROR,
                message=f"a closed loop of {slots} slots had {in_flight:.1f} requests in flight "
                f"on average in round {i + 1}. Slots stood idle or records are missing: look at "
                "failed requests, and at the client's load",
            )
    return None


def _decode_bound(run: Run, table: Table) -> Invalid | None:
    """Output tok/s <= max_num_seqs / TPOT, for tokens after the first.

    The first token of a request comes with its prefill. A preempted request counts in TPOT while
    it does not run, so the law does not hold with preemptions.
    """
    seqs = run.settings.max_num_seqs
    if seqs is None or any(one.server.preemptions for one in run.rounds):
        return None
    after_first = metrics.decode_tokens(table)
    counted = (table.events >= 2) & (after_first >= 1)
    spans = (table.last(table.event_s) - table.first(table.event_s))[counted]
    tokens, span = float(after_first[counted].sum()), float(spans.sum())
    # From the first token of a round to its last: no time in which nothing could decode.
    decoding = 0.0
    for i in range(len(run.rounds)):
        events = table.event_s[table.event_round == i]
        decoding += float(events.max() - events.min()) if len(events) else 0.0
    if not tokens or span <= 0 or decoding <= 0:
        return None
    rate, bound = tokens / decoding, seqs * tokens / span
    if rate <= DECODE_TOLERANCE * bound:
        return None
    return Invalid(
        check="decode bound",
        value=rate,
        limit=bound,
        message=f"{rate:.0f} output tok/s are more than {seqs} sequences can give at "
        f"{span / tokens * 1e3:.1f} ms a token ({bound:.0f}). The server does not run with "
        f"max_num_seqs={seqs}, "
        "or tokens are counted twice: compare its log with the settings",
    )


def _ends(table: Table) -> Floats:
    """When each request left: finished, else its last event, else as it was sent."""
    ends = np.where(np.isnan(table.finished_s), table.last(table.event_s), table.finished_s)
    return np.where(np.isnan(ends), table.sent_s, ends)


def _integral(begins: Floats, ends: Floats, start: float, end: float) -> float:
    overlap = np.minimum(ends, end) - np.maximum(begins, start)
    return float(np.maximum(overlap, 0.0).sum())
