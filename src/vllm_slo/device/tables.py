"""CSV tables of a layer profile, read strictly: every fault names its file and line."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from vllm_slo.errors import ProfileError


def read_table(
    path: Path, *, text: tuple[str, ...] = (), whole: tuple[str, ...] = (), time: str = "time_us"
) -> Iterator[tuple[tuple[str | int, ...], float]]:
    """Rows as (key, time): the `text` columns, then the `whole` number columns, make the key.

    Raises:
        ProfileError: a missing file or column, a count that is not a whole number >= 0, a time
            that is not a finite number > 0, a key that is there twice.
    """
    columns = (*text, *whole, time)
    seen: dict[tuple[str | int, ...], int] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            missing = [name for name in columns if name not in header]
            if missing:
                raise ProfileError(
                    f"{path}:1: lacks the column {', '.join(missing)}; the columns are "
                    f"{','.join(columns)}"
                )
            places = [header.index(name) for name in columns]
            for row in reader:
                if not row:
                    continue
                where = f"{path}:{reader.line_num}"
                if len(row) != len(header):
                    raise ProfileError(
                        f"{where}: {len(row)} fields where the header has {len(header)}"
                    )
                cells = [row[place].strip() for place in places]
                names: tuple[str | int, ...] = tuple(cells[: len(text)])
                counts: tuple[str | int, ...] = tuple(
                    _count(cell, where=where, column=column)
                    for cell, column in zip(cells[len(text) : -1], whole, strict=True)
                )
                key = (*names, *counts)
                if key in seen:
                    raise ProfileError(f"{where}: the same point as in line {seen[key]}")
                seen[key] = reader.line_num
                yield key, _time(cells[-1], where=where, column=time)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{path}: is not a CSV text file: {error}") from None
    if not seen:
        raise ProfileError(f"{path}: has no rows")


def _count(cell: str, *, where: str, column: str) -> int:
    if not cell.isdecimal():
        raise ProfileError(f"{where}: {column} must be a whole number >= 0, not {cell!r}")
    return int(cell)


def _time(cell: str, *, where: str, column: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise ProfileError(f"{where}: {column} must be a number > 0, not {cell!r}")
    return value
