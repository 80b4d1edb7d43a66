"""docs/calibration.md: how the study was done, its tables, and what they say."""

from collections.abc import Sequence

from benchmarks.calibration.builds import BuildStudy
from benchmarks.calibration.limits import OURS, RULE, CellStudy
from benchmarks.calibration.markdown import machine, reflowed
from benchmarks.calibration.page_builds import builds_section
from benchmarks.calibration.page_limits import (
    JUDGED,
    boundary_section,
    changes_section,
    cost_section,
    peers_section,
    power_section,
)
from benchmarks.calibration.pools import DEVICE, MAX_NUM_SEQS, REQUESTS, SERVICES, capacity_rps


def page(
    studies: Sequence[CellStudy],
    builds: Sequence[BuildStudy],
    *,
    command: str,
    date: str,
    pool_rounds: int,
    pairs: int,
    trials: int,
) -> str:
    """The page, in Markdown."""
    parts = [
        _intro(command, date, pool_rounds, trials),
        boundary_section(studies),
        changes_section(studies),
        power_section(studies),
        peers_section(studies),
        cost_section(studies),
        builds_section(builds, pairs, trials),
        _NOT_COVERED,
    ]
    return reflowed("\n\n".join(parts).strip()) + "\n"


def holds_everywhere(studies: Sequence[CellStudy]) -> bool:
    return all(one.rates[judged][OURS][1.0].holds() for one in studies for judged in JUDGED)


def _intro(command: str, date: str, pool_rounds: int, trials: int) -> str:
    capacities = ", ".join(f"{capacity_rps(one):.2f} requests/s on {one}" for one in SERVICES)
    return f"""# Calibration: how often the verdicts are wrong

Every number on this page is SIMULATED: `vllm_slo.sim` in virtual time, {DEVICE}, max_num_seqs
{MAX_NUM_SEQS}, an open loop with Poisson arrivals, {REQUESTS} requests a round. It is about the
rule that judges, not about a GPU. Shares are in percent of the trials.

`{command}`, {date}, {machine()}, one core.
Seeds are fixed, and virtual time does not depend on the machine.

- **Cells.** Uniform service (512 in, 256 out) and mixed (512 in, 64 to 1,024 out); utilisation
  0.3, 0.5, 0.7 and 0.85; noise 0, 2 and 5 % between rounds, a lognormal factor on every step's
  time, drawn once a round.
- **Utilisation** is the offered rate over the rate of a saturated server (a closed loop of two
  requests a slot, its middle four fifths): {capacities}.
- **The truth.** {pool_rounds:,} independent rounds of each cell, {pool_rounds * REQUESTS:,}
  requests, are the population. Its p99 is known exactly, and the limit is set to it,
  or to that over a ratio.
- **Trials.** {trials:,} a cell, each of 20 rounds drawn from the cell's population with
  replacement, so that they are independent of each other. Another population of the same cell
  would be slightly different: the standard error of its p99 is in the tables.
- **The rule** is what `rule_for("gpu")` and `judge` do: looks after {_looks()} rounds, stopping at
  the first conclusive one, FAIL wrong at most {100 * RULE.fail_error:g} % of the time and PASS
  {100 * RULE.pass_error:g} %. Trials are decided many at once; tests/calibration checks that
  the decisions are those of `judge`.
- The guards of a run (warm-up, steady state, sanity) are not applied. They only take verdicts
  away."""


def _looks() -> str:
    *first, last = (str(one) for one in RULE.looks)
    return f"{', '.join(first)} and {last}"


_NOT_COVERED = f"""## What this does not cover

- One device, one model, one max_num_seqs ({MAX_NUM_SEQS}), {REQUESTS} requests a round, Poisson
  arrivals. Closed loops, bursty arrivals, traces, goodput limits and other percentiles are not in
  these tables.
- The queue is foreseen from slots. Where KV blocks run out before slots do, or where max_num_seqs
  is not known (a URL), it is not, and neither is it in goodput limits.
- Noise is between rounds, the same for every step of a round, and independent from round to round.
  A machine that drifts through a session makes rounds that resemble each other.
- The bound by distance takes the logarithms of the rounds' percentiles as normal. Where they have
  two humps it can be wrong; of TTFT that is what the foreseen queue is for."""
