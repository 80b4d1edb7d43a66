"""How old a row's numbers are, and what has changed since."""

import datetime
import re
from collections.abc import Iterator, Sequence

from vllm_slo.slo.findings import Finding, about
from vllm_slo.slo.laws import PROVENANCE
from vllm_slo.slo.row import Provenance
from vllm_slo.slo.thresholds import Thresholds

_VERSION = re.compile(r"(\d+)\.(\d+)")


def staleness(
    file: Thresholds, *, vllm_version: str | None, driver: str | None, today: datetime.date
) -> Iterator[Finding]:
    """Rows that were never measured, or with an older vLLM minor, or another driver."""
    for row in file.rows:
        why = _why_stale(row.provenance, vllm_version, driver)
        if why:
            text = f"{why}; {_age(row.provenance.date, today)}"
            yield about(file.path, row, PROVENANCE, text, gates=False)


def newest_vllm(files: Sequence[Thresholds]) -> str | None:
    """The newest vLLM version that any row of some files was measured with."""
    found = [row.provenance.vllm_version for file in files for row in file.rows]
    versions = [(minor, version) for version in found if version and (minor := _minor(version))]
    return max(versions)[1] if versions else None


def _why_stale(stated: Provenance, vllm_version: str | None, driver: str | None) -> str:
    if stated.kind == "reported":
        return "reported, not measured by this suite: replace it with pytest --slo-update"
    if stated.kind == "target":
        return ""
    reasons = []
    then, now = _minor(stated.vllm_version or ""), _minor(vllm_version or "")
    if then and now and then < now:
        reasons.append(f"measured with vLLM {stated.vllm_version}, now it is {vllm_version}")
    if driver and stated.driver and stated.driver != driver:
        reasons.append(f"measured with driver {stated.driver}, now it is {driver}")
    return " and ".join(reasons)


def _age(date: datetime.date | None, today: datetime.date) -> str:
    if date is None:
        return "its age is not known"
    days = (today - date).days
    return f"it is {days:,} days old, of {date}" if days >= 0 else f"its date {date} is to come"


def _minor(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None
