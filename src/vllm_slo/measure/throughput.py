"""Tokens and good requests per second, per round."""

from dataclasses import dataclass

import numpy as np

from vllm_slo.measure.metrics import meets
from vllm_slo.measure.run import Round, Run
from vllm_slo.measure.table import Bools, Floats, Table

UNKNOWN_EVENT_TOKENS = (
    "tokens per event are not told by the server: a request's final count is spread evenly over "
    "its events, and its first event is taken as one token"
)
UNKNOWN_COUNTS = "some requests have no token count: each of their events is taken as one token"
UNKNOWN_PROMPTS = "some prompt tokens are not told by the server: the planned ones are taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that meet every limit: `share` of all, failed ones included, and per second."""

    limits_ms: tuple[tuple[str, float], ...]
    good: int
    requests: int
    share: float
    rate_rps: float


def window_lengths(run: Run) -> Floats:
    """Seconds of each round's measured window, shape (rounds,); NaN where there is none."""
    lengths = np.array([end - start for start, end in (r.window_s for r in run.rounds)])
    return np.where(lengths > 0, lengths, np.nan)


def drained_s(one: Round) -> float:
    """When the round had drained: its last sign of life, in seconds from its start."""
    ends = [
        (record.event_s[-1] if len(record.event_s) else record.sent_s)
        if record.finished_s is None
        else record.finished_s
        for record in one.records
    ]
    return float(max(ends, default=one.window_s[1]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRates:
    """Tokens/s inside each round's window, shape (rounds,), and what is approximate about them."""

    output_tok_s: Floats
    total_tok_s: Floats
    approximate: tuple[str, ...]


def token_rates(run: Run, table: Table) -> TokenRates:
    """Output tokens that arrive inside the window / window; and the same with the prompt tokens
    of requests whose prefill ended in the window."""
    tokens, notes = spread_tokens(table)
    prompts = np.where(
        np.isnan(table.prompt_tokens), table.planned_prompt_tokens, table.prompt_tokens
    )
    first_s = table.first(table.event_s)
    if np.isnan(table.prompt_tokens[table.events > 0]).any():
        notes.append(UNKNOWN_PROMPTS)
    # Requests, and so their events, lie round by round.
    request_at = np.searchsorted(table.round_index, np.arange(len(run.rounds) + 1)).tolist()
    event_at = np.concatenate(([0], np.cumsum(table.events)))[request_at].tolist()
    output, total = np.empty(len(run.rounds)), np.empty(len(run.rounds))
    for i, one in enumerate(run.rounds):
        events, requests = slice(*event_at[i : i + 2]), slice(*request_at[i : i + 2])
        output[i] = tokens[events][_inside(table.event_s[events], one.window_s)].sum()
        total[i] = output[i] + prompts[requests][_inside(first_s[requests], one.window_s)].sum()
    windows = window_lengths(run)
    return TokenRates(
        output_tok_s=output / windows, total_tok_s=total / windows, approximate=tuple(notes)
    )


def goodput(run: Run, table: Table, limits_ms: dict[str, float]) -> Goodput:
    good = int(meets(table, limits_ms).sum())
    window = float(np.sum(window_lengths(run)))
    return Goodput(
        limits_ms=tuple(sorted(limits_ms.items())),
        good=good,
        requests=len(table),
        share=good / len(table) if len(table) else float("nan"),
        rate_rps=good / window if window > 0 else float("nan"),
    )


def spread_tokens(table: Table) -> tuple[Floats, list[str]]:
    """The tokens of each event, shape (e,), and what is approximate about them."""
    unknown = np.isnan(table.event_tokens)
    if not unknown.any():
        return table.event_tokens, []
    even = table.output_tokens / np.maximum(table.events, 1)
    per_event = np.repeat(even, table.events)
    notes = [UNKNOWN_EVENT_TOKENS]
    if np.isnan(per_event[unknown]).any():
        notes.append(UNKNOWN_COUNTS)
    filled = np.where(np.isnan(per_event), 1.0, per_event)
    return np.where(unknown, filled, table.event_tokens), notes


def _inside(time_s: Floats, window_s: tuple[float, float]) -> Bools:
    start, end = window_s
    inside: Bools = (time_s >= start) & (time_s <= end)
    return inside
