"""Measured steps from a file: compositions with the time each took."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.device.step import Step
from vllm_slo.errors import ProfileError

FIELDS = ("decodes", "decode_context", "prefills", "sampled", "ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step and the milliseconds it took, the host's time before it included."""

    step: Step
    ms: float


def read_steps(path: Path) -> list[MeasuredStep]:
    """Reads JSON lines, or CSV with a header where the name ends in `.csv`.

    Fields: decodes, decode_context, prefills (pairs of chunk and prior context; in CSV as JSON
    text in the cell), sampled, ms. The padding worker's step log is such a file. Steps without a
    token are left out.

    Raises:
        ProfileError: a file, line or field that cannot be read; the text names file and line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _csv_rows(path, file) if path.suffix == ".csv" else _json_rows(path, file)
            steps = [_measured(fields, where) for where, fields in rows]
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: is not a text file: {error}") from None
    return [measured for measured in steps if measured.step.tokens]


def _json_rows(path: Path, file: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ProfileError(f"{where}: is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ProfileError(f"{where}: expected an object with {', '.join(FIELDS)}")
        yield where, fields


def _csv_rows(path: Path, file: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(file, strict=True)
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise ProfileError(f"{where}: not as many fields as the header has")
            try:
                yield where, {k: json.loads(v) if k in FIELDS else v for k, v in row.items()}
            except ValueError:
                raise ProfileError(
                    f'{where}: a field is not a number, or prefills not JSON such as "[[512, 0]]"'
                ) from None
    except csv.Error as error:
        raise ProfileError(f"{path}:{reader.line_num}: is not CSV: {error}") from None


def _measured(fields: Mapping[str, Any], where: str) -> MeasuredStep:
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise ProfileError(f"{where}: lacks {', '.join(missing)}")
    counts = {}
    for name in ("decodes", "decode_context", "sampled"):
        if not _is_count(fields[name]):
            raise ProfileError(f"{where}: {name} must be a whole number >= 0, not {fields[name]!r}")
        counts[name] = fields[name]
    ms = fields["ms"]
    is_number = isinstance(ms, int | float) and not isinstance(ms, bool)
    if not is_number or not math.isfinite(ms) or ms <= 0:
        raise ProfileError(f"{where}: ms must be a number > 0, not {ms!r}")
    prefills = fields["prefills"]
    if not isinstance(prefills, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(_is_count(n) for n in pair)
        for pair in prefills
    ):
        raise ProfileError(
            f"{where}: prefills must be pairs [chunk, prior context], not {prefills!r}"
        )
    step = Step(prefills=tuple((chunk, context) for chunk, context in prefills), **counts)
    return MeasuredStep(step=step, ms=float(ms))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
