"""The terminal tables: what each check measured, and how each limit was judged."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_slo.measure.run import Run
from vllm_slo.measure.summary import summarise
from vllm_slo.report.result import FIGURES, LimitResult, Result

_COLOURS = {"PASS": "green", "FAIL": "bold red", "INCONCLUSIVE": "yellow", "INVALID": "yellow"}
_LABELS = {"sim": "SIMULATED ", "emulated": "EMULATED "}
_LEAST_WIDTH = 80
# Narrower than this, the counts of requests and rounds are left to the limits below.
_WIDE = 100
_COLUMNS = (
    ("TTFT\np50 ms", "ttft_p50_ms", 0),
    ("TTFT\np99 ms", "ttft_p99_ms", 0),
    ("TPOT\np50 ms", "tpot_p50_ms", 1),
    ("TPOT\np99 ms", "tpot_p99_ms", 1),
    ("output\ntok/s", "output_tok_s", 0),
    ("pre-\nempted", "preemptions", 0),
    ("SM\n%", "sm_utilisation_percent", 0),
)


def render(
    results: Sequence[Result], *, width: int, colour: bool, cut_short: Sequence[Run] = ()
) -> str:
    """The figures, a line a check, then the limits, a line each, then what needs words.

    Settings that all checks share stand once, above. `cut_short` are the rounds of tests that did
    not come to a verdict.
    """
    sink = StringIO()
    width = max(width, _LEAST_WIDTH)
    console = Console(file=sink, width=width, force_terminal=colour, no_color=not colour)
    if results:
        shared = _shared_settings(results)
        for line in (*titles(results), f"all with {' '.join(shared)}" if shared else ""):
            if line:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print(_figures(results, shared, is_wide=width >= _WIDE))
        console.print()
        console.print(_limits(results, shared))
    words = [line for result in results for line in _words(result)]
    words += [_not_judged(run) for run in cut_short]
    for line in words:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in sink.getvalue().splitlines())


def _figures(results: Sequence[Result], shared: Sequence[str], *, is_wide: bool) -> Table:
    table = _table()
    table.add_column("scenario", overflow="fold")
    table.add_column("settings", overflow="fold")
    columns = [
        column for column in _COLUMNS if any(r.figures.get(column[1]) is not None for r in results)
    ]
    counts = ("requests", "rounds") if is_wide else ()
    for title in (*(title for title, _, _ in columns), *counts):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        table.add_row(
            result.row,
            _own_settings(result, shared),
            *(_number(result.figures.get(name), digits) for _, name, digits in columns),
            *((f"{result.requests:,}", str(result.rounds)) if is_wide else ()),
            _outcome(result.outcome),
        )
    return table


def _limits(results: Sequence[Result], shared: Sequence[str]) -> Table:
    table = _table()
    table.add_column("limit", overflow="fold")
    for title in ("measured", "interval", "samples", "effective"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for result in results:
        table.add_row(f"{result.row}, {_own_settings(result, shared)}")
        for limit in result.limits:
            table.add_row(
                f"  {limit.text}",
                number(limit.measured),
                _interval(limit),
                f"{limit.samples:,}",
                _number(limit.effective_samples),
                _outcome(limit.outcome),
            )
    return table


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def titles(results: Sequence[Result]) -> list[str]:
    """What was measured: device, model and vLLM version, SIMULATED or EMULATED where it was."""
    engines = [result.engine for result in results]
    found = [
        f"{_LABELS.get(e['target'], '')}{e['device']}, {e['model']}, vLLM {e['vllm_version']}"
        for e in engines
    ]
    return list(dict.fromkeys(found))


def _shared_settings(results: Sequence[Result]) -> list[str]:
    """The parts of the settings that every check has; none where there is one check only."""
    parts = [result.settings.split("-") for result in results]
    if len({result.settings for result in results}) < 2:
        return []
    return [part for part in parts[0] if all(part in other for other in parts)]


def _own_settings(result: Result, shared: Sequence[str]) -> str:
    own = [part for part in result.settings.split("-") if part not in shared]
    return " ".join(own) or " ".join(result.settings.split("-"))


def _outcome(outcome: str) -> Text:
    return Text(outcome, style=_COLOURS.get(outcome, "dim"))


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def number(value: float | None) -> str:
    """A measured value, with a decimal where it is small."""
    return _number(value, 1 if value is not None and abs(value) < 100 else 0)


def _interval(limit: LimitResult) -> str:
    if limit.interval is None:
        return "-"
    low, high = limit.interval
    return f"{number(low)} .. {number(high)}"


def _words(result: Result) -> list[str]:
    lines = [
        f"  {limit.text}: {limit.message}"
        for limit in result.limits
        if limit.message and limit.outcome in ("FAIL", "INCONCLUSIVE")
    ]
    lines += [f"  {reason}" for reason in result.reasons]
    lines += [f"  {name}: {value:,.2f}" for name, value in result.notes.items()]
    lines += [f"  {warning}" for warning in result.warnings]
    return [f"{result.row} {result.settings}", *lines] if lines else []


def _not_judged(run: Run) -> str:
    summary = summarise(run)
    figures = ", ".join(
        f"{name} {_number(value, 1)}"
        for name in FIGURES
        if (value := summary.value(name)) is not None
    )
    return (
        f"cut short: {run.workload.name} {run.settings}, {summary.requests} requests in "
        f"{summary.rounds} rounds, not judged: {figures}"
    )
