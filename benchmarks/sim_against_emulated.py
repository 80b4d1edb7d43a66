"""The simulator against real vLLM on the emulated device: the same requests, side by side.

    python benchmarks/sim_against_emulated.py [--vllm PYTHON-OR-VERSION] [--row uniform-32]
        [--rounds 3] [--tries 6] [--write docs/sim-against-emulated.md]

Both have the same device model (A100-80GB, Llama-3-8B), scheduler settings, number and size of KV
blocks, and the same plan of requests; both are synchronous, as vLLM is on a CPU. What is left to
differ is what the simulator models of vLLM: its scheduler, its engine loop and its API server.

The API server's time is measured first, on the first server that is booted, with requests of one
token out; it then holds for every row (`front_end_of`). One column shows the
simulator without it.

A figure is the median over rounds, on both sides of the same ones. A round in which the machine
was too busy does not count, and another is run; a row that has not enough others left is marked
as disturbed and counts neither way. Prints a Markdown table. Exits with 0 where every figure of
every row is within 5 % (the p99 of TTFT within 10 %), with 1 where one is not, and with 3 where
all that could be judged are, and a disturbed row is left.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from emulated_server import (
    AGREES,
    DEVICE,
    DIFFERS,
    INCONCLUSIVE,
    MAX_NUM_BATCHED_TOKENS,
    MODEL,
    disturbances,
    emulated,
    machine,
    overruns,
    table,
)

from vllm_slo.device import Step, device_model
from vllm_slo.engine import Server, find
from vllm_slo.load import HttpTarget
from vllm_slo.measure import Run, summarise
from vllm_slo.settings import Settings
from vllm_slo.sim import FrontEnd, open_sim
from vllm_slo.traffic import Workload, mixed, uniform

TOLERANCES = {
    "ttft_p50_ms": 0.05,
    "ttft_p99_ms": 0.10,
    "tpot_p50_ms": 0.05,
    "tpot_p99_ms": 0.05,
    "output_tok_s": 0.05,
}
NAMES = ("TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms", "output tok/s")
ROWS = {
    "uniform-8": (uniform, 8),
    "uniform-16": (uniform, 16),
    "uniform-32": (uniform, 32),
    "mixed-32": (mixed, 32),
    "uniform-64": (uniform, 64),
}
PROBES = 24  # single requests; the median counts
PROMPT_TOKENS = 512
REQUESTS_PER_SLOT = 3

Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload on both; `bare` is the simulator without an API server."""

    name: str
    emulated: Figures
    sim: Figures
    bare: Figures
    rounds: int
    tries: int
    overruns: str
    send_lag_p99_ms: float
    disturbed: Sequence[str]

    def apart(self, name: str) -> float:
        """The simulator's figure over the emulated one, less one."""
        return self.sim[name] / self.emulated[name] - 1.0

    def over(self) -> list[str]:
        """The figures that are further apart than they may be."""
        return [n for n, tolerance in TOLERANCES.items() if abs(self.apart(n)) > tolerance]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", default="0.32.0", help="an engine environment, or its Python")
    parser.add_argument("--row", choices=ROWS, action="append", help="this row; may be repeated")
    parser.add_argument("--rounds", type=positive, default=3, help="of a row, to be counted")
    parser.add_argument("--tries", type=positive, default=6, help="rounds to run for them at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page for docs/")
    options = parser.parse_args()
    names = [name for name in ROWS if not options.row or name in options.row]
    rows, front_end, version = measured(names, options)
    page = as_page(rows, front_end, version, options.row)
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")
    return judged(rows)


