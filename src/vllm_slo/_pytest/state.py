"""What a session keeps: its options, its server, its thresholds, and the results so far."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vllm_slo._pytest.budget import Budget, Progress
from vllm_slo._pytest.options import Options
from vllm_slo._pytest.servers import ServerPool
from vllm_slo.errors import SloError, ThresholdsError
from vllm_slo.measure.run import Run
from vllm_slo.report.result import Result
from vllm_slo.settings import Settings
from vllm_slo.slo.proposal import Proposal
from vllm_slo.slo.rule import LOOKS, Rule, rule_for
from vllm_slo.slo.thresholds import Thresholds, find
from vllm_slo.slo.update import Update
from vllm_slo.targets import Served, TargetSpec, open_target, resolve_kind
from vllm_slo.traffic.workload import Workload

API_KEY_VARIABLE = "SLO_API_KEY"
MOST_ROUNDS = LOOKS[-1]


@dataclass(slots=True)
class Collected:
    """What the controller gathers from the reports of all tests, in order."""

    results: list[Result] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    boots: int = 0
    broken: int = 0


@dataclass(slots=True, kw_only=True)
class SloSession:
    """The state of one pytest process, found by `STATE` in the config's stash."""

    config: pytest.Config
    options: Options
    spec: TargetSpec
    collected: Collected = field(default_factory=Collected)
    runs: dict[tuple[Settings, Workload], Run] = field(default_factory=dict)
    in_progress: Run | None = None
    ran_everything: bool = True
    update: Update | None = None
    pool: ServerPool = field(init=False)
    progress: Progress = field(init=False)
    _thresholds: Thresholds | None = None

    def __post_init__(self) -> None:
        self.pool = ServerPool(open_with=self._open, say=self._say)
        self.progress = Progress(self.reporter)

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
    def report_dir(self) -> Path:
        return self.spec.report_dir

    @property
    def thresholds_dir(self) -> Path:
        folder = self.options.path("thresholds", self.config.rootpath)
        assert folder is not None
        return folder

    @property
    def thresholds(self) -> Thresholds:
        """The file for this device and model, read once.

        Raises:
            ThresholdsError: there is none, or it is malformed.
        """
        if self._thresholds is None:
            self._thresholds = find(
                self.thresholds_dir, self.spec.device_slug(), self.spec.model_slug
            )
        return self._thresholds

    @property
    def has_thresholds(self) -> bool:
        return self._thresholds is not None

    def has_row(self, scenario: str, settings: Settings) -> bool:
        """Whether the threshold file has a row for a test, malformed files aside."""
        try:
            self.thresholds.row(scenario, settings)
        except ThresholdsError:
            return False
        return True

    @property
    def rule(self) -> Rule:
        return rule_for(self.spec.kind, rounds=self.options["rounds"])

    @property
    def budget(self) -> Budget:
        rounds = self.options["rounds"] or MOST_ROUNDS
        return Budget(rounds=rounds, wall_s=self.options["budget"])

    @property
    def reporter(self) -> pytest.TerminalReporter | None:
        return self.config.pluginmanager.get_plugin("terminalreporter")

    def keep(self, run: Run) -> None:
        """Remembers the rounds so far: what a Ctrl-C prints."""
        self.in_progress = run

    def _open(self, settings: Settings) -> Served:
        return open_target(self.spec, settings, progress=self.progress)

    def _say(self, text: str) -> None:
        if self.options["verbose-boots"] and self.reporter is not None:
            self.reporter.ensure_newline()
            self.reporter.write_line(f"slo: {text}")


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
