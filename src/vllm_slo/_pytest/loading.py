"""The `load` fixture: rounds of one workload, until the verdict is settled or the budget spent."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from vllm_slo._pytest.budget import Budget, Progress
from vllm_slo._pytest.judging import Regime, is_invalid, proposed, settled
from vllm_slo._pytest.servers import SERVE_FIXTURE, settings_of
from vllm_slo._pytest.state import SloSession
from vllm_slo.errors import SettingsError, SloError
from vllm_slo.measure.run import Run
from vllm_slo.settings import Settings
from vllm_slo.targets import Served
from vllm_slo.traffic.workload import Workload

# vLLM's own max_num_seqs on an A100, where neither the settings nor the server say.
DEFAULT_MAX_NUM_SEQS = 256
Settled = Callable[[Run], bool]
SEEDS_PER_SESSION_SEED = 1_000
# From the first broken connection to the end of a process that writes its last words.
_DYING_S = 1.0


def run_rounds(
    served: Served,
    workload: Workload,
    *,
    seed: int,
    budget: Budget,
    settled: Settled,
    progress: Progress,
    keep: Callable[[Run], None],
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Runs rounds with successive seeds; `keep` is told the run so far after each.

    Stops when `settled` says so, when the budget is spent, or when the server has died. A round
    that is cut short is kept as far as it went.

    Raises:
        SloError: the target cannot carry the workload, or an observer failed while the server
            lives.
    """
    started = clock()
    run: Run | None = None
    for number in range(budget.rounds):
        progress.start(f"{workload.name} round {number + 1}/{budget.rounds}:")
        cut_short: BaseException | None = None
        try:
            one = served.target.run(workload.reseeded(seed * SEEDS_PER_SESSION_SEED + number))
        except BaseException as error:
            partial: Run | None = getattr(served.target, "partial", None)
            if partial is None:
                raise
            one, cut_short = partial, error
        finally:
            progress.clear()
        cause = _death(served, one)
        if cause is not None:
            last = replace(one.rounds[-1], server_died=cause)
            one = replace(one, rounds=(*one.rounds[:-1], last))
        run = one if run is None else run.joined(one)
        keep(run)
        # An observer that cannot ask a dead server says nothing new; the rest is for the caller.
        if cut_short is not None and not (cause is not None and isinstance(cut_short, SloError)):
            raise cut_short
        out_of_time = budget.wall_s is not None and clock() - started >= budget.wall_s
        if cause is not None or out_of_time or settled(run):
            break
    assert run is not None, "a budget has at least one round"
    return run


def _death(served: Served, one: Run) -> str | None:
    """Why the server died, `None` if it lives. Where requests failed it may be dying just now."""
    may_be_dying = served.server is not None and any(not record.ok for record in one.records)
    until = time.monotonic() + (_DYING_S if may_be_dying else 0.0)
    while served.alive():
        if time.monotonic() >= until:
            return None
        time.sleep(0.02)
    return served.died_because() or "its process is gone"


class Load:
    """The `load` fixture: drives workloads at the test's server."""

    def __init__(self, session: SloSession, request: pytest.FixtureRequest) -> None:
        self._session = session
        self._request = request

    def __call__(self, workload: Workload, *, row: str | None = None, reuse: bool = False) -> Run:
        """Runs `workload` in rounds until the verdict on its row is settled or the budget spent.

        The row is the threshold file's for scenario `row`, the workload's name when not given;
        where there is none the least number of rounds that can pass is run. With `reuse` rounds
        that this session ran before, of the same workload on the same settings, are taken over.

        Raises:
            SloError: the server cannot be booted, or the target cannot carry the workload.
        """
        session = self._session
        served = session.pool.serve(self._settings())
        settings = served.settings
        sized = workload.for_server(served.max_num_seqs or DEFAULT_MAX_NUM_SEQS)
        key = (settings, sized)
        earlier = session.runs.get(key) if reuse else None
        if earlier is not None and self._is_settled(earlier, row or workload.name):
            return earlier
        run = run_rounds(
            served,
            sized,
            seed=session.options["seed"],
            budget=session.budget,
            settled=lambda so_far: self._is_settled(so_far, row or workload.name),
            progress=session.progress,
            keep=session.keep,
        )
        if reuse:
            session.runs[key] = run
        return run

    def _settings(self) -> Settings:
        """Those of the server that the test holds, else of the one that it is parametrized with."""
        node = self._request.node
        held = {value.settings for value in node.funcargs.values() if isinstance(value, Served)}
        if len(held) > 1:
            raise SettingsError(
                f"{node.nodeid} holds servers with {' and '.join(sorted(map(str, held)))}, and "
                "only one runs at a time\ncompare them in two tests"
            )
        for settings in held:
            return settings
        settings_asked = settings_of(node)
        if settings_asked is not None:
            return settings_asked
        current = self._session.pool.current
        if SERVE_FIXTURE in node.fixturenames and current is not None:
            return current.settings
        raise SettingsError(
            f"{node.nodeid} loads a server that it does not ask for\n"
            "take the vllm_server fixture, or one built on serve, as an argument too"
        )

    def _is_settled(self, run: Run, scenario: str) -> bool:
        session = self._session
        if session.has_row(scenario, run.settings):
            row = session.thresholds.row(scenario, run.settings)
            return settled(run, row, rule=session.rule)
        if len(run.rounds) < session.rule.least_rounds or not session.options["update"]:
            return len(run.rounds) >= session.rule.least_rounds
        if is_invalid(run):
            return True
        if session.rule.looks and len(run.rounds) not in session.rule.looks:
            return False
        regime = Regime()
        found = proposed(run, scenario, rule=session.rule, regime=regime, verdict=None)
        return not found.refused
