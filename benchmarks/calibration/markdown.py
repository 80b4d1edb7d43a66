"""Markdown: tables, and how shares are written."""

import platform
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else float("nan")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---" if not i else "---:" for i in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.is_file() else [])
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, Python {platform.python_version()}"


def reflowed(text: str, *, width: int = 100) -> str:
    """Prose and list items wrapped anew, since numbers have any width; all else as it is."""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith(("#", "|", "!")):
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- |\d+\. )", block)
        blocks.append("\n".join(_wrapped(" ".join(item.split()), width) for item in items))
    return "\n\n".join(blocks)


def _wrapped(item: str, width: int) -> str:
    marker = re.match(r"- |\d+\. ", item)
    indent = " " * len(marker[0]) if marker else ""
    return textwrap.fill(
        item, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
