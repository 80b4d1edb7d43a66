"""The `slo` fixture: judges a run against its row and turns the verdict into the test's outcome."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from vllm_slo._pytest.benchmark import add_entry, wants_entries
from vllm_slo._pytest.judging import Regime, judged, proposed
from vllm_slo._pytest.outcome import (
    DIED,
    PROPOSALS,
    RESULTS,
    UNDECIDED,
    InconclusiveError,
    InconclusiveSkip,
)
from vllm_slo._pytest.state import SloSession
from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.report.build import died_in, result_of
from vllm_slo.report.result import LimitResult, Result
from vllm_slo.slo.row import Row
from vllm_slo.slo.thresholds import USUAL_LIMITS
from vllm_slo.slo.verdict import Outcome, Verdict


@dataclass(slots=True)
class Slo:
    """Judges the runs of one test."""

    session: SloSession
    request: pytest.FixtureRequest
    _notes: dict[str, float] = field(default_factory=dict)

    def check(
        self,
        run: Run,
        *,
        row: str,
        expect_preemptions: bool | None = None,
        expect_prefix_hits: bool | None = None,
    ) -> Verdict | None:
        """Judges `run` by the threshold file's row for scenario `row` and the run's settings.

        `expect_preemptions` asserts the regime: a run without any, where some are meant, measured
        something else and is invalid; so is the reverse. With `--slo-update` a row that is not
        there yet is proposed instead of judged, and `None` is returned.

        Raises:
            Failed: the verdict is FAIL, the server died under the load, or the verdict is
                INCONCLUSIVE and `--slo-inconclusive=fail`.
            Skipped: the verdict is INCONCLUSIVE and `--slo-inconclusive=skip`.
            ThresholdsError: the file has no such row; the text has the lines to add.
        """
        session = self.session
        regime = Regime(preemptions=expect_preemptions, prefix_hits=expect_prefix_hits)
        limits = self._row(run, row)
        if limits is None:
            refused = self._propose(run, row, regime=regime, verdict=None)
            if refused:
                self._give_up(f"no row judges {row}, and no limits were written: {refused}", run)
            return None
        verdict = judged(run, limits, rule=session.rule, regime=regime)
        result = result_of(
            verdict,
            run,
            nodeid=self.request.node.nodeid,
            thresholds=str(session.thresholds.path),
            notes=self._notes,
            with_records=session.json_path is not None,
        )
        self._notes = {}
        self._record(result, run)
        is_replaced = session.options["update"] and not self._propose(
            run, row, regime=regime, verdict=verdict
        )
        if not (is_replaced and session.options["allow-loosen"]):
            self._conclude(result)
        return verdict

    def note(self, **figures: float) -> None:
        """Puts figures beside the next `check` in the table and the report; they are not judged."""
        self._notes.update(figures)

    def note_ratio(self, run: Run, base: Run, *names: str) -> None:
        """Notes `run`'s figures as ratios to those of `base`: `ttft_p99_ms to uniform`."""
        of, to = summarise(run), summarise(base)
        for name in names:
            above, below = of.value(name), to.value(name)
            if above is not None and below:
                self._notes[f"{name} to {base.workload.name}"] = above / below

    def _row(self, run: Run, scenario: str) -> Row | None:
        session = self.session
        if session.options["update"] and not session.has_row(scenario, run.settings):
            return None
        measured = summarise(run)
        figures = {
            name: value for name in USUAL_LIMITS if (value := measured.value(name)) is not None
        }
        return session.thresholds.row(scenario, run.settings, figures=figures)

    def _propose(self, run: Run, scenario: str, *, regime: Regime, verdict: Verdict | None) -> str:
        """Hands limits that `run` supports to the session's end; gives why not, or nothing."""
        proposal = proposed(run, scenario, rule=self.session.rule, regime=regime, verdict=verdict)
        self.session.in_progress = None
        self.request.node.stash.setdefault(PROPOSALS, []).append(proposal)
        return proposal.refused

    def _record(self, result: Result, run: Run) -> None:
        self.session.in_progress = None
        self.request.node.stash.setdefault(RESULTS, []).append(result)
        self.request.node.user_properties.extend(_properties(result))
        if wants_entries(self.request.config):
            ttfts = [ttft for record in run.records if (ttft := record.ttft_s) is not None]
            add_entry(self.request, result, ttfts)

    def _conclude(self, result: Result) -> None:
        if result.outcome == Outcome.PASS:
            return
        text = explain(result, rerun=_rerun(self.request, self.session))
        if result.server_died is not None:
            self.request.node.stash[DIED] = True
        if result.outcome == Outcome.FAIL or result.server_died is not None:
            pytest.fail(text, pytrace=False)
        self._leave_open(text)

    def _give_up(self, why: str, run: Run) -> None:
        """`--slo-update` found no row and wrote none: that is never silently a pass."""
        text = f"INCONCLUSIVE: {why}\nrun it again: {_rerun(self.request, self.session)}"
        if died_in(run):
            self.request.node.stash[DIED] = True
            pytest.fail(text, pytrace=False)
        self._leave_open(text)

    def _leave_open(self, text: str) -> None:
        self.request.node.stash[UNDECIDED] = text
        mode = self.session.options["inconclusive"]
        if mode == "fail":
            raise InconclusiveError(text, pytrace=False)
        if mode == "skip":
            raise InconclusiveSkip(text)


