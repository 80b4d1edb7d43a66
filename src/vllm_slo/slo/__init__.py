"""Service-level objectives: threshold files, verdicts, linting, updating, comparing builds."""

from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.thresholds import Thresholds, find

__all__ = ["Limit", "Provenance", "Row", "Thresholds", "find"]
