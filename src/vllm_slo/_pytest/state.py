"""What a session keeps: its options, its server, its thresholds, and the results so far."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_slo._pytest.budget import Budget, Progress, terminal
from vllm_slo._pytest.options import Options
from vllm_slo._pytest.servers import ServerPool
from vllm_slo.errors import SettingsError, SloError, ThresholdsError
from vllm_slo.targets import TargetSpec, open_target, resolve_kind

if TYPE_CHECKING:  # numpy, scipy and tomlkit are behind these: a session without SLOs pays nothing
    from vllm_slo.measure.run import Run
    from vllm_slo.report.result import Result
    from vllm_slo.settings import Settings
    from vllm_slo.slo.proposal import Proposal
    from vllm_slo.slo.rule import Rule
    from vllm_slo.slo.thresholds import Thresholds
    from vllm_slo.slo.update import Update
    from vllm_slo.targets import Served
    from vllm_slo.traffic.workload import Workload

API_KEY_VARIABLE = "SLO_API_KEY"


@dataclass(slots=True)
class Collected:
    """What the controller gathers from the reports of all tests, in order.

    `failed` counts tests with a FAIL, `broken` those whose server or input was, `undecided` those
    that came to no verdict, and `failed_otherwise` the rest that failed; `missed` are the tests
    that were to judge and did not.
    """

    results: "list[Result]" = field(default_factory=list)
    proposals: "list[Proposal]" = field(default_factory=list)
    boots: int = 0
    failed: int = 0
    broken: int = 0
    undecided: int = 0
    failed_otherwise: int = 0
    missed: int = 0


@dataclass(slots=True, kw_only=True)
class SloSession:
    """The state of one pytest process, found by `STATE` in the config's stash.

    `told` are the errors that were shown in full, `notices` lines for the end of the session;
    `unjudged` are the rounds of tests that ended in an error, `in_progress` those of the test that
    runs.
    """

    config: pytest.Config
    options: Options
    spec: TargetSpec
    collected: Collected = field(default_factory=Collected)
    runs: "dict[tuple[Settings, Workload], Run]" = field(default_factory=dict)
    in_progress: "Run | None" = None
    unjudged: "list[Run]" = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    told: list[SloError] = field(default_factory=list)
    ran_everything: bool = True
    update: "Update | None" = None
    pool: ServerPool = field(init=False)
    progress: Progress = field(init=False)
    _thresholds: "Thresholds | None" = None

    def __post_init__(self) -> None:
        self.pool = ServerPool(open_with=self._open, say=self._say)
        self.progress = Progress(self.config)

    @classmethod
    def from_pytest_config(cls, config: pytest.Config) -> "SloSession":
        """Reads the options; opens, probes and boots nothing.

        Raises:
            pytest.UsageError: an option that makes no sense.
        """
        options = Options.from_pytest_config(config)
        try:
            return cls(config=config, options=options, spec=_spec(options, config.rootpath))
        except SloError as error:
            raise pytest.UsageError(str(error)) from None

    @property
    def is_worker(self) -> bool:
        """Whether this is a pytest-xdist worker, whose controller reports and writes."""
        return hasattr(self.config, "workerinput")

    @property
    def report_dir(self) -> Path:
        return self.spec.report_dir

    @property
    def json_path(self) -> Path | None:
        return self.options.path("json", self.config.rootpath)

    @property
    def thresholds_dir(self) -> Path:
        folder = self.options.path("thresholds", self.config.rootpath)
        assert folder is not None
        return folder

    @property
    def thresholds(self) -> "Thresholds":
        """The file for this device and model, read once.

        Raises:
            ThresholdsError: there is none, or it is malformed.
        """
        if self._thresholds is None:
            from vllm_slo.slo.thresholds import find

            self._thresholds = find(
                self.thresholds_dir, self.spec.device_slug(), self.spec.model_slug
            )
        return self._thresholds

    @property
    def thresholds_path(self) -> Path:
        """Where that file is, or will be."""
        from vllm_slo.slo.thresholds import threshold_path

        return threshold_path(self.thresholds_dir, self.spec.device_slug(), self.spec.model_slug)

    def has_row(self, scenario: str, settings: "Settings") -> bool:
        """Whether the threshold file has a row for a test."""
        try:
            self.thresholds.row(scenario, settings)
        except ThresholdsError:
            return False
        return True

    @property
    def rule(self) -> "Rule":
        from vllm_slo.slo.rule import rule_for

        return rule_for(self.spec.kind, rounds=self.options["rounds"])

    @property
    def budget(self) -> Budget:
        from vllm_slo.slo.rule import LOOKS

        rounds = self.options["rounds"] or LOOKS[-1]
        return Budget(rounds=rounds, wall_s=self.options["budget"])

    def keep(self, run: "Run") -> None:
        """Remembers the rounds so far: what a Ctrl-C prints."""
        self.in_progress = run

    def drop_progress(self, *, failed: bool) -> None:
        """A test has ended: its rounds were judged, or not wanted, or an error cut them short."""
        if failed and self.in_progress is not None:
            self.unjudged.append(self.in_progress)
        self.in_progress = None

    def note(self, text: str) -> None:
        """Says something once, at the end of the session."""
        if text not in self.notices:
            self.notices.append(text)

    def _open(self, settings: "Settings") -> "Served":
        self._refuse_company()
        return open_target(self.spec, settings, progress=self.progress)

    def _refuse_company(self) -> None:
        """Several xdist workers at once would share the machine that is measured.

        Raises:
            SettingsError: there are several, and the target's clock is on the wall.
        """
        workers = getattr(self.config, "workerinput", {}).get("workercount", 1)
        if workers > 1 and self.spec.kind != "sim":
            raise SettingsError(
                f"--slo-target={self.spec.kind} measures wall-clock time, and {workers} "
                "pytest-xdist workers would load the same machine at once\n"
                "run the SLO tests in one process: -n 0 (sim, in virtual time, may have workers)"
            )

    def _say(self, text: str) -> None:
        if not self.options["verbose-boots"]:
            return
        with terminal(self.config) as reporter:
            if reporter is not None:
                # Not ensure_newline: it forgets the dots after the first line of ours.
                if reporter._tw.width_of_current_line:
                    reporter.write_line("")
                reporter.write_line(f"slo: {text}")


STATE = pytest.StashKey[SloSession]()


def _spec(options: Options, root: Path) -> TargetSpec:
    target = options["target"]
    kind = resolve_kind(target, environment=options["vllm"])
    report_dir = options.path("report", root)
    assert report_dir is not None
    return TargetSpec(
        kind=kind,
        model=options["model"],
        device=options["device"],
        url=target if kind == "url" else None,
        api_key=os.environ.get(API_KEY_VARIABLE),
        environment=options["vllm"],
        sim_scheduler=options["sim-scheduler"],
        client=options["client"],
        boot_timeout_s=options["boot-timeout"],
        request_timeout_s=options["request-timeout"],
        report_dir=report_dir,
        cache_dir=options.path("cache", root),
    )
