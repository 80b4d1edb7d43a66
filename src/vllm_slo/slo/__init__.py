"""Service-level objectives: threshold files, verdicts, linting, updating, comparing builds."""

from vllm_slo.slo.evidence import goodput_limits
from vllm_slo.slo.judge import is_settled, judge
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.rule import Rule, rule_for
from vllm_slo.slo.thresholds import Thresholds, find
from vllm_slo.slo.trust import Doubts, trust
from vllm_slo.slo.verdict import LimitVerdict, Outcome, Verdict

__all__ = [
    "Doubts",
    "Limit",
    "LimitVerdict",
    "Outcome",
    "Provenance",
    "Row",
    "Rule",
    "Thresholds",
    "Verdict",
    "find",
    "goodput_limits",
    "is_settled",
    "judge",
    "rule_for",
    "trust",
]
