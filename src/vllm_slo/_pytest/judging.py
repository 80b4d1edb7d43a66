"""A run against a row, its validity first; asked after each round and again at the end."""

from dataclasses import dataclass

from vllm_slo.measure.run import Run
from vllm_slo.slo.judge import is_settled, judge
from vllm_slo.slo.proposal import Proposal, propose
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.rule import Rule
from vllm_slo.slo.trust import Doubts, trust
from vllm_slo.slo.verdict import Verdict

# A run that no row judges yet is doubted as one that has no limits.
UNLIMITED_ROW = Row(scenario="", settings=(), limits=(), provenance=Provenance(kind="measured"))


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
    return bool(trust(run, UNLIMITED_ROW).invalid)


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
        row or UNLIMITED_ROW,
        expect_preemptions=regime.preemptions,
        expect_prefix_hits=regime.prefix_hits,
    )
