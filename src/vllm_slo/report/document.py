"""The JSON report; docs/json.md describes its fields."""

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_slo.files import write_whole
from vllm_slo.report.result import Result

VERSION = 1
REDACTED = "***"


def document(
    results: Sequence[Result],
    *,
    target: str,
    options: Mapping[str, object],
    boots: int,
    exit_status: int,
    unused_rows: Sequence[str],
    notices: Sequence[str],
) -> dict[str, Any]:
    """All of a session, as JSON has it: a number that is not finite is null."""
    return {
        "version": VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": target,
        "options": dict(options),
        "boots": boots,
        "exit_status": exit_status,
        "unused_rows": list(unused_rows),
        "notices": list(notices),
        "results": [_result(one) for one in results],
    }


def write_document(path: Path, written: Mapping[str, Any], *, secrets: Sequence[str] = ()) -> None:
    """Writes it whole or not at all; none of `secrets` is in it, whoever put it there.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(written, allow_nan=False, separators=(",", ":"))
    for secret in secrets:
        text = text.replace(json.dumps(secret)[1:-1], REDACTED)
    write_whole(path, text + "\n")


def _result(result: Result) -> dict[str, Any]:
    values = result.to_dict()
    run = values.pop("run")  # finite already, and too long to walk through again
    return {**_finite(values), "run": run}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
