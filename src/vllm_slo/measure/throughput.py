"""Tokens and good requests per second, per round."""

from dataclasses import dataclass

import numpy as np

from vllm_slo.measure.metrics import meets
from vllm_slo.measure.run import Round, Run
from vllm_slo.measure.table import Bools, Floats, Ints, Table

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
    ends = [one.window_s[1]]
    for record in one.records:
        ends.append(record.sent_s if record.finished_s is None else record.finished_s)
        if len(record.event_s):
            ends.append(float(record.event_s[-1]))
    return max(ends)


def output_tok_s(run: Run, table: Table) -> tuple[Floats, list[str]]:
    """Output tokens that arrive inside the window / window, shape (rounds,), and what is
    approximate about it."""
    tokens, notes = spread_tokens(table)
    inside = _inside(run, table.event_round, table.event_s)
    return _per_round(run, table.event_round[inside], tokens[inside]), notes


def total_tok_s(run: Run, table: Table) -> tuple[Floats, list[str]]:
    """As `output_tok_s`, with the prompt tokens of requests whose prefill ended in the window."""
    output, notes = output_tok_s(run, table)
    prompts = np.where(
        np.isnan(table.prompt_tokens), table.planned_prompt_tokens, table.prompt_tokens
    )
    inside = _inside(run, table.round_index, table.first(table.event_s))
    if np.isnan(table.prompt_tokens[inside]).any():
        notes = [*notes, UNKNOWN_PROMPTS]
    return output + _per_round(run, table.round_index[inside], prompts[inside]), notes


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


def _inside(run: Run, round_index: Ints, time_s: Floats) -> Bools:
    starts = np.array([one.window_s[0] for one in run.rounds], dtype=np.float64)
    ends = np.array([one.window_s[1] for one in run.rounds], dtype=np.float64)
    inside: Bools = (time_s >= starts[round_index]) & (time_s <= ends[round_index])
    return inside


def _per_round(run: Run, round_index: Ints, amounts: Floats) -> Floats:
    sums = np.bincount(round_index, weights=amounts, minlength=len(run.rounds))
    return np.asarray(sums / window_lengths(run), dtype=np.float64)
