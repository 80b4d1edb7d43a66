"""`/metrics` of a vLLM server: its counters over a round, and gauges sampled during it."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import httpx
from prometheus_client.parser import text_string_to_metric_families

from vllm_slo.errors import MetricsError
from vllm_slo.measure.run import ServerFacts

# For each figure the names it has had, newest first, as samples are written ("_total" included).
# Read from vLLM 0.31.0 and 0.32.0 (vllm/v1/metrics/loggers.py); the later ones from older releases.
CANDIDATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "prefix_cache_hits": (
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
        ),
        "iteration_tokens_sum": ("vllm:iteration_tokens_total_sum",),
        "iteration_tokens_count": ("vllm:iteration_tokens_total_count",),
        "queue_time_sum": ("vllm:request_queue_time_seconds_sum",),
        "queue_time_count": ("vllm:request_queue_time_seconds_count",),
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    }
)
GAUGES = ("running", "waiting", "kv_use")
_GAUGES_MAX = ("kv_use",)  # a share: the fullest engine counts, where counts add up


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Every figure of `CANDIDATES` at one moment, counts summed over the server's engines."""

    values: Mapping[str, float]

    def __getitem__(self, figure: str) -> float:
        return self.values[figure]


def parse_metrics(
    text: str, *, version: str = "unknown", figures: Sequence[str] = tuple(CANDIDATES)
) -> MetricsSnapshot:
    """Reads `figures` from the Prometheus text that a vLLM server of `version` gives.

    Raises:
        MetricsError: the text is not Prometheus text, or a figure has none of its names; the
            message lists the names that were tried.
    """
    wanted = tuple(name for figure in figures for name in CANDIDATES[figure])
    # The text has hundreds of series; only these are worth the parser's time.
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    samples: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample.value)
    except ValueError as error:
        raise MetricsError(f"/metrics (vLLM {version}) is not Prometheus text: {error}") from None
    values = {}
    for figure in figures:
        names = CANDIDATES[figure]
        name = next((name for name in names if name in samples), None)
        if name is None:
            raise MetricsError(
                f"/metrics (vLLM {version}) lacks {figure}; tried {', '.join(names)}. If this "
                "version renamed it, add the name to vllm_slo.engine.metrics.CANDIDATES"
            )
        series = samples[name]
        value = max(series) if figure in _GAUGES_MAX else sum(series)
        if not math.isfinite(value):
            raise MetricsError(f"/metrics (vLLM {version}): {name} is {value}")
        values[figure] = value
    return MetricsSnapshot(values=MappingProxyType(values))


