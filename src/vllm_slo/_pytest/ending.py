"""The end of a session: what is written, what is printed, and the exit status."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from vllm_slo._pytest.outcome import UNDECIDED_FIELD, exit_status
from vllm_slo._pytest.state import SloSession
from vllm_slo.errors import SloError

if TYPE_CHECKING:
    from vllm_slo.slo.update import Update

GITHUB_SUMMARY = "GITHUB_STEP_SUMMARY"
_TO_CONTROLLER = "vllm_slo"


def finish(session: SloSession, pytest_session: pytest.Session) -> None:
    """Stops the server; on the controller writes what is to be written and sets the exit status.

    Nothing is raised: the results of an hour must still be printed when one file is not written.
    """
    is_whole = True
    try:
        session.pool.close()
    except SloError as error:
        is_whole = False
        session.note(str(error))
    if session.is_worker:
        session.config.workeroutput[_TO_CONTROLLER] = {  # type: ignore[attr-defined]
            "notices": session.notices,
            "ran_everything": session.ran_everything,
        }
        return
    if pytest_session.shouldfail or pytest_session.shouldstop:
        session.ran_everything = False
    if session.collected.proposals:
        try:
            session.update = write_limits(session)
        except SloError as error:
            is_whole = False
            session.note(f"--slo-update: nothing written: {error}")
    status = int(pytest_session.exitstatus)
    if session.options["exit-codes"] and status in (0, int(pytest.ExitCode.TESTS_FAILED)):
        status = exit_status(session.collected) or status
    for write in (write_json_report, write_github_summary):
        try:
            write(session, status)
        except OSError as error:
            is_whole = False
            session.note(f"{error.filename or write.__name__}: not written: {error.strerror}")
    if not is_whole and status == 0:
        status = int(pytest.ExitCode.TESTS_FAILED)
    if status != int(pytest_session.exitstatus):
        pytest_session.exitstatus = status


def take_over(session: SloSession, output: Mapping[str, Any]) -> None:
    """What a pytest-xdist worker knows and its reports do not carry."""
    told = output.get(_TO_CONTROLLER, {})
    for text in told.get("notices", ()):
        session.note(text)
    session.ran_everything &= told.get("ran_everything", False)


def write_limits(session: SloSession) -> "Update":
    """`--slo-update`: all proposals of the session, written once.

    Raises:
        SloError: the file cannot be written.
    """
    import datetime

    from vllm_slo.slo.update import update

    spec = session.spec
    return update(
        session.thresholds_path,
        session.collected.proposals,
        device=spec.device_slug(),
        model=spec.model_slug,
        today=datetime.datetime.now(datetime.UTC).date(),
        allow_loosen=session.options["allow-loosen"],
    )


def write_json_report(session: SloSession, status: int) -> None:
    """`--slo-json`.

    Raises:
        OSError: the file cannot be written.
    """
    if session.json_path is None or session.config.option.collectonly:
        return
    from vllm_slo.engine.environ import secrets_of
    from vllm_slo.report.document import document, write_document

    options = {
        name: session.options.shown(name) if isinstance(value, str) else _plain(value)
        for name, value in session.options.values.items()
    }
    written = document(
        session.collected.results,
        target=session.spec.kind,
        options=options,
        boots=session.collected.boots,
        exit_status=status,
        unused_rows=unused_rows(session),
        notices=session.notices,
    )
    write_document(session.json_path, written, secrets=secrets_of(os.environ))


def write_github_summary(session: SloSession, status: int) -> None:
    """A table in the summary of a GitHub workflow's run, where there is one.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.environ.get(GITHUB_SUMMARY)
    if not path or not session.collected.results:
        return
    from vllm_slo.report.github import append_summary

    append_summary(path, session.collected.results)


def print_results(session: SloSession, reporter: pytest.TerminalReporter) -> None:
    """The table of every check, then boots, unused rows and what was cut short."""
    collected = session.collected
    _print_undecided(reporter)
    if session.update is not None:
        _print_update(session.update, reporter)
    cut_short = [*session.unjudged, *([session.in_progress] if session.in_progress else [])]
    if collected.results or cut_short:
        from vllm_slo.report.table import render

        reporter.section("service-level objectives", sep="=")
        reporter.write(
            render(
                collected.results,
                cut_short=cut_short,
                width=_width(reporter),
                colour=_has_colour(reporter),
            )
        )
    lines = [*unused_rows(session), *session.notices]
    if collected.boots and session.spec.kind in ("emulated", "gpu"):
        count = "1 server boot" if collected.boots == 1 else f"{collected.boots} server boots"
        lines.insert(0, f"{count}; logs: {session.report_dir / 'servers'}")
    if session.json_path is not None and not session.config.option.collectonly:
        lines.append(f"JSON report: {session.json_path}")
    for line in lines:
        reporter.write_line(line)


def unused_rows(session: SloSession) -> list[str]:
    """Rows of the threshold file that no test used; silent where tests were left out."""
    collected = session.collected
    if not session.ran_everything or collected.missed or not collected.results:
        return []
    if any("::" in argument or argument.endswith(".py") for argument in session.config.args):
        return []
    from vllm_slo.slo.row import row_title

    try:
        thresholds = session.thresholds
    except SloError:
        return []
    used = {result.row_title for result in collected.results}
    used |= {row_title(one.scenario, one.settings) for one in collected.proposals}
    return [
        f"{thresholds.path}:{row.line}: no test used row {row.title}"
        for row in thresholds.unused(used)
    ]


def _print_undecided(reporter: pytest.TerminalReporter) -> None:
    """What pytest prints of failures alone: these are a category of their own."""
    reports = reporter.stats.get("inconclusive", [])
    if not reports or reporter.config.option.tbstyle == "no":
        return
    reporter.write_sep("=", "INCONCLUSIVE")
    for report in reports:
        reporter.write_sep("_", report.head_line or report.nodeid, yellow=True, bold=True)
        reporter.write_line(getattr(report, UNDECIDED_FIELD))


def _print_update(done: "Update", reporter: pytest.TerminalReporter) -> None:
    reporter.section("threshold updates", sep="-")
    for line in done.diff.splitlines() or [f"{done.path}: nothing to change"]:
        reporter.write_line(line)
    for note in done.notes:
        reporter.write_line(note)


def _width(reporter: pytest.TerminalReporter) -> int:
    return reporter._tw.fullwidth


def _has_colour(reporter: pytest.TerminalReporter) -> bool:
    return bool(reporter._tw.hasmarkup)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool | None) else str(value)