def measured(names: Sequence[str], options: argparse.Namespace) -> tuple[list[Row], FrontEnd, str]:
    """The rows, a server for each max_num_seqs; the API server's time; vLLM's version."""
    environment = find(options.vllm)
    front_end = None
    rows: list[Row] = []
    for seqs, group in groupby(names, key=lambda name: ROWS[name][1]):
        settings = Settings(max_num_seqs=seqs, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
        with (
            tempfile.TemporaryDirectory() as folder,
            emulated(settings, environment=environment, report_dir=Path(folder)) as opened,
        ):
            server, target = opened
            version = server.engine.vllm_version
            if front_end is None:
                front_end = front_end_of(server, target)
            for name in group:
                scenario, seqs = ROWS[name]
                workload = scenario(requests=REQUESTS_PER_SLOT * seqs, seed=options.seed)
                attempts = driven(workload, target, rounds=options.rounds, tries=options.tries)
                row = compared(name, attempts, server, front_end, rounds=options.rounds)
                print(f"{name}: {'disturbed' if row.disturbed else 'done'}", file=sys.stderr)
                rows.append(row)
    assert front_end is not None, "there is at least one row"
    return rows, front_end, version


def driven(workload: Workload, target: HttpTarget, *, rounds: int, tries: int) -> list[Run]:
    """Rounds of other seeds each, until enough of them are not disturbed or all tries are used."""
    attempts: list[Run] = []
    quiet = 0
    while quiet < rounds and len(attempts) < max(rounds, tries):
        seqs = target.settings.max_num_seqs
        assert seqs is not None, "every row has its own"
        seeded = workload.reseeded(workload.seed + len(attempts)).for_server(seqs)
        attempts.append(target.run(seeded))
        quiet += not disturbances(attempts[-1])
    return attempts


def compared(
    name: str, attempts: Sequence[Run], server: Server, front_end: FrontEnd, *, rounds: int
) -> Row:
    """The rounds that count on both; all of them, and why, where too many were disturbed.

    More than half of the rounds that were asked for are enough.
    """
    counted = [run for run in attempts if not disturbances(run)]
    disturbed = []
    if len(counted) <= rounds // 2:
        disturbed = sorted({why for run in attempts for why in disturbances(run)})
        counted = list(attempts)
    same = as_it_runs(server)
    facts = [run.rounds[0].emulation for run in counted]
    return Row(
        name=name,
        emulated=medians(counted),
        sim=medians([simulated(same, run.workload, front_end) for run in counted]),
        bare=medians([simulated(same, run.workload, FrontEnd()) for run in counted]),
        rounds=len(counted),
        tries=len(attempts),
        overruns=overruns([one for one in facts if one is not None]),
        send_lag_p99_ms=max(run.rounds[0].client.send_lag_p99_s for run in counted) * 1e3,
        disturbed=disturbed,
    )


def medians(runs: Sequence[Run]) -> Figures:
    each = [figures(run) for run in runs]
    return {name: float(np.median([one[name] for one in each])) for name in TOLERANCES}


def as_it_runs(server: Server) -> Settings:
    """The settings that the server says it runs with, for the simulator."""
    return Settings(
        max_num_seqs=server.settings.max_num_seqs,
        max_num_batched_tokens=server.settings.max_num_batched_tokens,
        block_size=int(server.config["block_size"]),
        num_gpu_blocks_override=int(server.config["num_gpu_blocks"]),
        max_model_len=server.max_model_len,
        enable_prefix_caching=False,
        async_scheduling=False,
    )


def simulated(settings: Settings, workload: Workload, front_end: FrontEnd) -> Run:
    return open_sim(settings, device=DEVICE, model=MODEL, front_end=front_end).run(workload)


def figures(run: Run) -> Figures:
    summary = summarise(run)
    if summary.failed:
        raise SystemExit(f"{summary.failed} requests failed: {dict(summary.failures)}")
    return {name: float(summary.value(name) or 0.0) for name in TOLERANCES}


def front_end_of(server: Server, target: HttpTarget) -> FrontEnd:
    """What a request takes of the API server, measured with next to nothing to do for the engine.

    Requests of the rows' prompt length, with a single token out. The way in is the CPU time that
    the API server takes for each of a burst: it has one event loop, so requests that are sent
    together pass it one after another. The way out is what single requests, one after another,
    take over the modelled step, less the way in.
    """
    # Without observers: the API server answers their questions on the same thread.
    alone = HttpTarget(endpoint=target.endpoint, settings=target.settings, engine=target.engine)
    one = uniform(
        input_tokens=PROMPT_TOKENS, output_tokens=1, requests=PROBES, concurrency=1, seed=1 << 32
    )
    together = replace(one, concurrency=PROBES, seed=one.seed + 1)
    alone.warm_up(together)
    before_s = cpu_s(server.pid)
    alone.run(together)
    request_s = (cpu_s(server.pid) - before_s) / PROBES
    model = device_model(DEVICE, model=MODEL, scheduling="sync")
    step_s = model.step_ms(Step(prefills=((PROMPT_TOKENS, 0),), sampled=1)) / 1e3
    ttfts_s = [record.ttft_s for record in alone.run(one).records if record.ttft_s is not None]
    way_s = float(np.median(ttfts_s)) - step_s
    if way_s <= 0.0:
        raise SystemExit(f"a single request took {-way_s * 1e3:.1f} ms less than its step")
    return FrontEnd(request_s=request_s, response_s=max(0.0, way_s - request_s))


def cpu_s(pid: int) -> float:
    """The CPU time of a process's threads that live, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text(encoding="ascii").split()[0]) for path in threads) / 1e9


def as_page(rows: Sequence[Row], front_end: FrontEnd, version: str, asked: Sequence[str]) -> str:
    command = "python benchmarks/sim_against_emulated.py"
    command += "".join(f" --row {name}" for name in asked or ())
    lines = []
    for row in rows:
        for label, name in zip(NAMES, TOLERANCES, strict=True):
            is_far = not row.disturbed and name in row.over()
            lines.append(
                [
                    f"{row.name}, {label}",
                    f"{row.emulated[name]:.1f}",
                    f"{row.sim[name]:.1f}",
                    f"{row.apart(name):+.1%}{' (over)' if is_far else ''}",
                    f"{TOLERANCES[name]:.0%}",
                    f"{row.bare[name]:.1f}",
                ]
            )
    quality = [
        [
            row.name,
            f"{row.rounds} of {row.tries}",
            row.overruns,
            f"{row.send_lag_p99_ms:.2f}",
            "; ".join(row.disturbed) or "no",
        ]
        for row in rows
    ]
    return PAGE.format(
        figures=table(
            ["", "emulated", "sim", "difference", "allowed", "sim without API server"], lines
        ),
        quality=table(
            ["row", "rounds counted", "overruns", "send lag p99, ms", "disturbed"], quality
        ),
        command=command,
        version=version,
        machine=machine(),
        request_ms=front_end.request_s * 1e3,
        response_ms=front_end.response_s * 1e3,
        probes=PROBES,
    )


PAGE = """\
# The simulator against real vLLM

Real vLLM {version} on the CPU, each step paced as an A100-80GB with Llama-3-8B would take
(`--slo-target=emulated`), and the simulator with the same device model, settings, KV blocks and
requests, both synchronous. Closed loops as wide as `max_num_seqs`, 512 tokens in; 256 out
(uniform), or 64 to 1,024 (mixed).

{figures}

`{command}`; {machine}.

## Was the machine quiet?

A round with a client that was late, or with more than 1 % of its steps over their time, says
nothing about the simulator. It does not count and another is run; a row with too few others left
is marked as disturbed, and counts neither way.

{quality}

## What the API server adds

A request took {request_ms:.1f} ms on the way in and {response_ms:.1f} ms on the way out, for every
row alike: measured first, with {probes} requests of one token out. The way in is the CPU time that
the API server takes for each of a burst, which pass its one event loop one after another; the way
out is what single requests take over the modelled step, less the way in.

So the first of a burst reaches an idle engine alone and is prefilled alone, and the others form
groups behind it. Without an API server the simulator prefills the first four together, and the
groups, which a uniform closed loop keeps to its end, are others: that, and not the milliseconds
themselves, is what the last column differs by.

Those groups are also why a figure is the median of rounds: a single answer that comes a step late,
on a machine with other work, splits a group, and the p50 of TTFT, which lies between two groups,
moves by a prefill step or more for the rest of that round.
"""


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number >= 1, not {text!r}")
    return int(text)


def judged(rows: Sequence[Row]) -> int:
    for row in rows:
        for why in row.disturbed:
            print(f"{row.name} is disturbed: {why}", file=sys.stderr)
    counted = [row for row in rows if not row.disturbed]
    apart = [(row, name) for row in counted for name in row.over()]
    for row, name in apart:
        print(
            f"{row.name}: {name} differs by {row.apart(name):+.1%}, over {TOLERANCES[name]:.0%}",
            file=sys.stderr,
        )
    if apart:
        return DIFFERS
    return AGREES if len(counted) == len(rows) else INCONCLUSIVE


if __name__ == "__main__":
    sys.exit(main())
