"""The load generator: the wire client, schedules, and the reading of streams."""

from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.stream import record_from_reads
from vllm_slo.load.target import HttpTarget
from vllm_slo.load.warmup import WarmUp

__all__ = ["Endpoint", "HttpTarget", "WarmUp", "record_from_reads"]
