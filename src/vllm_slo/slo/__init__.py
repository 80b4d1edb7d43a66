"""Service-level objectives: threshold files, verdicts, linting, updating, comparing builds."""

from vllm_slo.slo.compare import BuildVerdict, LimitComparison, compare_builds
from vllm_slo.slo.evidence import goodput_limits
from vllm_slo.slo.findings import Finding
from vllm_slo.slo.judge import is_settled, judge
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.lint import lint
from vllm_slo.slo.proposal import Proposal, propose
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.rule import Rule, rule_for
from vllm_slo.slo.thresholds import Thresholds, find
from vllm_slo.slo.trust import Doubts, trust
from vllm_slo.slo.update import Update, update
from vllm_slo.slo.verdict import LimitVerdict, Outcome, Verdict

__all__ = [
    "BuildVerdict",
    "Doubts",
    "Finding",
    "Limit",
    "LimitComparison",
    "LimitVerdict",
    "Outcome",
    "Proposal",
    "Provenance",
    "Row",
    "Rule",
    "Thresholds",
    "Update",
    "Verdict",
    "compare_builds",
    "find",
    "goodput_limits",
    "is_settled",
    "judge",
    "lint",
    "propose",
    "rule_for",
    "trust",
    "update",
]
