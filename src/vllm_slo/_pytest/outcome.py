"""How a verdict becomes pytest's: PASS, FAIL, or INCONCLUSIVE as a category of its own."""

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import vllm_slo
from vllm_slo._pytest.servers import again, is_judged
from vllm_slo._pytest.state import STATE, Collected, SloSession
from vllm_slo.errors import SloError
from vllm_slo.report.result import Result

if TYPE_CHECKING:
    from vllm_slo.slo.proposal import Proposal

RESULTS = pytest.StashKey[list[Result]]()
PROPOSALS: "pytest.StashKey[list[Proposal]]" = pytest.StashKey()
# What an INCONCLUSIVE verdict says; and whether the test's server died under its load.
UNDECIDED = pytest.StashKey[str]()
DIED = pytest.StashKey[bool]()
# Plain attributes of the report: pytest-xdist carries them from its workers to the controller.
RESULTS_FIELD = "slo_results"
PROPOSALS_FIELD = "slo_proposals"
UNDECIDED_FIELD = "slo_undecided"
BROKEN_FIELD = "slo_broken"
BOOTS_FIELD = "slo_boots"
JUDGED_FIELD = "slo_judged"

_OURS = Path(vllm_slo.__file__).parent
Failed: type[BaseException] = pytest.fail.Exception
Skipped: type[BaseException] = pytest.skip.Exception


class InconclusiveError(Failed):  # type: ignore[misc, valid-type]
    """Neither PASS nor FAIL: too few samples, or a run that measured the wrong thing."""


class InconclusiveSkip(Skipped):  # type: ignore[misc, valid-type]
    """The same, where `--slo-inconclusive=skip`."""


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Puts the test's results on its report, and a user's mistake in place of its traceback."""
    session = item.config.stash[STATE]
    setattr(report, BOOTS_FIELD, session.pool.take_boots())
    setattr(report, JUDGED_FIELD, is_judged(item))
    is_broken = call.when == "call" and item.stash.get(DIED, False)
    if call.excinfo is not None and call.excinfo.errisinstance(SloError):
        # As pytest.fail(..., pytrace=False) shows itself: the text, in the summary's line too.
        report.longrepr = _not_twice(session, call.excinfo).getrepr(style="value", chain=False)
        is_broken = True
    setattr(report, BROKEN_FIELD, is_broken)
    if call.when != "call":
        return
    session.drop_progress(failed=call.excinfo is not None)
    results = item.stash.get(RESULTS, [])
    setattr(report, RESULTS_FIELD, [result.to_dict() for result in results])
    proposals = item.stash.get(PROPOSALS, [])
    if proposals:
        from vllm_slo.slo.update import as_plain

        setattr(report, PROPOSALS_FIELD, [dict(as_plain(one)) for one in proposals])
    undecided = (InconclusiveError, InconclusiveSkip)
    if call.excinfo is None or call.excinfo.errisinstance(undecided):
        setattr(report, UNDECIDED_FIELD, item.stash.get(UNDECIDED, ""))


def _not_twice(
    session: SloSession, raised: pytest.ExceptionInfo[BaseException]
) -> pytest.ExceptionInfo[BaseException]:
    """In short from the second time: a session fixture's error comes up in every test with it."""
    error = raised.value
    assert isinstance(error, SloError)
    if not any(error is one for one in session.told):
        session.told.append(error)
        return raised
    try:
        raise again(error)
    except SloError as in_short:
        return pytest.ExceptionInfo.from_exception(in_short)


def shorten(report: pytest.CollectReport) -> None:
    """A user's mistake while a test file is imported: its text and the line, no traceback."""
    excinfo = getattr(getattr(report, "call", None), "excinfo", None)
    if excinfo is None or not excinfo.errisinstance(SloError):
        return
    theirs = [
        frame
        for frame in traceback.extract_tb(excinfo.tb)
        if Path(frame.filename).is_file() and not Path(frame.filename).is_relative_to(_OURS)
    ]
    where = f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
    report.longrepr = f"{where}{type(excinfo.value).__name__}: {excinfo.value}"


def status_of(report: pytest.TestReport | pytest.CollectReport) -> Any:
    """INCONCLUSIVE as a word, a letter and a colour of its own; `None` leaves it to pytest."""
    if report.when == "call" and getattr(report, UNDECIDED_FIELD, None):
        return "inconclusive", "I", ("INCONCLUSIVE", {"yellow": True})
    return None


class Gatherer:
    """Adds every report's results to the controller's, in the order in which tests ended."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        collected = self._collected
        results = [Result.from_dict(values) for values in getattr(report, RESULTS_FIELD, [])]
        proposals = getattr(report, PROPOSALS_FIELD, [])
        collected.results.extend(results)
        if proposals:
            from vllm_slo.slo.proposal import Proposal

            collected.proposals.extend(Proposal(**values) for values in proposals)
        collected.boots += getattr(report, BOOTS_FIELD, 0)
        is_broken = getattr(report, BROKEN_FIELD, False)
        collected.broken += is_broken
        is_undecided = bool(getattr(report, UNDECIDED_FIELD, ""))
        collected.undecided += is_undecided
        if report.failed:
            outcomes = {result.outcome for result in results}
            collected.failed += "FAIL" in outcomes
            is_explained = outcomes - {"PASS"} or is_broken or is_undecided
            collected.failed_otherwise += not is_explained
        if getattr(report, JUDGED_FIELD, False):
            collected.missed += not report.passed and not results


def exit_status(collected: Collected) -> int | None:
    """`--slo-exit-codes`: 10 for FAIL, 12 for an invalid run or a broken server, 11 for the rest.

    `None` leaves pytest's own: where everything passed, and where a test failed for a reason that
    is none of these, which a lenient treatment of 11 or 12 must not hide.
    """
    if collected.failed:
        return 10
    if collected.failed_otherwise:
        return None
    outcomes = {result.outcome for result in collected.results}
    if collected.broken or "INVALID" in outcomes:
        return 12
    if collected.undecided or "INCONCLUSIVE" in outcomes:
        return 11
    return None
