"""A run against a row, its validity first; asked after each round and again at the end."""

from dataclasses import dataclass

from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.slo.judge import is_settled, judge
from vllm_slo.slo.limits import make_limit
from vllm_slo.slo.proposal import Proposal, propose
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.rule import Rule
from vllm_slo.slo.trust import Doubts, trust
from vllm_slo.slo.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """What a test says its traffic is about; `None` asserts nothing."""

    preemptions: bool | None = None
    prefix_hits: bool | None = None


def judged(run: Run, row: Row, *, rule: Rule, regime: Regime) -> Verdict:
    doubts = _doubts(run, row, regime)
    return judge(run, row, rule=rule, invalid=doubts.invalid, overload=doubts.overload)


def settled(run: Run, row: Row, *, rule: Rule) -> bool:
    """Whether another round would be wasted: the verdict stands, or the run is invalid."""
    doubts = trust(run, row)
    return is_settled(run, row, rule=rule, invalid=doubts.invalid, overload=doubts.overload)


def is_invalid(run: Run) -> bool:
    """Whether the run measured something else, whatever row would judge it."""
    return bool(trust(run, _as_measured(run)).invalid)


def proposed(
    run: Run, scenario: str, *, rule: Rule, regime: Regime, verdict: Verdict | None
) -> Proposal:
    """The limits that `run` supports, for `--slo-update`."""
    doubts = _doubts(run, None if verdict is None else verdict.row, regime)
    return propose(
        run,
        scenario,
        rule=rule,
        verdict=verdict,
        invalid=doubts.invalid,
        overload=doubts.overload,
    )


def _doubts(run: Run, row: Row | None, regime: Regime) -> Doubts:
    return trust(
        run,
        row or _as_measured(run),
        expect_preemptions=regime.preemptions,
        expect_prefix_hits=regime.prefix_hits,
    )


def _as_measured(run: Run) -> Row:
    """A row whose limit is what the run measured: how late its client may be follows from it."""
    ttft_ms = summarise(run).value("ttft_p99_ms")
    limits = () if not ttft_ms else (make_limit("ttft_p99_ms", ttft_ms),)
    return Row(scenario="", settings=(), limits=limits, provenance=Provenance(kind="measured"))
