"""What a run says about one limit: samples per round, or one figure a round."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vllm_slo.measure.metrics import meets
from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import Summary
from vllm_slo.measure.table import Table
from vllm_slo.measure.throughput import drained_s
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Judged by the share of samples over `limit`, of which `allowed` may be.

    `by_round` has one array of samples per round; a failed request's are infinite. `shown` is the
    figure to show beside the limit.
    """

    by_round: list[Floats]
    limit: float
    allowed: float
    shown: float | None

    @property
    def count(self) -> int:
        return sum(len(one) for one in self.by_round)

    @property
    def over(self) -> int:
        return sum(int((one > self.limit).sum()) for one in self.by_round)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Judged by the mean over the rounds; `None` for a round that does not have the figure."""

    by_round: tuple[float | None, ...]


def evidence_of(
    limit: Limit, *, run: Run, table: Table, summary: Summary, row: Row
) -> Samples | Figures | None:
    """The evidence on a limit, or `None` where the run has no request of its class."""
    if limit.class_name is not None:
        if limit.class_name not in table.class_names:
            return None
        summary = summary.classes.get(limit.class_name, summary)
    if limit.quantile is not None:
        return Samples(
            by_round=summary.latencies[limit.metric].outcomes(),
            limit=limit.value,
            allowed=1 - limit.quantile,
            shown=summary.value(limit.name),
        )
    if limit.name == "goodput":
        return _goodput(limit, run, table, row)
    return Figures(by_round=_figures(limit.name, run, summary))


def utilisation(run: Run, table: Table) -> float | None:
    """The share of the server's `max_num_seqs` slots that decode, from the first token of a round
    to its last; `None` where it cannot be told."""
    seqs = run.settings.max_num_seqs
    if seqs is None or not len(table.event_s):
        return None
    spans = table.last(table.event_s) - table.first(table.event_s)
    by_round = [table.event_s[table.event_round == one] for one in range(len(run.rounds))]
    slots_s = seqs * sum(float(np.ptp(one)) for one in by_round if len(one))
    return float(np.nansum(spans)) / slots_s if slots_s > 0 else None


def goodput_limits(row: Row, class_name: str | None = None) -> dict[str, float]:
    """What a request must meet to be good, in milliseconds by metric: ttft, tpot, e2e.

    Of several percentiles of a metric the highest counts: a p50 is no bound on a single request.
    A class is held to its own limits, and to the row's where it has none. ITL is left out: its
    percentiles are over gaps, not requests.
    """
    chosen: dict[str, Limit] = {}
    for limit in row.judged:
        if limit.quantile is None or limit.metric == "itl":
            continue
        if limit.class_name not in (None, class_name):
            continue
        known = chosen.get(limit.metric)
        if known is None or _rank(limit) > _rank(known):
            chosen[limit.metric] = limit
    return {metric: limit.value for metric, limit in chosen.items()}


def _rank(limit: Limit) -> tuple[bool, float]:
    return limit.class_name is not None, limit.quantile or 0.0


def _goodput(limit: Limit, run: Run, table: Table, row: Row) -> Samples:
    missed = (~meets(table, goodput_limits(row, limit.class_name))).astype(np.float64)
    chosen = np.ones(len(table), dtype=bool)
    if limit.class_name is not None:
        chosen = table.class_index == table.class_names.index(limit.class_name)
    by_round = [missed[chosen & (table.round_index == one)] for one in range(len(run.rounds))]
    count = sum(len(one) for one in by_round)
    return Samples(
        by_round=by_round,
        limit=0.5,  # a request that missed is 1, a good one 0
        allowed=1 - limit.value,
        shown=1 - sum(float(one.sum()) for one in by_round) / count if count else None,
    )


def _figures(name: str, run: Run, summary: Summary) -> tuple[float | None, ...]:
    def of_server(value: int | None, per_minutes: float) -> float | None:
        return None if value is None or per_minutes <= 0 else value / per_minutes

    by_name: Mapping[str, tuple[float | None, ...]] = {
        "output_tok_s": summary.output_tok_s,
        "total_tok_s": summary.total_tok_s,
        "preemptions": tuple(of_server(one.server.preemptions, 1) for one in run.rounds),
        "preemptions_per_minute": tuple(
            of_server(one.server.preemptions, drained_s(one) / 60) for one in run.rounds
        ),
        "sm_utilisation_percent": tuple(
            one.gpu.sm_utilisation_percent if one.gpu is not None and one.gpu.samples else None
            for one in run.rounds
        ),
    }
    return tuple(None if value is None or np.isnan(value) else value for value in by_name[name])
