"""`Result`: one check of one row, in plain values that cross processes and end in the report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Outcome = str  # PASS, FAIL, INCONCLUSIVE or INVALID, as `vllm_slo.slo` gives them

FIGURES = (
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "output_tok_s",
    "preemptions",
    "sm_utilisation_percent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitResult:
    """One limit: its text (`ttft p(99) < 852ms`), what was measured, and what follows."""

    text: str
    outcome: Outcome
    measured: float | None
    samples: int
    interval: tuple[float, float] | None = None
    effective_samples: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One `slo.check`: where it stood, what it found, and the records behind it.

    `run` is empty unless raw records are asked for. `server_died` says why, where it did.
    """

    nodeid: str
    row: str
    row_title: str
    line: int
    settings: str
    engine: Mapping[str, Any]
    thresholds: str
    outcome: Outcome
    reasons: Sequence[str]
    limits: Sequence[LimitResult]
    figures: Mapping[str, float | None]
    notes: Mapping[str, float] = field(default_factory=dict)
    rounds: int
    requests: int
    failed_requests: int
    failures: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    server_died: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `run` is not copied, it may hold a million numbers."""
        shallow = {one.name: getattr(self, one.name) for one in fields(self)}
        return shallow | {"limits": [asdict(limit) for limit in self.limits]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        limits = tuple(LimitResult(**one) for one in values["limits"])
        return cls(**{**values, "limits": limits})
