"""The one place where a run is judged against a row's limits."""

import math
from collections.abc import Sequence
from dataclasses import replace

from vllm_slo.measure.intervals import classify, least_effective, mean_interval
from vllm_slo.measure.queueing import Occupancy, occupancy
from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.measure.table import Table, tabulate
from vllm_slo.slo.evidence import Figures, Samples, evidence_of, utilisation
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row
from vllm_slo.slo.rule import Rule
from vllm_slo.slo.shares import Errors, judge_share, missing, more_of_mean
from vllm_slo.slo.verdict import LimitVerdict, Outcome, Verdict

# A p99 lets one request in a hundred fail. A figure of the server has no such share of its own, so
# that one is taken: with more failures it is a figure about less work than was asked for.
FAILED_TOLERATED = 0.01


def judge(
    run: Run,
    row: Row,
    *,
    rule: Rule,
    invalid: Sequence[str] = (),
    overload: Sequence[str] = (),
) -> Verdict:
    """Judges `run` by the limits of `row`.

    `invalid` are the reasons why the run measured something else than was asked: then nothing is
    judged. `overload` are those why it had no steady state: then a FAIL holds and a PASS does not.
    """
    table = tabulate(run)
    summary = summarise(run)
    errors = errors_of(row, rule)
    busy = utilisation(run, table)
    slots = _occupancy(run, table)
    judged = []
    for limit in row.limits:
        evidence = evidence_of(limit, run=run, table=table, summary=summary, row=row)
        if evidence is None:
            classes = ", ".join(table.class_names) or "none"
            why = f"no request is of class {limit.class_name}; classes are {classes}"
            verdict = _undecided(limit, why)
        elif isinstance(evidence, Samples):
            verdict = _judge_samples(
                limit, evidence, rule, errors, rounds=len(run.rounds), busy=busy, slots=slots
            )
        else:
            verdict = _judge_figures(
                limit, evidence, rule, errors, failed=summary.failed_share, busy=busy
            )
        judged.append(_after_all(verdict, invalid, overload))
    return Verdict(
        row=row,
        outcome=_overall([one.outcome for one in judged], is_invalid=bool(invalid)),
        limits=tuple(judged),
        reasons=(*invalid, *overload, *([] if row.judged else ["no limit of this row is judged"])),
        rounds=len(run.rounds),
        requests=summary.requests,
        failed=summary.failed,
    )


def is_settled(
    run: Run,
    row: Row,
    *,
    rule: Rule,
    invalid: Sequence[str] = (),
    overload: Sequence[str] = (),
) -> bool:
    """Whether no further round is worth running, asked after each round.

    By the `rounds` rule it looks only where `rule.looks` says; by the pooled rule as soon as the
    samples suffice, which does not depend on what they are.
    """
    if rule.kind == "rounds" and len(run.rounds) not in rule.looks:
        return False
    if len(run.rounds) < rule.least_rounds:
        return False  # one round alone never passes, and may look invalid by a single stray event
    verdict = judge(run, row, rule=rule, invalid=invalid, overload=overload)
    return verdict.is_conclusive or verdict.outcome is Outcome.INVALID


def errors_of(row: Row, rule: Rule) -> Errors:
    """The errors of one limit at one look, so that the row's hold over all looks.

    Any limit that fails makes a row FAIL, so the limits (those per class too) share the FAIL
    error. Only all together make it PASS: as long as one is broken, that one alone has to be
    taken in, and each keeps the whole PASS error (an intersection-union test; Berger,
    Technometrics 24, 1982).
    """
    looks = max(1, len(rule.looks))
    return Errors(
        fail=rule.fail_error / (max(1, len(row.judged)) * looks), pass_=rule.pass_error / looks
    )


def _occupancy(run: Run, table: Table) -> Occupancy | None:
    """How full the server was; `None` in a closed loop, whose queue is its own, or unknown."""
    seqs = run.settings.max_num_seqs
    if seqs is None or run.workload.is_closed_loop:
        return None
    return occupancy(table, slots=seqs)


