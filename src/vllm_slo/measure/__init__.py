"""What was measured: records, the run, its metrics, its validity, and what may be concluded."""

from vllm_slo.measure.comparison import Comparison, compare
from vllm_slo.measure.intervals import (
    Interval,
    Outcome,
    ShareInterval,
    classify,
    mean_interval,
    over_limit,
    quantile_interval,
)
from vllm_slo.measure.invalid import Invalid
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import (
    ClientFacts,
    EmulationFacts,
    EngineInfo,
    GpuFacts,
    Observer,
    Round,
    Run,
    ServerFacts,
    Target,
)
from vllm_slo.measure.serialise import run_from_dict, run_to_dict
from vllm_slo.measure.summary import Latency, Summary, summarise
from vllm_slo.measure.throughput import Goodput
from vllm_slo.measure.validity import validate

__all__ = [
    "ClientFacts",
    "Comparison",
    "EmulationFacts",
    "EngineInfo",
    "Goodput",
    "GpuFacts",
    "Interval",
    "Invalid",
    "Latency",
    "Observer",
    "Outcome",
    "RequestRecord",
    "Round",
    "Run",
    "ServerFacts",
    "ShareInterval",
    "Summary",
    "Target",
    "classify",
    "compare",
    "mean_interval",
    "over_limit",
    "quantile_interval",
    "run_from_dict",
    "run_to_dict",
    "summarise",
    "validate",
]