class MetricsObserver:
    """An `Observer` that gives `{"server": ServerFacts}`, and `{"warnings": ...}` if it must.

    Counters are read before and after the round; gauges every `interval_s` during it, by a thread.
    A server that stops answering in the round leaves the figures `None` and a warning; one that
    answers and lacks a figure is an error.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        version: str = "unknown",
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = base_url.rstrip("/") + "/metrics"
        self._headers = headers
        self._version = version
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._client: httpx.Client | None = None
        self._before: MetricsSnapshot | None = None
        self._sampler: _Sampler | None = None

    def begin(self) -> None:
        """Reads the counters and starts sampling.

        Raises:
            MetricsError: the server does not answer, or lacks a figure.
        """
        # One client for the round, made before time zero: making one loads certificates, and holds
        # the interpreter, and so the load generator, for tens of milliseconds. trust_env off: a
        # proxy of the environment has no business between us and the server.
        client = httpx.Client(headers=self._headers, timeout=self._timeout_s, trust_env=False)
        try:
            self._before = self._read(client)
        except httpx.HTTPError as error:
            client.close()
            raise MetricsError(f"{self._url} does not answer: {_reason(error)}") from None
        except MetricsError:
            client.close()
            raise
        self._client = client
        self._sampler = _Sampler(self, client)
        self._sampler.start()

    def end(self) -> Mapping[str, object]:
        """Stops sampling and gives the facts of the round.

        Raises:
            MetricsError: the server answers, and lacks a figure.
        """
        if self._before is None or self._sampler is None or self._client is None:
            raise RuntimeError("MetricsObserver.end called before begin")
        before, sampler, client = self._before, self._sampler, self._client
        self._before = self._sampler = self._client = None
        gauges = sampler.stop()
        try:
            after = self._settled(client)
        except httpx.HTTPError as error:
            warning = f"{self._url} stopped answering during the round: {_reason(error)}"
            return {"server": _facts(None, None, gauges), "warnings": (warning,)}
        finally:
            client.close()
        if after["generation_tokens"] < before["generation_tokens"]:
            warning = f"{self._url}: counters went back during the round: the server restarted"
            return {"server": _facts(None, None, gauges), "warnings": (warning,)}
        return {"server": _facts(before, after, [*gauges, after])}

    def _settled(self, client: httpx.Client) -> MetricsSnapshot:
        """The counters once no request runs: the last step is counted after it has streamed.

        Someone else's requests may run on for good, so the wait is bounded.
        """
        patience = time.monotonic() + 1.0
        while True:
            snapshot = self._read(client)
            if snapshot["running"] + snapshot["waiting"] == 0 or time.monotonic() > patience:
                return snapshot
            time.sleep(0.05)

    def _read(self, client: httpx.Client) -> MetricsSnapshot:
        return parse_metrics(self._text(client), version=self._version)

    def _text(self, client: httpx.Client) -> str:
        response = client.get(self._url)
        if response.status_code in (401, 403):
            raise MetricsError(f"{self._url} answers {response.status_code}: the API key is wrong")
        if response.status_code == 404:
            raise MetricsError(f"{self._url} answers 404: this server has no Prometheus metrics")
        response.raise_for_status()
        return response.text


class _Sampler(threading.Thread):
    """Fetches texts at an interval until it is stopped; keeps quiet about a dead server.

    The thread shares its interpreter with the load generator, so it parses nothing.
    """

    def __init__(self, observer: MetricsObserver, client: httpx.Client) -> None:
        super().__init__(name="metrics-sampler", daemon=True)
        self._observer = observer
        self._client = client
        self._stopped = threading.Event()
        self._texts: list[str] = []

    def run(self) -> None:
        while not self._stopped.wait(self._observer._interval_s):
            try:
                self._texts.append(self._observer._text(self._client))
            except (httpx.HTTPError, MetricsError):
                continue  # `end` asks once more, and says what is wrong

    def stop(self) -> Sequence[MetricsSnapshot]:
        self._stopped.set()
        self.join()
        version = self._observer._version
        return [parse_metrics(text, version=version, figures=GAUGES) for text in self._texts]


def _facts(
    before: MetricsSnapshot | None,
    after: MetricsSnapshot | None,
    gauges: Sequence[MetricsSnapshot],
) -> ServerFacts:
    """Differences of the counters where both are known, maxima of the gauges where any is."""
    highest = {
        name: max((snapshot[name] for snapshot in gauges), default=None)
        for name in ("kv_use", "running", "waiting")
    }
    running, waiting = highest["running"], highest["waiting"]
    sampled = ServerFacts(
        kv_use_max=highest["kv_use"],
        running_max=None if running is None else int(running),
        waiting_max=None if waiting is None else int(waiting),
    )
    if before is None or after is None:
        return sampled

    def grown(figure: str) -> float:
        return after[figure] - before[figure]

    return ServerFacts(
        preemptions=int(grown("preemptions")),
        kv_use_max=sampled.kv_use_max,
        running_max=sampled.running_max,
        waiting_max=sampled.waiting_max,
        queue_time_mean_s=_mean(grown("queue_time_sum"), grown("queue_time_count")),
        prompt_tokens=int(grown("prompt_tokens")),
        generation_tokens=int(grown("generation_tokens")),
        iteration_tokens_mean=_mean(grown("iteration_tokens_sum"), grown("iteration_tokens_count")),
        prefix_cache_hit_tokens=int(grown("prefix_cache_hits")),
    )


def _mean(total: float, count: float) -> float | None:
    return total / count if count > 0 else None


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
