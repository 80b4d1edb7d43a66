"""Pools of simulated rounds: the populations that trials are drawn from."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vllm_slo.device import device_model, kv_blocks
from vllm_slo.device.step import Step, StepTimeModel
from vllm_slo.measure.queueing import found_by_arrivals
from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.measure.table import tabulate
from vllm_slo.settings import Settings
from vllm_slo.sim import SimTarget
from vllm_slo.traffic import Poisson, mixed, uniform
from vllm_slo.traffic.workload import Workload

Floats = NDArray[np.float64]

DEVICE = "a100-80gb"
MAX_NUM_SEQS = 32
REQUESTS = 300  # a round, as the open-loop scenarios have by default
UTILISATIONS = (0.3, 0.5, 0.7, 0.85)
SERVICES = ("uniform", "mixed")
NOISES = (0.0, 0.02, 0.05)
METRICS = ("ttft", "tpot")
_COLUMNS = ("length_s", "found", "found_squared", "arriving_s")
_SATURATING_REQUESTS = 4000
_PROBED = 3  # rounds of a cached pool that are simulated again
_SCENARIOS: dict[str, Callable[..., Workload]] = {"uniform": uniform, "mixed": mixed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of the study.

    `utilisation` is the offered rate over the rate of a saturated server. `noise` is the standard
    deviation of the logarithm of a factor, one a round, on every step's time: what clocks, heat
    and neighbours do between runs. Another `build` has the same plans, noise of its own, and
    `slowdown` as a factor on every step of all rounds.
    """

    service: str
    utilisation: float
    noise: float = 0.0
    build: str = "A"
    slowdown: float = 1.0

    @property
    def name(self) -> str:
        text = f"{self.service}-{self.utilisation:g}-noise{self.noise * 100:g}"
        return text if self.build == "A" else f"{text}-{self.build}-x{self.slowdown:.6f}"

    @property
    def rate(self) -> float:
        return self.utilisation * capacity_rps(self.service)

    def workload(self) -> Workload:
        scenario = _SCENARIOS[self.service]
        return scenario(requests=REQUESTS, arrivals=Poisson(self.rate))


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Independent rounds of a cell: each round's samples, sorted, and its length in seconds.

    `ttft` and `tpot` have shape (rounds, requests), in milliseconds. Of shape (rounds,) are
    `length_s`, `found` and `found_squared`, the sums over the requests of how many others each
    found in the server, and of its square, and `arriving_s`, the time from first arrival to last.
    """

    cell: Cell
    ttft: Floats
    tpot: Floats
    length_s: Floats
    found: Floats
    found_squared: Floats
    arriving_s: Floats

    def samples(self, metric: str) -> Floats:
        return {"ttft": self.ttft, "tpot": self.tpot}[metric]

    @property
    def rounds(self) -> int:
        return len(self.length_s)

    @cached_property
    def p99(self) -> dict[str, float]:
        """The p99 of all rounds together, by metric: not more than 1 % of the pool is over it."""
        return {one: p99(self.samples(one)) for one in METRICS}


def p99(samples: Floats) -> float:
    return float(np.quantile(samples, 0.99, method="inverted_cdf"))


class Slowed:
    """A device whose every step takes `factor` times as long."""

    def __init__(self, device: StepTimeModel, factor: float) -> None:
        self._device = device
        self._factor = factor

    def step_ms(self, step: Step) -> float:
        return self._factor * self._device.step_ms(step)

    def decode_run_ms(self, *, decodes: int, decode_context: int, steps: int) -> Floats:
        return self._factor * self._device.decode_run_ms(
            decodes=decodes, decode_context=decode_context, steps=steps
        )


def server(factor: float = 1.0) -> SimTarget:
    """The simulated server, its step times multiplied by `factor`."""
    return SimTarget(
        Settings(max_num_seqs=MAX_NUM_SEQS),
        device=Slowed(device_model(DEVICE, scheduling="async"), factor),
        num_gpu_blocks=kv_blocks(DEVICE),
        engine=f"sim-{DEVICE}",
    )


@lru_cache
def capacity_rps(service: str) -> float:
    """Requests a second that a saturated server finishes: a closed loop, two requests a slot.

    Of the middle four fifths, so that neither the start nor the end counts.
    """
    scenario = _SCENARIOS[service]
    run = server().run(scenario(requests=_SATURATING_REQUESTS, concurrency=2 * MAX_NUM_SEQS))
    finished = np.sort([one.finished_s for one in run.records if one.finished_s is not None])
    first, last = len(finished) // 10, len(finished) * 9 // 10
    return float((last - first) / (finished[last] - finished[first]))


def rounds_of(cell: Cell, seeds: Sequence[int]) -> list[Run]:
    """One run of one round for each seed, which gives the plan and the round's noise."""
    workload = cell.workload()
    runs = []
    for seed in seeds:
        factor = cell.slowdown * noise_factor(cell, seed)
        runs.append(server(factor).run(workload.reseeded(int(seed))))
    return runs


