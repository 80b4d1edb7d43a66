"""Each SLO test as an entry of pytest-benchmark, so that its `compare` works across runs."""

from collections.abc import Iterable

import pytest

from vllm_slo.report.result import Result

_ASKS_FOR_ENTRIES = ("benchmark_json", "benchmark_autosave", "benchmark_save")


def wants_entries(config: pytest.Config) -> bool:
    """Whether pytest-benchmark is there, on, and asked to keep what it measures.

    It switches itself off in the workers of pytest-xdist, and then says so itself.
    """
    asked = any(getattr(config.option, name, None) for name in _ASKS_FOR_ENTRIES)
    if not asked or not config.pluginmanager.has_plugin("benchmark"):
        return False
    is_off = config.option.benchmark_disable or config.option.benchmark_skip
    return not is_off and not hasattr(config, "workerinput")


def add_entry(request: pytest.FixtureRequest, result: Result, ttft_s: Iterable[float]) -> None:
    """Adds an entry whose timings are the requests' TTFTs in seconds, the rest in `extra_info`.

    The TTFTs were measured before: a clock that they advance hands them to pytest-benchmark.
    A test that checks several rows has the first in its timings, and all in `extra_info`.
    """
    timings = list(ttft_s)
    benchmark = _benchmark_of(request, _Recorded(timings))
    if benchmark is None:
        return
    prefix = f"{result.row}." if benchmark.extra_info else ""
    benchmark.extra_info.update(
        {f"{prefix}{name}": value for name, value in _figures_of(result).items()}
    )


class _Recorded:
    """A clock that stands still but for `step`, which moves it by the next recorded time."""

    def __init__(self, durations_s: list[float]) -> None:
        self.durations_s = durations_s
        self._now_s = 0.0
        self._taken = 0

    def __call__(self) -> float:
        return self._now_s

    def step(self) -> None:
        # pytest-benchmark calls once more than it times, for the function's result.
        if self._taken < len(self.durations_s):
            self._now_s += self.durations_s[self._taken]
            self._taken += 1


def _benchmark_of(request: pytest.FixtureRequest, clock: _Recorded):  # type: ignore[no-untyped-def]
    already = request.node.funcargs.get("benchmark")
    if already is None and clock.durations_s:
        request.node.add_marker(pytest.mark.benchmark(timer=clock, group="slo ttft"))
        already = request.getfixturevalue("benchmark")
        request.node.funcargs["benchmark"] = already
        already.pedantic(clock.step, rounds=len(clock.durations_s))
    return already


def _figures_of(result: Result) -> dict[str, object]:
    return {
        "row": result.row,
        "settings": result.settings,
        "outcome": result.outcome,
        "target": result.engine["target"],
        "device": result.engine["device"],
        "model": result.engine["model"],
        "vllm_version": result.engine["vllm_version"],
        "requests": result.requests,
        "rounds": result.rounds,
        **{name: value for name, value in result.figures.items() if value is not None},
        **result.notes,
    }
