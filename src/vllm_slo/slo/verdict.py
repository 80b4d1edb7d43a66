"""`Verdict`: what was decided about a run, limit by limit, and why."""

from dataclasses import dataclass
from enum import StrEnum

from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row


class Outcome(StrEnum):
    """INVALID is shown as INCONCLUSIVE: the run measured something else than was asked.

    ADVISORY is a limit that is shown and not judged; a whole verdict is never that.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"
    ADVISORY = "ADVISORY"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitVerdict:
    """One limit, judged. `measured` and `interval` are in the limit's own unit.

    `samples` are requests (gaps for ITL), or rounds for a figure of the server; a failed request
    counts. `effective_samples` are what they are worth, being dependent. `interval` is where the
    rule places the true value: its ends are infinite where a request failed.
    """

    limit: Limit
    outcome: Outcome
    measured: float | None
    samples: int
    effective_samples: float | None = None
    interval: tuple[float, float] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A run against a row. `reasons` say what is not about a single limit."""

    row: Row
    outcome: Outcome
    limits: tuple[LimitVerdict, ...]
    reasons: tuple[str, ...] = ()
    rounds: int
    requests: int
    failed: int

    @property
    def is_conclusive(self) -> bool:
        return self.outcome in (Outcome.PASS, Outcome.FAIL)
