"""What is sent: length distributions, arrival processes, traces, and the workloads of them."""

from vllm_slo.traffic.arrivals import ClosedLoop, Constant, Gamma, OnOff, OpenLoop, Poisson
from vllm_slo.traffic.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform
from vllm_slo.traffic.mixes import MixPlan, TrafficClass
from vllm_slo.traffic.scenarios import mix, mixed, trace, uniform
from vllm_slo.traffic.trace import Trace, read_trace
from vllm_slo.traffic.workload import PlannedRequest, Segment, Workload

__all__ = [
    "ClosedLoop",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "Lengths",
    "LogNormal",
    "MixPlan",
    "OnOff",
    "OpenLoop",
    "PlannedRequest",
    "Poisson",
    "Segment",
    "Trace",
    "TrafficClass",
    "Uniform",
    "Workload",
    "mix",
    "mixed",
    "read_trace",
    "trace",
    "uniform",
]
