"""The end of a session: the table, the JSON file, what no test used, and the exit status."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_slo._pytest.outcome import exit_status
from vllm_slo._pytest.state import SloSession
from vllm_slo.files import write_whole
from vllm_slo.slo.thresholds import threshold_path
from vllm_slo.slo.update import Update, update

JSON_VERSION = 1


def finish(session: SloSession, pytest_session: pytest.Session) -> None:
    """Stops the server; on the controller writes what is to be written and sets the exit status."""
    session.pool.close()
    if hasattr(session.config, "workerinput"):
        return
    status = int(pytest_session.exitstatus)
    if session.options["exit-codes"] and status in (0, int(pytest.ExitCode.TESTS_FAILED)):
        collected = session.collected
        status = exit_status(collected.results, broken=collected.broken) or status
        pytest_session.exitstatus = status
    if session.collected.proposals:
        session.update = write_limits(session)
    path = _json_path(session)
    if path is not None:
        text = json.dumps(document(session, status), allow_nan=False, separators=(",", ":"))
        write_whole(path, text + "\n")


def print_results(session: SloSession, reporter: pytest.TerminalReporter) -> None:
    """The table of every check, then boots, unused rows and what was cut short."""
    collected = session.collected
    if session.update is not None:
        _print_update(session.update, reporter)
    if not collected.results and session.in_progress is None:
        return
    from vllm_slo.report.table import render

    reporter.section("service-level objectives", sep="=")
    reporter.write(
        render(
            collected.results,
            interrupted=session.in_progress,
            width=reporter._tw.fullwidth,
            colour=reporter._tw.hasmarkup,
        )
    )
    if collected.boots and session.spec.kind in ("emulated", "gpu"):
        reporter.write_line(f"{collected.boots} server boots; their logs: {session.report_dir}")
    for line in unused_rows(session):
        reporter.write_line(line)
    if _json_path(session) is not None:
        reporter.write_line(f"JSON report: {_json_path(session)}")


def write_limits(session: SloSession) -> Update:
    """`--slo-update`: all proposals of the session, written once."""
    spec = session.spec
    device, model = spec.device_slug(), spec.model_slug
    return update(
        threshold_path(session.thresholds_dir, device, model),
        session.collected.proposals,
        device=device,
        model=model,
        today=datetime.datetime.now(datetime.UTC).date(),
        allow_loosen=session.options["allow-loosen"],
    )


def _print_update(done: Update, reporter: pytest.TerminalReporter) -> None:
    reporter.section("threshold updates", sep="-")
    for line in done.diff.splitlines() or [f"{done.path}: nothing to change"]:
        reporter.write_line(line)
    for note in done.notes:
        reporter.write_line(note)


def _json_path(session: SloSession) -> Path | None:
    return session.options.path("json", session.config.rootpath)


def unused_rows(session: SloSession) -> list[str]:
    """Rows of the threshold file that no test used; silent where tests were left out."""
    if not session.ran_everything or not session.has_thresholds:
        return []
    thresholds = session.thresholds
    used = {result.row_title for result in session.collected.results}
    return [
        f"{thresholds.path}:{row.line}: no test used row {row.title}"
        for row in thresholds.unused(used)
    ]


def document(session: SloSession, exitstatus: int) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": session.spec.kind,
        "options": {name: _plain(value) for name, value in session.options.values.items()},
        "boots": session.collected.boots,
        "exit_status": exitstatus,
        "unused_rows": unused_rows(session),
        "results": [result.to_dict() for result in session.collected.results],
    }


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
