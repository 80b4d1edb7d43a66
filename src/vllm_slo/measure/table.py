"""`Table`: the records of a run as columns, so that metrics are array expressions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """n requests and their e token events, as columns; NaN stands for what is not known.

    Per request, shape (n,): `round_index`, `class_index` (into `class_names`), times in seconds
    from the start of the round, token counts. Per event, shape (e,), in request order:
    `event_s`, `event_tokens`; request i has `events[i]` of them.
    """

    class_names: tuple[str, ...]
    round_index: Ints
    class_index: Ints
    ok: Bools
    scheduled_s: Floats
    sent_s: Floats
    finished_s: Floats
    planned_prompt_tokens: Floats
    planned_output_tokens: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    events: Ints
    event_s: Floats
    event_tokens: Floats

    def __len__(self) -> int:
        return len(self.ok)

    def where(self, chosen: Bools) -> "Table":
        """The requests that `chosen`, shape (n,), marks, with their events."""
        of_events = np.repeat(chosen, self.events)
        kept = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if column.name in ("event_s", "event_tokens"):
                kept[column.name] = value[of_events]
            elif column.name != "class_names":
                kept[column.name] = value[chosen]
        return Table(class_names=self.class_names, **kept)

    @property
    def first_at(self) -> Ints:
        """Where each request's events begin, shape (n,)."""
        return np.cumsum(self.events) - self.events

    @property
    def event_round(self) -> Ints:
        return np.repeat(self.round_index, self.events)

    def first(self, column: Floats) -> Floats:
        """The first event's value of an event column, shape (n,); NaN without events."""
        return self._at(column, self.first_at)

    def last(self, column: Floats) -> Floats:
        return self._at(column, self.first_at + self.events - 1)

    def _at(self, column: Floats, at: Ints) -> Floats:
        has_events = self.events > 0
        values = np.full(len(self), np.nan)
        values[has_events] = column[at[has_events]]
        return values

    @property
    def known_event_tokens(self) -> Bools:
        """Whether the server said how many tokens each event carried, shape (n,)."""
        known = np.ones(len(self), dtype=bool)
        has_events = self.events > 0
        known[has_events] = ~np.isnan(self.event_tokens[self.first_at[has_events]])
        return known


def tabulate(run: Run) -> Table:
    """The columns of every record of `run`, round by round."""
    records = run.records
    rounds = [len(one.records) for one in run.rounds]
    names: dict[str, int] = {}
    classes = [names.setdefault(r.class_name, len(names)) for r in records]
    events = np.array([len(r.event_s) for r in records], dtype=np.int64)
    return Table(
        class_names=tuple(names),
        round_index=np.repeat(np.arange(len(rounds)), rounds),
        class_index=np.array(classes, dtype=np.int64),
        ok=np.array([r.error is None for r in records], dtype=bool),
        scheduled_s=_floats([r.scheduled_s for r in records]),
        sent_s=_floats([r.sent_s for r in records]),
        finished_s=_floats([r.finished_s for r in records]),
        planned_prompt_tokens=_floats([r.planned_prompt_tokens for r in records]),
        planned_output_tokens=_floats([r.planned_output_tokens for r in records]),
        prompt_tokens=_floats([r.prompt_tokens for r in records]),
        output_tokens=_floats([r.output_tokens for r in records]),
        events=events,
        event_s=_joined([r.event_s for r in records]),
        event_tokens=_event_tokens(records, events),
    )


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _joined(parts: Sequence[NDArray[np.generic]]) -> Floats:
    return np.concatenate(parts).astype(np.float64, copy=False) if parts else np.empty(0)


def _event_tokens(records: Sequence[RequestRecord], events: Ints) -> Floats:
    unknown = [i for i, r in enumerate(records) if r.event_tokens is None]
    if not unknown:
        return _joined([r.event_tokens for r in records if r.event_tokens is not None])
    return _joined(
        [
            np.full(n, np.nan) if r.event_tokens is None else r.event_tokens
            for r, n in zip(records, events.tolist(), strict=True)
        ]
    )
