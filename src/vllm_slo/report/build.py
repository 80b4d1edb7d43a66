"""From a verdict and its run to the `Result` that tables and files show."""

from collections.abc import Mapping

from vllm_slo.measure.run import Run
from vllm_slo.measure.serialise import engine_to_dict, run_to_dict
from vllm_slo.measure.summary import summarise
from vllm_slo.report.result import FIGURES, LimitResult, Result
from vllm_slo.slo.verdict import Verdict


def result_of(
    verdict: Verdict,
    run: Run,
    *,
    nodeid: str,
    thresholds: str,
    notes: Mapping[str, float],
    with_records: bool,
) -> Result:
    """The verdict on `run`, with its figures and, if asked for, raw records, in plain values."""
    summary = summarise(run)
    return Result(
        nodeid=nodeid,
        row=verdict.row.scenario,
        row_title=verdict.row.title,
        line=verdict.row.line,
        settings=str(run.settings),
        engine=engine_to_dict(run.engine),
        thresholds=thresholds,
        outcome=str(verdict.outcome),
        reasons=verdict.reasons,
        limits=tuple(
            LimitResult(
                text=one.limit.text,
                outcome=str(one.outcome),
                measured=one.measured,
                samples=one.samples,
                interval=one.interval,
                effective_samples=one.effective_samples,
                message=one.message,
            )
            for one in verdict.limits
        ),
        figures={name: summary.value(name) for name in FIGURES},
        notes=dict(notes),
        rounds=verdict.rounds,
        requests=verdict.requests,
        failed_requests=verdict.failed,
        failures=dict(summary.failures),
        warnings=tuple(dict.fromkeys(w for one in run.rounds for w in one.warnings)),
        server_died=died_in(run),
        run=run_to_dict(run) if with_records else {},
    )


def died_in(run: Run) -> str | None:
    """Why the server did not outlive the run; `None` if it did."""
    return next((one.server_died for one in run.rounds if one.server_died), None)
