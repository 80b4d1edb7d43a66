"""pytest-vllm-slo: gate vLLM upgrades and scheduler settings on TTFT, TPOT and throughput."""

from vllm_slo.errors import SloError
from vllm_slo.settings import UNLIMITED, Settings

__all__ = ["UNLIMITED", "Settings", "SloError"]