def _judge_samples(
    limit: Limit,
    evidence: Samples,
    rule: Rule,
    errors: Errors,
    *,
    rounds: int,
    busy: float | None,
    slots: Occupancy | None,
) -> LimitVerdict:
    n, over = evidence.count, evidence.over
    if not n:
        return _undecided(limit, f"no sample of {limit.metric}")
    if rule.kind == "rounds":
        return judge_share(
            limit,
            evidence,
            errors=errors,
            rounds=rounds,
            least_rounds=rule.least_rounds,
            occupancy=slots,
            busy=busy,
        )
    allowed = math.floor(evidence.allowed * n + 1e-9)
    counted = f"{over:,} of {n:,} over it, {allowed:,} allowed"
    outcome, message = _pooled(over <= allowed, counted, rounds, rule)
    needed = least_effective(1 - evidence.allowed, error=rule.pass_error)
    if n < needed:
        outcome = Outcome.INCONCLUSIVE
        message = f"{counted}; {n:,} samples, and {limit.text} needs {needed:,}"
    return LimitVerdict(
        limit=limit, outcome=outcome, measured=evidence.shown, samples=n, message=message
    )


def _judge_figures(
    limit: Limit,
    evidence: Figures,
    rule: Rule,
    errors: Errors,
    *,
    failed: float,
    busy: float | None,
) -> LimitVerdict:
    known = [value for value in evidence.by_round if value is not None]
    rounds = len(evidence.by_round)
    if not known or len(known) < rounds:
        return _undecided(limit, f"{rounds - len(known)} of {rounds} rounds have no {limit.name}")
    mean, interval = sum(known) / rounds, None
    if rule.kind == "pooled":
        outcome, message = _pooled(limit.holds_for(mean), "mean of the rounds", rounds, rule)
    else:
        # The bound towards the limit errs with PASS, the one away from it with FAIL.
        towards = errors.pass_, errors.fail
        lower_error, upper_error = towards if limit.bound == "lower" else towards[::-1]
        found = mean_interval(known, lower_error=lower_error, upper_error=upper_error)
        interval = found.lower, found.upper
        outcome = Outcome(
            classify(found.lower, found.upper, limit.value)
            if limit.bound == "upper"
            else classify(-found.upper, -found.lower, -limit.value)
        )
        message = f"mean of {rounds} rounds"
        if rounds < rule.least_rounds:
            outcome = Outcome.INCONCLUSIVE
            message += f"; needs at least {rule.least_rounds - rounds} more rounds"
        elif outcome is Outcome.INCONCLUSIVE:
            message += "; " + missing(more_of_mean(found, limit.value, rounds), busy)
    if limit.value == 0 and limit.bound == "upper" and mean > 0:
        # None at all is a statement about every round, not about a mean.
        outcome, message = Outcome.FAIL, f"{sum(known):,.0f} in {rounds} rounds, none allowed"
    if failed > FAILED_TOLERATED:
        message = f"{failed:.1%} of the requests failed: a violation of every limit; {message}"
        if rounds >= rule.least_rounds:
            outcome = Outcome.FAIL
    return LimitVerdict(
        limit=limit,
        outcome=outcome,
        measured=mean,
        samples=rounds,
        interval=interval,
        message=message,
    )


def _pooled(holds: bool, what: str, rounds: int, rule: Rule) -> tuple[Outcome, str]:
    if not holds:
        return Outcome.FAIL, f"{what}; pooled, no error stated"
    if rounds < rule.least_rounds:
        return Outcome.INCONCLUSIVE, f"{what}; one round alone never passes"
    return Outcome.PASS, f"{what}; pooled, no error stated"


def _undecided(limit: Limit, why: str) -> LimitVerdict:
    return LimitVerdict(
        limit=limit, outcome=Outcome.INCONCLUSIVE, measured=None, samples=0, message=why
    )


def _after_all(
    verdict: LimitVerdict, invalid: Sequence[str], overload: Sequence[str]
) -> LimitVerdict:
    """The verdict once it is known whether the limit gates and whether the run can be trusted."""
    outcome, message = verdict.outcome, verdict.message
    if verdict.limit.advisory:
        outcome = Outcome.ADVISORY
    elif invalid:
        outcome, message = Outcome.INVALID, f"the run is not valid: {invalid[0]}"
    elif overload and outcome is Outcome.PASS:
        outcome, message = Outcome.INCONCLUSIVE, f"no steady state: {overload[0]}"
    return replace(verdict, outcome=outcome, message=message)


def _overall(outcomes: Sequence[Outcome], *, is_invalid: bool) -> Outcome:
    if is_invalid:
        return Outcome.INVALID
    if Outcome.FAIL in outcomes:
        return Outcome.FAIL
    judged = [one for one in outcomes if one is not Outcome.ADVISORY]
    if judged and all(one is Outcome.PASS for one in judged):
        return Outcome.PASS
    return Outcome.INCONCLUSIVE
