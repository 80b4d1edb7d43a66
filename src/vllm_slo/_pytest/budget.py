"""What a test may spend, and the lines that say how far it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a test may spend: rounds, and wall seconds after which no further round starts."""

    rounds: int
    wall_s: float | None = None


class Progress:
    """One line that a TTY rewrites: the test, the round, and how many requests are done."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._prefix = ""
        self._is_shown = False

    def start(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, done: int, planned: int) -> None:
        self._rewrite(f"{self._prefix} {done}/{planned} requests")
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            self._rewrite("")
            self._is_shown = False

    def _rewrite(self, line: str) -> None:
        with terminal(self._config) as reporter:
            if reporter is not None and reporter.isatty and reporter.verbosity >= 0:
                reporter.rewrite(line, erase=True)


@contextmanager
def terminal(config: pytest.Config) -> Iterator[pytest.TerminalReporter | None]:
    """The terminal reporter, written to past the capture of the test that runs; `None` without."""
    # Asked for anew each time: it is registered after this plugin is configured.
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is None or capture is None:
        yield reporter
        return
    with capture.global_and_fixture_disabled():
        yield reporter
