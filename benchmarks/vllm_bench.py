"""Our client against `vllm bench serve`, in turn, at one emulated server.

    python benchmarks/vllm_bench.py [--vllm PYTHON-OR-VERSION] [--requests 192] [--rounds 3]

Real vLLM on the CPU, paced as an A100-80GB with Llama-3-8B; max_num_seqs 32 and a closed loop of
32, 512 tokens in and 128 to 384 out, equally likely. Ours and theirs take turns. Both are vLLM's
own definitions: TTFT from the send to the first event, TPOT from the first event to the last over
the tokens between.

Outputs vary because equal ones keep a closed loop in the waves that it started in. The p50 of TTFT
then lies between two waves, and one answer that is late moves it by a prefill step or more for the
rest of a round: 252, 337 and 509 ms in three rounds of `vllm bench serve` alone.

Theirs is vLLM's own code with its own command line, run by the engine's Python. The `vllm` command
itself does not start from the CPU wheel, which is installed under another name. The API key goes
by environment: whoever can list processes can read a command line.

Prints a Markdown table. Exits with 0 where the medians of the rounds' p50s agree within 10 % in
TTFT and in TPOT, with 1 where they do not, and with 3 where the machine was too busy to tell: a
round of which more than 1 % of the steps took longer than the device's does not count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from emulated_server import (
    AGREES,
    DIFFERS,
    INCONCLUSIVE,
    MAX_NUM_BATCHED_TOKENS,
    disturbances,
    emulated,
    machine,
    overruns,
    padding,
    table,
)

from vllm_slo.engine import EngineEnvironment, Server, find, resolve_model
from vllm_slo.engine.environ import engine_environ
from vllm_slo.load import HttpTarget
from vllm_slo.measure import EmulationFacts, summarise
from vllm_slo.measure.validity import MOST_OVERRUNS_SHARE
from vllm_slo.settings import Settings
from vllm_slo.traffic import mixed

SEQS = 32
INPUT_TOKENS = 512
OUTPUT_TOKENS = 256
OUTPUT_SPREAD = 0.5  # of it, to either side
TOLERANCE = 0.10
COMPARED = ("ttft_p50_ms", "tpot_p50_ms")
FIGURES = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_tok_s")
THEIR_NAMES = (
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "output_throughput",
)
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one client."""

    client: str
    figures: dict[str, float]
    padding: EmulationFacts
    disturbed: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", default="0.32.0", help="an engine environment, or its Python")
    parser.add_argument("--requests", type=int, default=192, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each client")
    options = parser.parse_args()
    environment = find(options.vllm)
    rounds: list[Measured] = []
    settings = Settings(max_num_seqs=SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated(settings, environment=environment, report_dir=Path(folder)) as (server, target),
    ):
        for seed in range(options.rounds):
            rounds.append(ours(target, options.requests, seed))
            rounds.append(theirs(server, environment, options.requests, seed, Path(folder)))
        version = server.engine.vllm_version
    print(as_table(rounds))
    print(f"\nvLLM {version}; {options.requests} requests a round; {machine()}")
    return judged(rounds)


def ours(target: HttpTarget, requests: int, seed: int) -> Measured:
    least, most = (round(OUTPUT_TOKENS * (1 + side * OUTPUT_SPREAD)) for side in (-1, 1))
    workload = mixed(
        input_tokens=INPUT_TOKENS,
        output_tokens=(least, most),
        requests=requests,
        concurrency=SEQS,
        seed=seed,
    )
    run = target.run(workload)
    summary = summarise(run)
    if summary.failed:
        raise SystemExit(f"{summary.failed} requests failed: {dict(summary.failures)}")
    facts = run.rounds[0].emulation
    assert facts is not None, "the padding worker keeps an account"
    figures = {name: float(summary.value(name) or 0.0) for name in FIGURES}
    return Measured(client="ours", figures=figures, padding=facts, disturbed=disturbances(run))


def theirs(
    server: Server, environment: EngineEnvironment, requests: int, seed: int, folder: Path
) -> Measured:
    result = folder / f"bench-{seed}.json"
    arguments = {
        "backend": "openai",
        "base-url": server.base_url,
        "endpoint": "/v1/completions",
        "model": server.model,
        "tokenizer": resolve_model("shape:tiny").source,
        "dataset-name": "random",
        "random-input-len": INPUT_TOKENS,
        "random-output-len": OUTPUT_TOKENS,
        "random-range-ratio": json.dumps({"input": 0.0, "output": OUTPUT_SPREAD}),
        "num-prompts": requests,
        "max-concurrency": SEQS,
        "request-rate": "inf",
        "seed": seed,
        "percentile-metrics": "ttft,tpot",
        "metric-percentiles": "50,99",
        "num-warmups": SEQS,  # ours warms up too
        "ready-check-timeout-sec": 0,
        "result-dir": folder,
        "result-filename": result.name,
    }
    argv = [f"--{name}={value}" for name, value in arguments.items()]
    argv += ["--ignore-eos", "--save-result", "--disable-tqdm"]
    environ = engine_environ(os.environ, python=environment.python, offline=True)
    environ["OPENAI_API_KEY"] = server.api_key
    account = padding(server)
    account.begin()
    ended = subprocess.run(
        [str(environment.python), "-c", BENCH_SERVE, *argv],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    facts = account.end()["emulation"]
    assert isinstance(facts, EmulationFacts), "an account gives its facts"
    if ended.returncode or not result.exists():
        raise SystemExit(f"vllm bench serve failed:\n{ended.stderr[-2000:]}")
    said = json.loads(result.read_text(encoding="utf-8"))
    planned = (requests, requests * INPUT_TOKENS)
    done = (said["completed"], said["total_input_tokens"])
    if done != planned:
        raise SystemExit(f"vllm bench serve: (requests, tokens in) are {done}, not {planned}")
    figures = {ours: float(said[name]) for ours, name in zip(FIGURES, THEIR_NAMES, strict=True)}
    share = facts.overruns / facts.steps
    is_late = share > MOST_OVERRUNS_SHARE
    disturbed = [f"{share:.1%} of the steps took longer than the device's"] if is_late else []
    return Measured(client="vllm bench serve", figures=figures, padding=facts, disturbed=disturbed)


def medians(rounds: list[Measured], client: str) -> dict[str, float]:
    chosen = [one for one in rounds if one.client == client and not one.disturbed]
    return {name: median(one.figures[name] for one in chosen) for name in FIGURES}


def enough(rounds: list[Measured]) -> bool:
    """Whether more than half of each client's rounds were not disturbed."""
    clients = [one.client for one in rounds]
    quiet = [one.client for one in rounds if not one.disturbed]
    return all(2 * quiet.count(client) > clients.count(client) for client in set(clients))


def differences(rounds: list[Measured]) -> dict[str, float]:
    """Ours over theirs, less one."""
    us, them = medians(rounds, "ours"), medians(rounds, "vllm bench serve")
    return {name: us[name] / them[name] - 1.0 for name in FIGURES}


def as_table(rounds: list[Measured]) -> str:
    head = ["client", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99", "output tok/s", "overruns"]
    lines = [
        [one.client, *(f"{one.figures[name]:.1f}" for name in FIGURES), overruns([one.padding])]
        for one in rounds
    ]
    if not enough(rounds):
        return table(head, lines)
    apart = differences(rounds)
    lines.append(["ours over theirs, medians", *(f"{apart[name]:+.1%}" for name in FIGURES), ""])
    return table(head, lines)


def judged(rounds: list[Measured]) -> int:
    for one in rounds:
        for why in one.disturbed:
            print(f"disturbed, does not count: {one.client}: {why}", file=sys.stderr)
    if not enough(rounds):
        return INCONCLUSIVE
    apart = differences(rounds)
    over = [name for name in COMPARED if abs(apart[name]) > TOLERANCE]
    for name in over:
        print(f"{name} differs by {apart[name]:+.1%}, over {TOLERANCE:.0%}", file=sys.stderr)
    return DIFFERS if over else AGREES


if __name__ == "__main__":
    sys.exit(main())
