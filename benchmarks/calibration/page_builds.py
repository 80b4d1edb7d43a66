"""What the page says about comparing builds."""

from collections.abc import Sequence

from benchmarks.calibration.builds import (
    COMMON,
    MEAN,
    SEPARATE,
    SHOWN_PAIRS,
    WELCH,
    BuildRates,
    BuildStudy,
)
from benchmarks.calibration.markdown import percent, table


def builds_section(builds: Sequence[BuildStudy], pairs: int, trials: int) -> str:
    if not builds:
        return "## Comparing builds\n\nNot run."
    rules = (COMMON, SEPARATE, WELCH)
    rows = [
        [
            one.cell.service,
            f"{one.cell.utilisation:g}",
            f"{one.slowdown:.3f}",
            f"{one.typical:.2f}",
            f"{one.pooled:.2f}",
            *(_verdicts(one.rates[rule][SHOWN_PAIRS]) for rule in rules),
            _verdicts(one.rates[MEAN][3]),
        ]
        for one in builds
    ]
    boundary = [
        [str(count), *(_most([one.at_boundary[rule][count] for one in builds]) for rule in rules)]
        for count in builds[0].at_boundary[COMMON]
    ]
    return f"""## Comparing builds

Every step of build B takes longer, by a factor with which the p99 of TTFT of a typical round is
1.0, 1.1, 1.2 or 1.3 times A's; noise 2 % between rounds, drawn for A and B apart. {pairs:,} rounds
of each, {trials:,} trials, 10 % tolerated, {SHOWN_PAIRS} pairs. Common schedules: both builds get
the same arrivals, lengths and prompts in a pair. PASS / FAIL, % of the trials:

{
        table(
            [
                "service",
                "util.",
                "step time",
                "p99, typical round",
                "p99, all rounds",
                COMMON,
                SEPARATE,
                WELCH,
                MEAN,
            ],
            rows,
        )
    }

With the tolerance at the true ratio (the median of what is compared; for Welch the mean), where
neither verdict is right: the most false PASS / false FAIL over all of the above. Stated: 5 % / 1 %.

{table(["pairs", COMMON, SEPARATE, WELCH], boundary)}

![regressions found by ten pairs](calibration/builds.svg)"""


def _verdicts(rates: BuildRates) -> str:
    return f"{percent(rates.passed / rates.trials)} / {percent(rates.failed / rates.trials)}"


def _most(rates: Sequence[BuildRates]) -> str:
    """The most false PASS, and the most false FAIL."""
    passed = max(one.passed / one.trials for one in rates)
    return f"{percent(passed)} / {percent(max(one.failed / one.trials for one in rates))}"
