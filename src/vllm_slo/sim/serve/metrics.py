"""`ServerMetrics`: the series of a vLLM server, under its names and with its meanings.

After `vllm/v1/metrics/loggers.py`, `stats.py` and `buckets.py` (0.32.0).
"""

from collections import Counter
from dataclasses import dataclass

from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.serve.engine import Pace
from vllm_slo.sim.serve.histogram import Exposition, Histogram

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    *(80, 160, 640, 2560),
)
_ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    80,
)
_ITERATION_TOKENS = tuple(2**n for n in (0, *range(3, 15)))
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

_COUNTERS = {
    "vllm:prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "vllm:prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "vllm:num_preemptions": "Cumulative number of preemption from the engine.",
    "vllm:prompt_tokens": "Number of prefill tokens processed.",
    "vllm:prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "vllm:generation_tokens": "Number of generation tokens processed.",
}
_HISTOGRAMS = {
    "vllm:iteration_tokens_total": "Histogram of number of tokens per engine_step.",
    "vllm:time_to_first_token_seconds": "Histogram of time to first token in seconds.",
    "vllm:inter_token_latency_seconds": "Histogram of inter-token latency in seconds.",
    "vllm:request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request."
    ),
    "vllm:e2e_request_latency_seconds": "Histogram of e2e request latency in seconds.",
    "vllm:request_queue_time_seconds": "Histogram of time spent in WAITING phase for request.",
    "vllm:request_inference_time_seconds": "Histogram of time spent in RUNNING phase for request.",
    "vllm:request_prefill_time_seconds": "Histogram of time spent in PREFILL phase for request.",
    "vllm:request_decode_time_seconds": "Histogram of time spent in DECODE phase for request.",
    "vllm:request_num_preemptions": "Histogram of the number of times a request was preempted.",
    "vllm:request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens)."
    ),
    "vllm:request_prompt_tokens": "Number of prefill tokens processed.",
    "vllm:request_generation_tokens": "Number of generation tokens processed.",
    "vllm:request_max_num_generation_tokens": (
        "Histogram of maximum number of requested generation tokens."
    ),
    "vllm:request_params_n": "Histogram of the n request parameter.",
    "vllm:request_params_max_tokens": "Histogram of the max_tokens request parameter.",
}
_BOUNDS = {
    "vllm:iteration_tokens_total": _ITERATION_TOKENS,
    "vllm:time_to_first_token_seconds": _TTFT,
    "vllm:inter_token_latency_seconds": _ITL,
    "vllm:request_time_per_output_token_seconds": _ITL,
    "vllm:request_num_preemptions": _PREEMPTIONS,
    "vllm:request_params_n": (1, 2, 5, 10, 20),
}
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True, kw_only=True)
class Times:
    """When things happened to a request; seconds of one clock."""

    received_s: float
    queued_s: float
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0


