"""The study of limits: how often a verdict is wrong, how often there is one, and what it costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.calibration import peers
from benchmarks.calibration.pools import METRICS, Cell, Pool
from benchmarks.calibration.trials import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    WHOLE_RULE,
    Decisions,
    Trials,
    judge_row,
)
from vllm_slo.slo.rule import Rule, rule_for

# The true p99 over the limit. At 1 the limit is the p99: no FAIL is right there, and with the limit
# a hair lower no PASS is, while the decisions are the same.
RATIOS = (0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5)
OURS, BEFORE = "this rule", "count alone (before)"
ROW = "row"  # both limits in one row
PEERS = ("binomial", "t of ln p99", "raw p99, 1 round", "raw p99, 20 rounds", "mean of 3 + 10 %")
RULE = rule_for("gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How a rule decided the trials at one ratio. `seconds` are the mean time of the rounds."""

    trials: int
    passed: int
    failed: int
    rounds: float
    seconds: float

    @property
    def pass_share(self) -> float:
        return self.passed / self.trials

    @property
    def fail_share(self) -> float:
        return self.failed / self.trials

    @property
    def conclusive(self) -> float:
        return (self.passed + self.failed) / self.trials

    def holds(self, rule: Rule = RULE) -> bool:
        """Whether both errors, at the limit, are within 1.5 times what is stated: the upper bound
        at 99 % confidence."""
        return (
            peers.upper_bound(self.passed, self.trials) <= 1.5 * rule.pass_error
            and peers.upper_bound(self.failed, self.trials) <= 1.5 * rule.fail_error
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStudy:
    """One cell. `rates` are by what is judged (ttft, tpot, row), rule and ratio."""

    cell: Cell
    p99: Mapping[str, float]
    p99_error: Mapping[str, float]
    round_s: float
    rates: Mapping[str, Mapping[str, Mapping[float, Rates]]]

    @property
    def fixed_s(self) -> float:
        """What 20 rounds take, whatever comes of them."""
        return RULE.looks[-1] * self.round_s


def study(pool: Pool, *, trials: int, seed: int, ratios: tuple[float, ...] = RATIOS) -> CellStudy:
    drawn = Trials.draw(pool, trials, looks=RULE.looks, seed=seed)
    rates = {
        metric: {
            name: {ratio: _rates(drawn, decide(pool.p99[metric] / ratio)) for ratio in ratios}
            for name, decide in _rules(drawn, metric).items()
        }
        for metric in METRICS
    }
    rates[ROW] = {
        OURS: {ratio: _rates(drawn, _row(drawn, ratio)) for ratio in ratios},
        BEFORE: {ratio: _rates(drawn, _row(drawn, ratio, before=True)) for ratio in ratios},
    }
    return CellStudy(
        cell=pool.cell,
        p99=pool.p99,
        p99_error={metric: _standard_error(pool, metric) for metric in METRICS},
        round_s=float(pool.length_s.mean()),
        rates=rates,
    )


def _rules(drawn: Trials, metric: str) -> dict[str, Callable[[float], Decisions]]:
    looks = len(drawn.looks)
    fail_error, pass_error = RULE.fail_error / looks, RULE.pass_error / looks

    def ours(limit: float, parts: frozenset[str] = WHOLE_RULE) -> Decisions:
        return judge_row(
            drawn, {metric: limit}, fail_error=fail_error, pass_error=pass_error, parts=parts
        )

    def t_of_logs(limit: float) -> Decisions:
        return peers.log_ratio_t(drawn, metric, limit, fail_error=fail_error, pass_error=pass_error)

    return {
        OURS: ours,
        BEFORE: partial(ours, parts=frozenset({"clusters"})),
        "binomial": partial(ours, parts=frozenset()),
        "t of ln p99": t_of_logs,
        "raw p99, 1 round": lambda limit: peers.raw_p99(drawn, metric, limit, rounds=1),
        "raw p99, 20 rounds": lambda limit: peers.raw_p99(drawn, metric, limit, rounds=20),
        "mean of 3 + 10 %": lambda limit: peers.mean_of_three(drawn, metric, limit),
    }


def _row(drawn: Trials, ratio: float, *, before: bool = False) -> Decisions:
    """Both limits at the same ratio."""
    looks, count = len(drawn.looks), len(METRICS)
    return judge_row(
        drawn,
        {metric: drawn.pool.p99[metric] / ratio for metric in METRICS},
        fail_error=RULE.fail_error / looks / count,
        pass_error=RULE.pass_error / looks / (count if before else 1),
        parts=frozenset({"clusters"}) if before else WHOLE_RULE,
    )


def _rates(drawn: Trials, decisions: Decisions) -> Rates:
    assert decisions.count(PASS) + decisions.count(FAIL) + decisions.count(INCONCLUSIVE) == len(
        drawn.picks
    )
    return Rates(
        trials=len(drawn.picks),
        passed=decisions.count(PASS),
        failed=decisions.count(FAIL),
        rounds=float(decisions.rounds.mean()),
        seconds=float(drawn.length_s(decisions).mean()),
    )


def _standard_error(pool: Pool, metric: str) -> float:
    """The relative standard error of the pool's p99, from ten parts of it."""
    parts = np.array_split(pool.samples(metric), 10)
    found = [float(np.quantile(one, 0.99)) for one in parts]
    return float(np.std(found, ddof=1) / np.sqrt(len(parts)) / pool.p99[metric])