def noise_factor(cell: Cell, seed: int) -> float:
    """Lognormal with mean 1; a build has noise of its own in each round, whatever its slowdown."""
    build = replace(cell, slowdown=1.0)
    rng = np.random.default_rng((seed, zlib.crc32(build.name.encode())))
    return float(np.exp(cell.noise * rng.standard_normal() - cell.noise**2 / 2))


def round_seeds(cell: Cell, rounds: int, *, seed: int) -> list[int]:
    """Each cell has its own plans; builds of the same cell have the same ones."""
    plans = replace(cell, build="A", slowdown=1.0)
    sequence = np.random.SeedSequence((seed, zlib.crc32(plans.name.encode())))
    return [int(one) for one in sequence.generate_state(rounds)]


def simulate_pool(cell: Cell, rounds: int, *, seed: int) -> Pool:
    seeds = round_seeds(cell, rounds, seed=seed)
    return pool_from(cell, (run for one in seeds for run in rounds_of(cell, [one])))


def pool_from(cell: Cell, runs: Iterable[Run]) -> Pool:
    """The pool of runs of one round each; of a run only that is kept."""
    rows: dict[str, list[Floats]] = {name: [] for name in (*METRICS, *_COLUMNS)}
    for run in runs:
        latencies = summarise(run).latencies
        for metric in METRICS:
            rows[metric].append(np.sort(latencies[metric].outcomes()[0]))
        table = tabulate(run)
        (found,) = found_by_arrivals(table)
        rows["length_s"].append(np.array(run.rounds[0].window_s[1]))
        rows["found"].append(np.asarray(found.sum()))
        rows["found_squared"].append(np.asarray((found**2).sum()))
        rows["arriving_s"].append(np.asarray(np.ptp(table.scheduled_s)))
    return Pool(cell=cell, **{name: np.array(values) for name, values in rows.items()})


def pool_of(cell: Cell, rounds: int, *, seed: int, cache: Path | None = None) -> Pool:
    """The pool of a cell, from `cache` where it has it.

    A cached pool counts only if its first rounds, simulated again, are the same: the simulator may
    have changed since.
    """
    if cache is None:
        return simulate_pool(cell, rounds, seed=seed)
    path = cache / f"{cell.name}-{rounds}x{REQUESTS}-seed{seed}.npz"
    if path.is_file():
        with np.load(path) as kept:
            pool = Pool(cell=cell, **{name: kept[name] for name in (*METRICS, *_COLUMNS)})
        probe = simulate_pool(cell, min(_PROBED, rounds), seed=seed)
        if all(_is_start(getattr(probe, n), getattr(pool, n)) for n in (*METRICS, *_COLUMNS)):
            return pool
    pool = simulate_pool(cell, rounds, seed=seed)
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    np.savez(unfinished, **{name: getattr(pool, name) for name in (*METRICS, *_COLUMNS)})
    unfinished.replace(path)
    return pool


def _is_start(probe: Floats, kept: Floats) -> bool:
    return bool(np.allclose(probe, kept[: len(probe)], rtol=1e-9, atol=0))
