"""What was measured: records, the run, its metrics, its validity, and what may be concluded."""

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
from vllm_slo.measure.summary import Latency, Summary, summarise
from vllm_slo.measure.throughput import Goodput

__all__ = [
    "ClientFacts",
    "EmulationFacts",
    "EngineInfo",
    "Goodput",
    "GpuFacts",
    "Latency",
    "Observer",
    "RequestRecord",
    "Round",
    "Run",
    "ServerFacts",
    "Summary",
    "Target",
    "summarise",
]
