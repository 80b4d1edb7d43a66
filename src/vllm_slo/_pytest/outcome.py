"""How a verdict becomes pytest's: PASS, FAIL, or INCONCLUSIVE as a category of its own."""

from typing import Any

import pytest

from vllm_slo._pytest.state import STATE, Collected
from vllm_slo.errors import SloError
from vllm_slo.report.result import Result
from vllm_slo.slo.proposal import Proposal
from vllm_slo.slo.update import as_plain

RESULTS = pytest.StashKey[list[Result]]()
PROPOSALS = pytest.StashKey[list[Proposal]]()
# Plain attributes of the report: pytest-xdist carries them from its workers to the controller.
RESULTS_FIELD = "slo_results"
PROPOSALS_FIELD = "slo_proposals"
UNDECIDED_FIELD = "slo_undecided"
BROKEN_FIELD = "slo_broken"
BOOTS_FIELD = "slo_boots"


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
    if call.excinfo is not None and call.excinfo.errisinstance(SloError):
        report.longrepr = str(call.excinfo.value)
        setattr(report, BROKEN_FIELD, True)
    if call.when != "call":
        return
    results = item.stash.get(RESULTS, [])
    setattr(report, RESULTS_FIELD, [result.to_dict() for result in results])
    proposals = item.stash.get(PROPOSALS, [])
    setattr(report, PROPOSALS_FIELD, [dict(as_plain(one)) for one in proposals])
    undecided = (InconclusiveError, InconclusiveSkip)
    is_undecided = call.excinfo is not None and call.excinfo.errisinstance(undecided)
    setattr(report, UNDECIDED_FIELD, is_undecided)


def status_of(report: pytest.TestReport | pytest.CollectReport) -> Any:
    """INCONCLUSIVE as a word, a letter and a colour of its own; `None` leaves it to pytest."""
    if report.when == "call" and getattr(report, UNDECIDED_FIELD, False):
        return "inconclusive", "I", ("INCONCLUSIVE", {"yellow": True})
    return None


class Gatherer:
    """Adds every report's results to the controller's, in the order in which tests ended."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results = getattr(report, RESULTS_FIELD, [])
        self._collected.results.extend(Result.from_dict(values) for values in results)
        proposals = getattr(report, PROPOSALS_FIELD, [])
        self._collected.proposals.extend(Proposal(**values) for values in proposals)
        self._collected.broken += getattr(report, BROKEN_FIELD, False)
        self._collected.boots += getattr(report, BOOTS_FIELD, 0)


def exit_status(results: list[Result], *, broken: int) -> int | None:
    """`--slo-exit-codes`: 10 for FAIL, 12 for an invalid run or a broken server, 11 for the rest.

    `None` where everything passed.
    """
    outcomes = {result.outcome for result in results}
    if "FAIL" in outcomes:
        return 10
    if broken or "INVALID" in outcomes:
        return 12
    if "INCONCLUSIVE" in outcomes:
        return 11
    return None
