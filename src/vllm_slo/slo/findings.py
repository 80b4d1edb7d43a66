"""`Finding`: one thing that the linter says about a line of a threshold file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row

Severity = Literal["error", "warning", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What breaks which law, where, with the numbers. `accepted` is a known one, kept by the row.

    A `warning` is on what does not gate, or is no contradiction.
    """

    path: Path
    line: int
    law: str
    severity: Severity
    text: str
    row: str = ""

    def __str__(self) -> str:
        row = f"row {self.row}: " if self.row else ""
        return f"{self.path}:{self.line}: {self.severity}: {row}{self.text} [{self.law}]"


def about(
    path: Path, row: Row, law: str, text: str, *, limit: Limit | None = None, gates: bool = True
) -> Finding:
    """A finding about a row, or a limit of it: an error where the limit `gates`.

    What is advisory cannot fail a test, so it is a warning; what the row accepts is neither.
    """
    advisory = limit is not None and limit.advisory
    severity: Severity = "error" if gates and not advisory else "warning"
    if law in row.accept:
        severity = "accepted"
    return Finding(
        path=path,
        line=row.line if limit is None else limit.line,
        law=law,
        severity=severity,
        text=f"{text} (advisory: not judged)" if advisory else text,
        row=row.title,
    )