class ServerMetrics:
    """Counters and histograms since the server started."""

    def __init__(self, config: SchedulerConfig, *, model_name: str, device: str) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        token_bounds = _one_two_five(config.max_model_len)
        self.histograms = {
            name: Histogram(
                _BOUNDS.get(name, token_bounds if "seconds" not in name else (*_LATENCY, 7680))
            )
            for name in _HISTOGRAMS
        }
        self.finished = dict.fromkeys(_FINISH_REASONS, 0)
        self.rejections = 0
        self._config = config
        self._model_name = model_name
        self._device = device

    def scheduled(self, *, tokens: int, cached: int) -> None:
        """A request was admitted for the first time, `cached` of its tokens from the cache."""
        if self._config.enable_prefix_caching:
            self.counters["vllm:prefix_cache_queries"] += tokens
            self.counters["vllm:prefix_cache_hits"] += cached

    def prefilled(self, *, tokens: int, cached: int, ttft_s: float) -> None:
        """A request got its first token."""
        self.counters["vllm:prompt_tokens"] += tokens
        self.counters["vllm:prompt_tokens_cached"] += cached
        self.histograms["vllm:time_to_first_token_seconds"].observe(ttft_s)
        self.histograms["vllm:request_params_n"].observe(1)

    def iteration(
        self, *, prompt_tokens: int, generated: int, preempted: int, gaps: Counter[float]
    ) -> None:
        """A step's tokens; `gaps` are the times since each request's token before, counted."""
        self.counters["vllm:generation_tokens"] += generated
        self.counters["vllm:num_preemptions"] += preempted
        if generated:
            self.histograms["vllm:iteration_tokens_total"].observe(prompt_tokens + generated)
        latencies = self.histograms["vllm:inter_token_latency_seconds"]
        for gap_s, times in gaps.items():
            latencies.observe(gap_s, times)

    def request_done(
        self,
        times: Times,
        *,
        now_s: float,
        reason: str,
        prompt_tokens: int,
        cached: int,
        generated: int,
        max_tokens: int,
        preemptions: int,
    ) -> None:
        """A request is finished, at `now_s`."""
        self.finished[reason] += 1
        decode_s = times.last_token_s - times.first_token_s
        observed = {
            "vllm:e2e_request_latency_seconds": now_s - times.received_s,
            "vllm:request_queue_time_seconds": times.scheduled_s - times.queued_s,
            "vllm:request_prefill_time_seconds": times.first_token_s - times.scheduled_s,
            "vllm:request_inference_time_seconds": times.last_token_s - times.scheduled_s,
            "vllm:request_decode_time_seconds": decode_s,
            "vllm:request_time_per_output_token_seconds": (
                decode_s / (generated - 1) if generated > 1 else 0.0
            ),
            "vllm:request_num_preemptions": preemptions,
            "vllm:request_prefill_kv_computed_tokens": prompt_tokens - cached,
            "vllm:request_prompt_tokens": prompt_tokens,
            "vllm:request_generation_tokens": generated,
            "vllm:request_max_num_generation_tokens": generated,
            "vllm:request_params_max_tokens": max_tokens,
        }
        for name, value in observed.items():
            self.histograms[name].observe(value)

    def text(self, *, running: int, waiting: int, usage: float, pace: Pace) -> str:
        """What `/metrics` says, with the gauges as they are now."""
        out = Exposition({"model_name": self._model_name, "engine": "0"})
        out.family(
            "vllm:num_requests_running",
            "gauge",
            "Number of requests in model execution batches.",
        )
        out.sample("vllm:num_requests_running", running)
        out.family(
            "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."
        )
        out.sample("vllm:num_requests_waiting", waiting)
        out.family(
            "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."
        )
        out.sample("vllm:kv_cache_usage_perc", usage)
        for name, documentation in _COUNTERS.items():
            out.family(f"{name}_total", "counter", documentation)
            out.sample(f"{name}_total", self.counters[name])
        out.family(
            "vllm:request_success_total", "counter", "Count of successfully processed requests."
        )
        for reason, count in self.finished.items():
            out.sample("vllm:request_success_total", count, finished_reason=reason)
        for name, documentation in _HISTOGRAMS.items():
            out.histogram(name, documentation, self.histograms[name])
        out.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        out.sample(
            "vllm:cache_config_info",
            1,
            block_size=str(self._config.block_size),
            enable_prefix_caching=str(self._config.enable_prefix_caching),
            num_gpu_blocks=str(self._config.num_gpu_blocks),
        )
        self._own(out, pace)
        return out.text()

    def _own(self, out: Exposition, pace: Pace) -> None:
        """What vLLM has not: that this is a simulation, and how well it kept time."""
        out.family("vllm_slo_sim_info", "gauge", "This server simulates the device it names.")
        out.sample("vllm_slo_sim_info", 1, device=self._device)
        out.family("vllm_slo_sim_steps_total", "counter", "Engine steps.")
        out.sample("vllm_slo_sim_steps_total", pace.steps)
        out.family(
            "vllm_slo_sim_late_steps_total",
            "counter",
            "Engine steps whose tokens came later than the modelled device's.",
        )
        out.sample("vllm_slo_sim_late_steps_total", pace.late_steps)
        out.family(
            "vllm:admission_rejections_total",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
        )
        out.sample("vllm:admission_rejections_total", self.rejections, reason="max_num_queued_reqs")


def _one_two_five(largest: int) -> tuple[int, ...]:
    bounds: list[int] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > largest:
                return tuple(bounds)
            bounds.append(mantissa * scale)
        scale *= 10
