"""The gate is gated: the rule's errors on simulated rounds, in the worst cell and a plain one.

`make calibration` does it at length; docs/calibration.md has what it found.
"""

from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration import peers
from benchmarks.calibration.limits import BEFORE, OURS, ROW, Rates, study
from benchmarks.calibration.pools import METRICS, Cell, pool_from, pool_of, round_seeds, rounds_of
from benchmarks.calibration.trials import FAIL, INCONCLUSIVE, PASS, Trials, judge_row
from vllm_slo.measure.run import Run
from vllm_slo.slo import Outcome, Thresholds, is_settled, judge, rule_for
from vllm_slo.slo.judge import errors_of

ROUNDS, TRIALS, SEED = 80, 1500, 5
PLAIN = Cell(service="uniform", utilisation=0.5, noise=0.02)
HARDEST = Cell(service="uniform", utilisation=0.7, noise=0.02)  # two rounds of three have no queue
RULE = rule_for("gpu")
CODES = {Outcome.PASS: PASS, Outcome.INCONCLUSIVE: INCONCLUSIVE, Outcome.FAIL: FAIL}


@pytest.fixture(scope="module")
def runs():
    """A run of one round for each round of the pools."""
    return {
        cell: rounds_of(cell, round_seeds(cell, ROUNDS, seed=SEED)) for cell in (PLAIN, HARDEST)
    }


@pytest.fixture(scope="module")
def pools(runs):
    return {cell: pool_from(cell, of_cell) for cell, of_cell in runs.items()}


@pytest.fixture(scope="module")
def studies(pools):
    ratios = (0.67, 0.8, 1.0, 1.2)
    return {c: study(pool, trials=TRIALS, seed=SEED, ratios=ratios) for c, pool in pools.items()}


@pytest.mark.parametrize("cell", [PLAIN, HARDEST], ids=lambda cell: cell.name)
@pytest.mark.parametrize("judged", [*METRICS, ROW])
def test_at_the_limit_verdicts_are_wrong_no_more_often_than_stated(studies, cell, judged):
    rates = studies[cell].rates[judged][OURS][1.0]
    assert rates.holds(), rates


@pytest.mark.parametrize("cell", [PLAIN, HARDEST], ids=lambda cell: cell.name)
@pytest.mark.parametrize("metric", METRICS)
def test_the_binomial_rule_is_found_out(studies, cell, metric):
    rates = studies[cell].rates[metric]["binomial"][1.0]
    assert peers.lower_bound(rates.passed, rates.trials) > 1.5 * RULE.pass_error
    assert peers.lower_bound(rates.failed, rates.trials) > 1.5 * RULE.fail_error


def test_a_count_that_foresees_no_queue_is_found_out(studies):
    rates = studies[HARDEST].rates["ttft"][BEFORE][1.0]
    assert peers.lower_bound(rates.passed, rates.trials) > RULE.pass_error


def test_what_is_well_within_or_well_over_its_limits_is_told(studies):
    """At a moderate load; near saturation TTFT stays open, and TPOT is told."""
    row = studies[PLAIN].rates[ROW][OURS]
    assert row[0.67].pass_share > 0.95
    assert row[1.2].fail_share > 0.95
    tpot = studies[HARDEST].rates["tpot"][OURS]
    assert tpot[0.8].pass_share > 0.95
    assert tpot[1.2].fail_share > 0.95


def test_a_clear_verdict_costs_less_than_the_budget(studies):
    plain = studies[PLAIN]
    for ratio in (0.67, 1.2):
        assert plain.rates[ROW][OURS][ratio].seconds < 0.75 * plain.fixed_s


def test_a_pool_that_is_kept_is_not_taken_for_another(tmp_path):
    """Its first rounds are simulated again: the simulator may have changed since."""
    kept = pool_of(PLAIN, 3, seed=SEED, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    assert kept.p99 == pool_of(PLAIN, 3, seed=SEED, cache=tmp_path).p99
    with np.load(path) as columns:
        other = {name: columns[name] * 1.001 for name in columns.files}
    np.savez(path, **other)
    assert kept.p99 == pool_of(PLAIN, 3, seed=SEED, cache=tmp_path).p99


def test_a_rate_holds_by_its_upper_bound_not_by_itself():
    few = Rates(trials=100, passed=5, failed=0, rounds=5, seconds=1)
    many = Rates(trials=10_000, passed=500, failed=100, rounds=5, seconds=1)
    over = Rates(trials=10_000, passed=500, failed=150, rounds=5, seconds=1)
    assert [False, True, False] == [one.holds() for one in (few, many, over)]


@pytest.mark.parametrize("cell", [PLAIN, HARDEST], ids=lambda cell: cell.name)
@pytest.mark.parametrize("ratio", [0.75, 1.0, 1.15])
def test_trials_are_decided_as_judge_decides(runs, pools, cell, ratio):
    pool = pools[cell]
    trials = Trials.draw(pool, 3, looks=RULE.looks, seed=round(100 * ratio))
    limits = {metric: pool.p99[metric] / ratio for metric in METRICS}
    text = "".join(f"{metric}_p99_ms = {limit!r}\n" for metric, limit in limits.items())
    row = Thresholds.parse(
        '[meta]\ndevice = "d"\nmodel = "m"\nprovenance = "target"\n'
        f'[[row]]\nscenario = "uniform"\n[row.limits]\n{text}',
        Path("t.toml"),
    ).rows[0]
    errors = errors_of(row, RULE)
    decided = judge_row(trials, limits, fail_error=errors.fail, pass_error=errors.pass_)
    for place, picks in enumerate(trials.picks.tolist()):
        run = first_settled([runs[cell][i] for i in picks], row)
        verdict = judge(run, row, rule=RULE)
        assert (CODES[verdict.outcome], len(run.rounds)) == (
            decided.outcome[place],
            decided.rounds[place],
        )


def first_settled(rounds: list[Run], row) -> Run:
    """As many of the rounds as the rule takes."""
    for count in range(1, len(rounds) + 1):
        run = reduce(Run.joined, rounds[:count])
        if is_settled(run, row, rule=RULE):
            return run
    return reduce(Run.joined, rounds)
