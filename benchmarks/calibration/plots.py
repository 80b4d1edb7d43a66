"""The plots of docs/calibration.md, as SVG files that are the same for the same numbers."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.calibration.builds import COMMON, SEPARATE, SHOWN_PAIRS, WELCH, BuildStudy
from benchmarks.calibration.limits import BEFORE, OURS, PEERS, RULE, CellStudy
from benchmarks.calibration.pools import METRICS, UTILISATIONS

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "calibration",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
_COLOURS = ("#1b6ca8", "#2e9e6b", "#d98b1f", "#b8324a", "#7a5195", "#666666", "#999999")


def write_plots(
    studies: Sequence[CellStudy], builds: Sequence[BuildStudy], folder: Path, *, noise: float
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        made = {
            "power.svg": _power(studies, noise),
            "boundary.svg": _boundary(studies),
            "builds.svg": _builds(builds),
        }
    paths = []
    for name, figure in made.items():
        with mpl.rc_context(_STYLE):
            figure.savefig(folder / name, format="svg", metadata={"Date": None})
        paths.append(folder / name)
    return paths


def _grid(rows: int, columns: int, *, height: float) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(9, height))
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, axes.tolist()


def _power(studies: Sequence[CellStudy], noise: float) -> Figure:
    """How often PASS and FAIL are said, over the true p99's distance from the limit."""
    services = sorted({one.cell.service for one in studies}, reverse=True)
    figure, axes = _grid(len(METRICS), len(services), height=6)
    for row, metric in zip(axes, METRICS, strict=True):
        for axis, service in zip(row, services, strict=True):
            for colour, utilisation in zip(_COLOURS, UTILISATIONS, strict=False):
                for one in studies:
                    if (one.cell.service, one.cell.utilisation) != (service, utilisation):
                        continue
                    if one.cell.noise != noise:
                        continue
                    rates = one.rates[metric][OURS]
                    x = [100 * (ratio - 1) for ratio in rates]
                    label = f"utilisation {utilisation:g}"
                    passed = [100 * rate.pass_share for rate in rates.values()]
                    failed = [100 * rate.fail_share for rate in rates.values()]
                    axis.plot(x, passed, color=colour, linestyle="--", marker="o", markersize=3)
                    axis.plot(x, failed, color=colour, marker="o", markersize=3, label=label)
            axis.axvline(0, color="black", linewidth=0.8)
            axis.set_title(f"{metric.upper()} p99, {service}")
    axes[0][0].legend(loc="center left", frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("true p99 over the limit, %")
    for row in axes:
        row[0].set_ylabel("% of trials")
    figure.suptitle(
        f"SIMULATED. Dashed: PASS, solid: FAIL; at most 20 rounds, noise {noise:.0%} between rounds"
    )
    return figure


def _boundary(studies: Sequence[CellStudy]) -> Figure:
    """With the limit at the true p99: how often each rule says PASS, and FAIL; a dot a cell."""
    rules = (OURS, BEFORE, *PEERS)
    figure, (axes,) = _grid(1, 2, height=4)
    for axis, outcome, stated in (
        (axes[0], "pass_share", RULE.pass_error),
        (axes[1], "fail_share", RULE.fail_error),
    ):
        for place, rule in enumerate(rules):
            for metric, shift, colour in (
                ("ttft", -0.15, _COLOURS[0]),
                ("tpot", 0.15, _COLOURS[2]),
            ):
                shares = [100 * getattr(one.rates[metric][rule][1.0], outcome) for one in studies]
                axis.plot(
                    shares,
                    [place + shift] * len(shares),
                    "o",
                    color=colour,
                    alpha=0.5,
                    markersize=4,
                    label=metric.upper() if not place else None,
                )
        axis.axvline(150 * stated, color="black", linewidth=0.8, linestyle=":")
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(-0.1, 105)
        axis.set_xticks([0, 1, 5, 20, 50, 100], ["0", "1", "5", "20", "50", "100"])
    axes[0].set_yticks(range(len(rules)), rules)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("false PASS, % of trials")
    axes[1].set_xlabel("false FAIL, % of trials")
    axes[1].legend(loc="lower right", frameon=False)
    figure.suptitle("SIMULATED. The limit at the true p99; dotted: 1.5 times the stated error")
    return figure


def _builds(builds: Sequence[BuildStudy]) -> Figure:
    """How often ten pairs find a regression, over the true ratio."""
    cells = list(dict.fromkeys(one.cell for one in builds))
    figure, axes = _grid(2, max(1, -(-len(cells) // 2)), height=5)
    for axis, cell in zip(chain(*axes), cells, strict=False):
        found = [one for one in builds if one.cell == cell]
        for colour, rule in zip(_COLOURS, (COMMON, SEPARATE, WELCH), strict=False):
            rates = [one.rates[rule][SHOWN_PAIRS] for one in found]
            x = [one.typical for one in found]
            axis.plot(
                x,
                [100 * one.failed / one.trials for one in rates],
                color=colour,
                marker="o",
                markersize=3,
                label=rule,
            )
        axis.set_title(f"{cell.service}, utilisation {cell.utilisation:g}")
    if cells:
        axes[0][0].legend(loc="upper left", frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("p99 of TTFT, B over A")
    for row in axes:
        row[0].set_ylabel("FAIL, % of trials")
    figure.suptitle(f"SIMULATED. {SHOWN_PAIRS} pairs, 10 % tolerated, noise 2 % between rounds")
    return figure
