"""`Proposal`: limits that a run supports, in plain values that cross processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_slo.measure.run import Run
from vllm_slo.slo.headroom import DEFAULT_HEADROOM, with_headroom
from vllm_slo.slo.judge import judge
from vllm_slo.slo.limits import make_limit
from vllm_slo.slo.row import Provenance, Row
from vllm_slo.slo.rule import Rule
from vllm_slo.slo.thresholds import USUAL_LIMITS
from vllm_slo.slo.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Measured limits for one row, with `headroom`, by `Limit.key`; `update` writes them.

    `refused` says why nothing may be written, and is empty where something may.
    """

    scenario: str
    settings: Mapping[str, Any]
    limits: Mapping[str, float] = field(default_factory=dict)
    concurrency: int | None = None
    vllm_version: str
    driver: str | None
    samples: int
    seed: int
    headroom: float
    refused: str = ""


def propose(
    run: Run,
    scenario: str,
    *,
    rule: Rule,
    verdict: Verdict | None = None,
    invalid: Sequence[str] = (),
    overload: Sequence[str] = (),
    headroom: float = DEFAULT_HEADROOM,
) -> Proposal:
    """The limits that `run` supports: what it measured, plus headroom.

    `verdict` is that of the row that the run was judged by; `None` where the file has no row for
    it, and then the usual limits are proposed. Refused are runs that are invalid, overloaded or
    INCONCLUSIVE, and limits that this same run would not pass: an estimate that needs more rounds
    than it had must not become a gate.
    """
    row = _usual_row(run, scenario) if verdict is None else verdict.row
    first = judge(run, row, rule=rule, invalid=invalid, overload=overload)
    candidates = tuple(
        replace(one.limit, value=value, advisory=False)
        for one in first.limits
        if one.limit.name != "goodput"  # an SLO that somebody sets, not a figure with headroom
        and one.measured is not None
        and (value := with_headroom(one.limit, one.measured, headroom)) is not None
    )
    second = judge(run, replace(row, limits=candidates), rule=rule)
    refused = _refusal(first, second, is_new=verdict is None, overload=overload)
    return Proposal(
        scenario=scenario,
        settings=run.settings.asked() if verdict is None else dict(row.settings),
        limits={} if refused else {limit.key: limit.value for limit in candidates},
        concurrency=run.concurrency,
        vllm_version=run.engine.vllm_version,
        driver=run.engine.driver,
        samples=first.requests,
        seed=run.rounds[0].seed if run.rounds else 0,
        headroom=headroom,
        refused=refused,
    )


def _usual_row(run: Run, scenario: str) -> Row:
    return Row(
        scenario=scenario,
        settings=tuple(sorted(run.settings.asked().items())),
        limits=tuple(make_limit(name, 1.0) for name in USUAL_LIMITS),
        provenance=Provenance(kind="measured"),
    )


def _refusal(first: Verdict, second: Verdict, *, is_new: bool, overload: Sequence[str]) -> str:
    if first.outcome is Outcome.INVALID:
        return f"the run is not valid: {first.reasons[0]}"
    if overload:
        return f"no steady state: {overload[0]}"
    if first.row.provenance.kind == "target":
        return "the row is a target, which somebody set and no measurement replaces"
    if not is_new and first.outcome is Outcome.INCONCLUSIVE:
        open_limits = [one for one in first.limits if one.outcome is Outcome.INCONCLUSIVE]
        why = f": {open_limits[0].limit.text} ({open_limits[0].message})" if open_limits else ""
        return f"the run is INCONCLUSIVE{why}"
    if not second.limits:
        return "nothing was measured"
    for one in second.limits:
        if one.outcome is not Outcome.PASS:
            return (
                f"{one.limit.text}, its own measured value with headroom, is {one.outcome} by the "
                f"same run ({one.message}): give it more rounds or more headroom"
            )
    return ""