def explain(result: Result, *, rerun: str) -> str:
    """The failure's text: the row, each limit that did not pass, the log, the next command."""
    missed = [one for one in result.limits if one.outcome not in (Outcome.PASS, Outcome.ADVISORY)]
    worst = next((one for one in missed if one.outcome == result.outcome), None)
    first = f"{result.outcome}: {result.row_title}"
    if result.reasons and (result.outcome != Outcome.FAIL or result.server_died):
        first += f": {result.reasons[0]}"
    elif worst is not None:
        first += f": {worst.text}, {_measured(worst)}"
    lines = [first]
    lines += [f"  {one.outcome} {one.text}: {_measured(one)} ({one.message})" for one in missed]
    lines += [f"  {reason}" for reason in result.reasons]
    if result.failed_requests:
        lines.append(f"  {result.failed_requests} of {result.requests} requests failed:")
        lines += [f"    {count} x {error}" for error, count in list(result.failures.items())[:5]]
    if result.server_died is not None and not any(result.server_died in r for r in result.reasons):
        lines.append(f"  the server died: {result.server_died}")
    lines.append(f"row: {result.thresholds}:{result.line}")
    server_log = result.engine.get("server_log")
    if server_log:
        lines.append(f"server log: {server_log}")
    lines.append(f"run it again: {rerun}")
    return "\n".join(lines)


def _measured(limit: LimitResult) -> str:
    return "nothing measured" if limit.measured is None else f"measured {limit.measured:,.4g}"


def _rerun(request: pytest.FixtureRequest, session: SloSession) -> str:
    given = [
        f"--slo-{name}={session.options.shown(name)}"
        for name, source in session.options.sources.items()
        if source.startswith("--") and session.options[name] is not True
    ]
    # As seen from where pytest was called, and without the group that pytest-xdist adds.
    path = os.path.relpath(request.path, session.config.invocation_params.dir)
    classes = [node.name for node in request.node.listchain() if isinstance(node, pytest.Class)]
    return shlex.join(["pytest", "::".join([path, *classes, request.node.name]), *given])


def _properties(result: Result) -> Sequence[tuple[str, object]]:
    prefix = f"slo.{result.row}"
    yield_ = [(f"{prefix}.outcome", str(result.outcome)), (f"{prefix}.settings", result.settings)]
    figures = [
        (f"{prefix}.{name}", round(value, 3))
        for name, value in result.figures.items()
        if value is not None
    ]
    return [*yield_, *figures]
