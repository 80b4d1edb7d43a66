"""What a test may spend, and the line that says how far it is."""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a test may spend: rounds, and wall seconds after which no further round starts."""

    rounds: int
    wall_s: float | None = None


class Progress:
    """One line that a TTY rewrites: the test, the round, and how many requests are done."""

    def __init__(self, reporter: pytest.TerminalReporter | None) -> None:
        is_tty = reporter is not None and reporter.isatty and reporter.verbosity >= 0
        self._reporter = reporter if is_tty else None
        self._prefix = ""

    def start(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, done: int, planned: int) -> None:
        if self._reporter is not None:
            self._reporter.rewrite(f"{self._prefix} {done}/{planned} requests", erase=True)

    def clear(self) -> None:
        if self._reporter is not None:
            self._reporter.rewrite("", erase=True)
