"""Runs the study, prints it, and writes it where --write says."""

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration.builds import RATIOS, BuildStudy, study_builds
from benchmarks.calibration.limits import CellStudy, study
from benchmarks.calibration.page import holds_everywhere, page
from benchmarks.calibration.page_limits import SHOWN_NOISE
from benchmarks.calibration.pools import NOISES, SERVICES, UTILISATIONS, Cell, Pool, pool_of

_BUILD_UTILISATIONS = (0.3, 0.5, 0.7)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description="How often the verdicts are wrong, on the simulator in virtual time. "
        "Exits with 1 where an error is over 1.5 times what is stated.",
    )
    parser.add_argument("--rounds", type=int, default=600, help="simulated, of each cell")
    parser.add_argument("--trials", type=int, default=4000, help="of each cell")
    parser.add_argument("--pairs", type=int, default=200, help="simulated, of each build")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few minutes: noise 2 %% alone")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the simulated rounds")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="the folder of calibration.md")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.pairs) < 40 or options.trials < 100:
        parser.error("at least 40 rounds, 40 pairs and 100 trials")
    rounds, trials, pairs = options.rounds, options.trials, options.pairs
    if options.quick:
        rounds, trials, pairs = min(rounds, 150), min(trials, 1000), min(pairs, 60)
    noises = (SHOWN_NOISE,) if options.quick else NOISES
    cells = [
        Cell(service=service, utilisation=utilisation, noise=noise)
        for service in SERVICES
        for utilisation in UTILISATIONS
        for noise in noises
    ]
    studies: list[CellStudy] = []
    builds: list[BuildStudy] = []
    for place, cell in enumerate(cells):
        _say(f"{place + 1}/{len(cells)} {cell.name}")
        pool = pool_of(cell, rounds, seed=options.seed, cache=options.cache)
        studies.append(study(pool, trials=trials, seed=options.seed + place))
        if cell.noise == SHOWN_NOISE and cell.utilisation in _BUILD_UTILISATIONS:
            builds += _builds(cell, pool, options, pairs=pairs, trials=trials)
    text = page(
        studies,
        builds,
        command=f"python -m benchmarks.calibration --write docs/{' --quick' * options.quick}",
        date=datetime.date.today().isoformat(),
        pool_rounds=rounds,
        pairs=pairs,
        trials=trials,
    )
    print(text)
    if options.write is not None:
        from benchmarks.calibration.plots import write_plots

        (options.write / "calibration.md").write_text(text)
        write_plots(studies, builds, options.write / "calibration", noise=SHOWN_NOISE)
    return 0 if holds_everywhere(studies) else 1


def _builds(
    cell: Cell, pool: Pool, options: argparse.Namespace, *, pairs: int, trials: int
) -> list[BuildStudy]:
    return study_builds(
        cell,
        pool,
        pairs=pairs,
        trials=trials,
        seed=options.seed,
        cache=options.cache,
        ratios=RATIOS[::3] if options.quick else RATIOS,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
