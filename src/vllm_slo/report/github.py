"""The table of a session in the summary page of a GitHub workflow's run."""

from collections.abc import Sequence
from pathlib import Path

from vllm_slo.report.result import LimitResult, Result
from vllm_slo.report.table import number, titles

_MARKS = {"PASS": "✅", "FAIL": "❌"}


def append_summary(path: str, results: Sequence[Result]) -> None:
    """Appends Markdown to the step's summary file.

    Raises:
        OSError: the file cannot be written.
    """
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(summary(results))


def summary(results: Sequence[Result]) -> str:
    """A row per limit, and the words of what did not pass."""
    lines = [
        f"### vLLM SLOs: {_cell('; '.join(titles(results)))}",
        "",
        "| scenario | settings | limit | measured | samples | verdict |",
        "| --- | --- | --- | ---: | ---: | --- |",
    ]
    lines += [_row(result, limit) for result in results for limit in result.limits]
    words = [
        f"- **{result.outcome}** {_cell(result.row_title)}: {_cell(why)}"
        for result in results
        for why in _reasons(result)
    ]
    return "\n".join([*lines, "", *words]) + "\n\n"


def _row(result: Result, limit: LimitResult) -> str:
    mark = _MARKS.get(limit.outcome, "")
    measured = number(limit.measured)
    cells = (result.row, result.settings, limit.text, measured, f"{limit.samples:,}")
    return f"| {' | '.join(map(_cell, cells))} | {mark} {limit.outcome} |"


def _reasons(result: Result) -> list[str]:
    if result.outcome == "PASS":
        return []
    open_limits = [
        f"{one.text}: {one.message}"
        for one in result.limits
        if one.outcome in ("FAIL", "INCONCLUSIVE")
    ]
    return [*result.reasons, *open_limits]


def _cell(text: str) -> str:
    """Text that no character of breaks a Markdown table or becomes a tag."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "\\|").replace("`", "'")
