"""`Summary`: a run as the figures of reports and threshold files, pooled and per class."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vllm_slo.measure import metrics, throughput
from vllm_slo.measure.metrics import LATENCIES, PER_REQUEST
from vllm_slo.measure.run import Run
from vllm_slo.measure.table import Floats, Ints, Table, tabulate
from vllm_slo.measure.throughput import Goodput

_LATENCY_NAME = re.compile(
    r"(ttft|tpot|itl|e2e|send_lag)_(?:(mean|min|max)|p(\d{1,3}|\d+\.\d+))_ms"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Latency:
    """One latency metric, pooled over the rounds; worked out when it is first asked for."""

    metric: str
    table: Table = field(repr=False)
    round_count: int

    @cached_property
    def _samples(self) -> tuple[Floats, Ints]:
        if self.metric == "itl":
            return metrics.itl_ms(self.table)
        values = PER_REQUEST[self.metric](self.table)
        defined = np.flatnonzero(~np.isnan(values))
        return values[defined], defined

    @property
    def values_ms(self) -> Floats:
        """The samples, shape (n,), in the order of the records."""
        return self._samples[0]

    @property
    def requests(self) -> Ints:
        """The request of each sample, as its place among the records, shape (n,)."""
        return self._samples[1]

    @property
    def without(self) -> Mapping[str, int]:
        """How many requests have no sample, by reason."""
        return metrics.undefined_because(self.table, self.metric)

    @property
    def n(self) -> int:
        return len(self.values_ms)

    @property
    def mean(self) -> float | None:
        return float(self.values_ms.mean()) if self.n else None

    @property
    def max(self) -> float | None:
        return float(self.values_ms.max()) if self.n else None

    @property
    def min(self) -> float | None:
        return float(self.values_ms.min()) if self.n else None

    def quantile(self, q: float) -> float | None:
        """By numpy's linear rule, as `vllm bench serve` shows it; `None` without samples."""
        return float(np.quantile(self.values_ms, q)) if self.n else None

    @property
    def p50(self) -> float | None:
        return self.quantile(0.50)

    @property
    def p90(self) -> float | None:
        return self.quantile(0.90)

    @property
    def p95(self) -> float | None:
        return self.quantile(0.95)

    @property
    def p99(self) -> float | None:
        return self.quantile(0.99)

    def outcomes(self) -> list[Floats]:
        """What verdicts count, an array for each round: the samples of requests that succeeded,
        and infinity for every sample that a failed request owes, since it violates every limit.

        A failed request owes one sample; of ITL, as many as it had gaps planned.
        """
        table, values, of_request = self.table, self.values_ms, self.requests
        kept = table.ok[of_request]
        values, rounds = values[kept], table.round_index[of_request[kept]]
        gaps = np.maximum(table.planned_output_tokens - 1, 0)
        owes = {"itl": gaps, "tpot": np.minimum(gaps, 1)}.get(self.metric, np.ones(len(table)))
        owed = np.bincount(table.round_index, owes * ~table.ok, self.round_count).astype(int)
        at = np.searchsorted(rounds, np.arange(self.round_count + 1)).tolist()
        return [
            np.concatenate((values[at[i] : at[i + 1]], np.full(n, np.inf)))
            for i, n in enumerate(owed.tolist())
        ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """A run's figures. Per-round figures are tuples, in the order of the rounds.

    `value` gives any of them under the name that threshold files use. `approximate` says which
    figures rest on what the server did not tell. `classes` has one summary for each traffic
    class where there are several; server and machine figures are `None` in those.
    """

    requests: int
    failed: int
    failures: Mapping[str, int]
    latencies: Mapping[str, Latency]
    window_s: tuple[float, ...]
    output_tok_s: tuple[float, ...]
    total_tok_s: tuple[float, ...]
    approximate: tuple[str, ...] = ()
    goodput: Goodput | None = None
    preemptions: int | None = None
    preemptions_per_minute: float | None = None
    kv_use_max: float | None = None
    sm_utilisation_percent: float | None = None
    classes: Mapping[str, "Summary"] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return len(self.window_s)

    @property
    def failed_share(self) -> float:
        return self.failed / self.requests if self.requests else 0.0

    def value(self, name: str) -> float | None:
        """A figure by its name in threshold files; `None` where the run does not have it.

        `<metric>_<mean|min|max|pNN>_ms` for ttft, tpot, itl, e2e and send_lag, with any NN (p999
        is 99.9), output_tok_s and total_tok_s (means over the rounds), goodput (a share),
        goodput_rps, failed_share, preemptions, preemptions_per_minute, kv_use_max,
        sm_utilisation_percent.

        Raises:
            KeyError: no figure has that name.
        """
        matched = _LATENCY_NAME.fullmatch(name)
        if matched:
            metric, plain, digits = matched.groups()
            latency = self.latencies[metric]
            if plain:
                return {"mean": latency.mean, "min": latency.min, "max": latency.max}[plain]
            return latency.quantile(quantile_of(digits))
        if name in ("output_tok_s", "total_tok_s"):
            return _known(float(np.mean(getattr(self, name)))) if self.rounds else None
        if name in ("goodput", "goodput_rps"):
            if self.goodput is None:
                return None
            return _known(self.goodput.share if name == "goodput" else self.goodput.rate_rps)
        if name in _PLAIN:
            figure = getattr(self, name)
            return None if figure is None else float(figure)
        raise KeyError(f"no figure is called {name!r}")

    def samples(self, name: str) -> int:
        """How many samples `value(name)` rests on: requests, gaps, or rounds."""
        matched = _LATENCY_NAME.fullmatch(name)
        if matched:
            return self.latencies[matched[1]].n
        if name in ("goodput", "goodput_rps", "failed_share"):
            return self.requests
        return 0 if self.value(name) is None else self.rounds


_PLAIN = (
    "failed_share",
    "preemptions",
    "preemptions_per_minute",
    "kv_use_max",
    "sm_utilisation_percent",
)


def quantile_of(digits: str) -> float:
    """`99` is 0.99, `999` and `99.9` are 0.999, `100` is 1."""
    if digits == "100" or "." in digits:
        return float(digits) / 100
    return float(f"0.{digits}") if len(digits) > 1 else float(digits) / 100


def summarise(run: Run, *, goodput_limits_ms: Mapping[str, float] | None = None) -> Summary:
    """The figures of `run`.

    `goodput_limits_ms` are limits on single requests, by metric (ttft, tpot, itl, e2e); without
    them there is no goodput.
    """
    table = tabulate(run)
    errors = [record.error for one in run.rounds for record in one.records]
    limits = None if goodput_limits_ms is None else dict(goodput_limits_ms)
    classes = {}
    if len(table.class_names) > 1:
        for index, name in enumerate(table.class_names):
            chosen = table.class_index == index
            part = [error for error, is_in in zip(errors, chosen.tolist(), strict=True) if is_in]
            classes[name] = _summary(run, table.where(chosen), part, limits)
    return _summary(run, table, errors, limits, classes=classes, **_of_server(run))


def _summary(
    run: Run,
    table: Table,
    errors: list[str | None],
    limits: dict[str, float] | None,
    **more: object,
) -> Summary:
    rates = throughput.token_rates(run, table)
    failures = Counter(error for error in errors if error is not None)
    return Summary(
        requests=len(table),
        failed=int((~table.ok).sum()),
        failures=dict(failures.most_common()),
        latencies={
            name: Latency(metric=name, table=table, round_count=len(run.rounds))
            for name in LATENCIES
        },
        window_s=tuple(throughput.window_lengths(run).tolist()),
        output_tok_s=tuple(rates.output_tok_s.tolist()),
        total_tok_s=tuple(rates.total_tok_s.tolist()),
        approximate=rates.approximate,
        goodput=None if limits is None else throughput.goodput(run, table, limits),
        **more,  # type: ignore[arg-type]
    )


def _of_server(run: Run) -> dict[str, object]:
    preemptions = [one.server.preemptions for one in run.rounds]
    counted = [count for count in preemptions if count is not None]
    complete = bool(run.rounds) and len(counted) == len(preemptions)
    minutes = sum(throughput.drained_s(one) for one in run.rounds) / 60 if complete else 0.0
    kv_use = [one.server.kv_use_max for one in run.rounds if one.server.kv_use_max is not None]
    gpus = [one.gpu for one in run.rounds if one.gpu is not None and one.gpu.samples]
    samples = sum(gpu.samples for gpu in gpus)
    return {
        "preemptions": sum(counted) if complete else None,
        "preemptions_per_minute": sum(counted) / minutes if minutes > 0 else None,
        "kv_use_max": max(kv_use) if kv_use else None,
        "sm_utilisation_percent": sum(g.sm_utilisation_percent * g.samples for g in gpus) / samples
        if samples
        else None,
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
