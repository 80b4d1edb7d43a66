"""Comparing two builds, A and B, on the figures that a row limits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_slo.errors import SloError
from vllm_slo.measure.comparison import Comparison, compare
from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.measure.table import tabulate
from vllm_slo.slo.evidence import Figures, Samples, evidence_of
from vllm_slo.slo.limits import Limit
from vllm_slo.slo.row import Row
from vllm_slo.slo.verdict import Outcome

DEFAULT_TOLERANCE = 0.1
_COMPARED = ("output_tok_s", "total_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitComparison:
    """One figure of B against A's. `comparison` is of how much worse B is: above 1 is worse, for
    throughput too, where less is worse."""

    limit: Limit
    comparison: Comparison
    message: str

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.comparison.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildVerdict:
    """B against A: the outcome of all figures together, and each."""

    outcome: Outcome
    figures: tuple[LimitComparison, ...]
    pairs: int
    reasons: tuple[str, ...] = ()


def compare_builds(
    a: Run,
    b: Run,
    row: Row,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    invalid: Sequence[str] = (),
    fail_error: float = 0.01,
    pass_error: float = 0.05,
) -> BuildVerdict:
    """Judges whether build B is at most `tolerance` worse than A on what `row` limits.

    Round i of A and of B are a pair: same seed, so the same arrivals, lengths and prompts, run one
    after the other. Latency percentiles and throughput are compared, the limits' values are not
    used, and advisory limits count too. The errors are shared by the figures. `invalid` are the
    reasons why either run cannot be trusted.

    Raises:
        SloError: the rounds make no pairs, or the row has no figure that can be compared.
    """
    seeds = [tuple(one.seed for one in run.rounds) for run in (a, b)]
    if seeds[0] != seeds[1]:
        raise SloError(
            f"the builds cannot be compared: A has rounds with seeds {seeds[0]}, B {seeds[1]}. "
            "Run both with the same --slo-seed and as many rounds"
        )
    limits = [one for one in row.limits if one.quantile is not None or one.name in _COMPARED]
    if not limits:
        raise SloError(f"row {row.title}: has no latency or throughput limit to compare builds by")
    figures = tuple(
        _compared(
            limit,
            _figures(limit, a, row),
            _figures(limit, b, row),
            tolerance=tolerance,
            fail_error=fail_error / len(limits),
            pass_error=pass_error / len(limits),
        )
        for limit in limits
    )
    outcomes = [one.outcome for one in figures]
    if invalid:
        outcome = Outcome.INVALID
    elif Outcome.FAIL in outcomes:
        outcome = Outcome.FAIL
    elif all(one is Outcome.PASS for one in outcomes):
        outcome = Outcome.PASS
    else:
        outcome = Outcome.INCONCLUSIVE
    return BuildVerdict(
        outcome=outcome, figures=figures, pairs=len(seeds[0]), reasons=tuple(invalid)
    )


def _figures(limit: Limit, run: Run, row: Row) -> list[float | None]:
    """One figure a round, larger being worse; infinite where requests failed past the quantile."""
    evidence = evidence_of(limit, run=run, table=tabulate(run), summary=summarise(run), row=row)
    if isinstance(evidence, Samples) and limit.quantile is not None:
        return [
            float(np.quantile(one, limit.quantile, method="inverted_cdf")) if len(one) else None
            for one in evidence.by_round
        ]
    if isinstance(evidence, Figures):
        return [
            None if one is None else 1 / one if one > 0 else np.inf for one in evidence.by_round
        ]
    return [None] * len(run.rounds)


def _compared(
    limit: Limit,
    a: Sequence[float | None],
    b: Sequence[float | None],
    *,
    tolerance: float,
    fail_error: float,
    pass_error: float,
) -> LimitComparison:
    # Where both builds failed there is nothing to tell them apart by, and no reason to pass.
    both_failed = [x == y == np.inf for x, y in zip(a, b, strict=True)]
    a = [None if failed else x for x, failed in zip(a, both_failed, strict=True)]
    found = compare(a, b, tolerance=tolerance, fail_error=fail_error, pass_error=pass_error)
    name = limit.name if limit.class_name is None else f"{limit.class_name} {limit.name}"
    if not found.pairs:
        text = f"{name}: no pair of rounds has it"
    else:
        text = (
            f"{name}: B is {found.ratio:.3g} times as bad as A "
            f"({found.lower:.3g} to {found.upper:.3g} in {found.pairs} pairs), "
            f"{1 + tolerance:.3g} allowed"
        )
    if found.is_worse_within:
        text += "; worse, within tolerance" if found.outcome == "PASS" else "; worse"
    elif found.outcome == "INCONCLUSIVE" and found.pairs:
        text += "; needs more pairs"
    return LimitComparison(limit=limit, comparison=found, message=text)
