"""Reading trace files: every line is checked, and a fault names its file and line."""

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from vllm_slo.errors import TraceError
from vllm_slo.traffic.workload import MAX_TOKENS

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length")


@dataclass(slots=True)
class Rows:
    """What the lines of a trace say, in their order."""

    arrival_s: list[float] = field(default_factory=list)
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    hash_ids: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """Where the reader is, so that a fault can say so."""

    file: Path
    line: int = 0

    def fault(self, text: str) -> TraceError:
        where = f"{self.file}, line {self.line}" if self.line else f"{self.file}"
        return TraceError(f"{where}: {text}")


def sniff(file: Path) -> Literal["azure", "mooncake"]:
    """A Mooncake trace begins with a brace, anything else is read as CSV."""
    with _opened(file) as (stream, _):
        for line in stream:
            if line.strip():
                return "mooncake" if line.lstrip().startswith("{") else "azure"
    raise TraceError(f"{file}: the file is empty")


def read_azure(file: Path) -> Rows:
    """The Azure LLM inference traces' form; times count from the first request."""
    rows = Rows()
    with _opened(file) as (stream, place):
        lines = csv.reader(stream, strict=True)
        header = next(lines, None)
        place.line = 1
        if header is None:
            raise place.fault("the file is empty")
        time_at, input_at, output_at = _columns(header, place)
        clock = _Clock()
        for cells in lines:
            place.line = lines.line_num
            if not cells:
                continue  # a blank line, such as the last
            if len(cells) != len(header):
                raise place.fault(
                    f"{len(cells)} fields where the header has {len(header)}: {','.join(cells)!r}"
                )
            time_s = clock.seconds(cells[time_at], place)
            _append(rows, time_s, place, "TIMESTAMP")
            rows.input_tokens.append(_tokens_of_text(cells[input_at], "ContextTokens", place))
            rows.output_tokens.append(_tokens_of_text(cells[output_at], "GeneratedTokens", place))
    return rows


def read_mooncake(file: Path) -> Rows:
    """The Mooncake traces' form; `timestamp` is in ms from the trace's start."""
    rows = Rows()
    with _opened(file) as (stream, place):
        for line in stream:
            place.line += 1
            if not line.strip():
                continue
            entry = _json_object(line, place)
            stamp = _number(entry["timestamp"], "timestamp", place)
            _append(rows, stamp / 1000, place, "timestamp")
            size = _tokens(entry["input_length"], "input_length", place)
            rows.input_tokens.append(size)
            rows.output_tokens.append(_tokens(entry["output_length"], "output_length", place))
            rows.hash_ids.append(_hash_ids(entry.get("hash_ids"), size, place))
    return rows


@contextmanager
def _opened(file: Path) -> Iterator[tuple[TextIO, _Place]]:
    """The file as text: plain or gzipped, with or without a byte-order mark, any line ends."""
    place = _Place(file)
    is_gzip = file.suffix == ".gz"
    try:
        opened: Any = gzip.open if is_gzip else open
        with opened(file, "rt", encoding="utf-8-sig", newline=None) as stream:
            yield stream, place
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{file}: not UTF-8 text after line {place.line} ({error.reason})"
        ) from None
    except csv.Error as error:
        raise TraceError(f"{file}, line {place.line + 1}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{file}: damaged gzip after line {place.line} ({error})") from None
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror or error})") from None


def _columns(header: list[str], place: _Place) -> list[int]:
    names = [name.strip().lower() for name in header]
    missing = [name for name in AZURE_COLUMNS if name.lower() not in names]
    if missing:
        raise place.fault(
            f"no column {', '.join(missing)}; the header has {', '.join(header) or 'nothing'}"
        )
    return [names.index(name.lower()) for name in AZURE_COLUMNS]


def _append(rows: Rows, time_s: float, place: _Place, name: str) -> None:
    if rows.arrival_s and time_s < rows.arrival_s[-1]:
        raise place.fault(f"{name} is earlier than the line before: sort the trace by time")
    rows.arrival_s.append(time_s)


class _Clock:
    """Timestamps as seconds since the first, exact to the digit where they fit a float."""

    def __init__(self) -> None:
        self._whole_text = ""
        self._whole = 0
        self._first: tuple[int, float] | None = None
        self._has_zone = False

    def seconds(self, text: str, place: _Place) -> float:
        # Seven fractional digits are more than datetime keeps, so they are read apart.
        whole_text, point, rest = text.strip().partition(".")
        digits = len(rest) - len(rest.lstrip("0123456789"))
        fraction, zone = rest[:digits], rest[digits:]
        key = whole_text + zone
        if (point and not fraction) or not text.isascii():
            raise place.fault(f"TIMESTAMP {text!r} is not a date and time")
        if key != self._whole_text:
            try:
                moment = datetime.fromisoformat(key)
            except ValueError:
                raise place.fault(
                    f"TIMESTAMP {text!r} is not a date and time such as 2023-11-16 18:17:03.9799600"
                ) from None
            has_zone = moment.tzinfo is not None
            if self._first is not None and has_zone != self._has_zone:
                raise place.fault("TIMESTAMP with a time zone on some lines and without on others")
            self._has_zone = has_zone
            aware = moment if has_zone else moment.replace(tzinfo=UTC)
            self._whole, self._whole_text = int(aware.timestamp()), key
        part = int(fraction) / 10**digits if digits else 0.0
        if self._first is None:
            self._first = (self._whole, part)
        return self._whole - self._first[0] + (part - self._first[1])


def _tokens_of_text(text: str, name: str, place: _Place) -> int:
    cell = text.strip()
    # isdecimal alone lets other scripts' digits in; the length keeps int() away from huge texts.
    if not (cell.isascii() and cell.isdecimal() and len(cell) <= 20):
        raise place.fault(f"{name} must be a whole number of tokens, not {_short(text)}")
    return _tokens(int(cell), name, place)


def _tokens(value: object, name: str, place: _Place) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise place.fault(f"{name} must be a whole number of tokens, not {_short(value)}")
    if not 1 <= value <= MAX_TOKENS:
        raise place.fault(f"{name} must be from 1 to {MAX_TOKENS} tokens, not {_short(value)}")
    return value


def _number(value: object, name: str, place: _Place) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number past 2**53 ms (285,000 years) is no time, and may be too big for a float.
    if not is_number or not 0 <= value <= 2**53 or not math.isfinite(value):  # type: ignore[operator, arg-type]
        raise place.fault(f"{name} must be a number of ms >= 0, not {_short(value)}")
    return float(value)  # type: ignore[arg-type]


def _json_object(line: str, place: _Place) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise place.fault(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise place.fault(f"not JSON that can be read ({error})") from None
    if not isinstance(entry, dict):
        raise place.fault(f"an object is wanted, not {_short(entry)}")
    missing = [name for name in MOONCAKE_FIELDS if name not in entry]
    if missing:
        raise place.fault(f"no {', '.join(missing)}; it has {', '.join(entry) or 'nothing'}")
    return entry


def _hash_ids(value: object, input_tokens: int, place: _Place) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
    ):
        raise place.fault(f"hash_ids must be a list of whole numbers >= 0, not {_short(value)}")
    if len(value) > math.ceil(input_tokens / 512):
        raise place.fault(
            f"{len(value)} hash_ids are more blocks of 512 than {input_tokens} tokens have"
        )
    return tuple(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
