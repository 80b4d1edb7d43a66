"""Values out of a parsed TOML document, each error with its file, line, row and key."""

import datetime
import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vllm_slo.errors import ThresholdsError
from vllm_slo.slo.lines import KeyPath, key_lines

_AT_LINE = re.compile(r"at line (\d+), column (\d+)")


def read_text(path: Path) -> str:
    """The text of a threshold file.

    Raises:
        ThresholdsError: it is not there, may not be read, or is not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ThresholdsError(f"{path}: cannot be read: {reason}") from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ThresholdsError(
            f"{path}:{line}: is not UTF-8 (byte 0x{raw[error.start]:02x}): save the file as UTF-8"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One table of a document, at `at`; `row` is how errors call the row it belongs to."""

    path: Path
    values: Mapping[str, Any]
    at: KeyPath = ()
    row: str = ""
    lines: Mapping[KeyPath, int] = field(repr=False)

    @classmethod
    def parse(cls, text: str, path: Path) -> "Reader":
        """The document's root table.

        Raises:
            ThresholdsError: the text is not TOML: half written, say. The text names the line.
        """
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = text.count("\n") + 1
            found = _AT_LINE.search(str(error))
            what = _AT_LINE.sub(lambda m: f"at column {m[2]}", str(error))
            if found:
                line = int(found[1])
            else:
                what += ": is the file whole?"
            raise ThresholdsError(
                f"{path}:{line}: is not valid TOML: {what}\n"
                "mend the line, or restore the file from version control"
            ) from None
        except ValueError:  # what int() makes of thousands of digits
            raise ThresholdsError(f"{path}:1: has a number of too many digits") from None
        except RecursionError:
            raise ThresholdsError(f"{path}:1: is nested too deep for a threshold file") from None
        return cls(path=path, values=values, lines=key_lines(text))

    def line(self, *keys: str | int) -> int:
        """The line of a key below this table, or of the table where the key is missing."""
        where: KeyPath = (*self.at, *keys)
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def fail(self, what: str, *keys: str | int) -> NoReturn:
        """Raises a `ThresholdsError` about a key of this table, or about the table."""
        called = ".".join(str(k) for k in (*self.at, *keys) if not isinstance(k, int))
        row = f"row {self.row}: " if self.row else ""
        if row:
            called = called.removeprefix("row").removeprefix(".")
        name = f"{called} " if called else ""
        raise ThresholdsError(f"{self.path}:{self.line(*keys)}: {row}{name}{what}")

    def check_names(self, allowed: Collection[str]) -> None:
        """Raises unless every key of this table is an allowed one."""
        for key in self.values:
            if key not in allowed:
                self.fail(f"is not a known key{suggest(key, allowed)}", key)

    def table(self, key: str, *, required: bool = False) -> "Reader | None":
        """The table under `key`, or `None`."""
        value = self.values.get(key)
        if value is None and not required:
            return None
        if not isinstance(value, Mapping):
            self.fail("is missing: add this table" if value is None else "must be a table", key)
        return Reader(
            path=self.path, values=value, at=(*self.at, key), row=self.row, lines=self.lines
        )

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self.fail(f"must be text in quotes, not {value!r}", key)
        return value

    def required_text(self, key: str, why: str) -> str:
        value = self.text(key)
        if value is None:
            self.fail(f'is missing: add {key} = "...", {why}', key)
        return value

    def whole(self, key: str, *, at_least: int) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            self.fail(f"must be a whole number of at least {at_least}, not {value!r}", key)
        return value

    def date(self, key: str) -> datetime.date | None:
        """A TOML date, or the same in quotes."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, datetime.datetime):
            return value.date()
        if isinstance(value, datetime.date):
            return value
        try:
            return datetime.date.fromisoformat(value)
        except (TypeError, ValueError):
            self.fail(f"must be a date such as 2026-01-31, not {value!r}", key)

    def names(self, key: str, allowed: Collection[str], what: str) -> tuple[str, ...]:
        """A list of names out of `allowed`."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            self.fail(f"must be a list of {what}, not {value!r}", key)
        for index, name in enumerate(value):
            if not isinstance(name, str) or name not in allowed:
                self.fail(
                    f"names {name!r}, which is none of {what}{suggest(str(name), allowed)}",
                    key,
                    index,
                )
        return tuple(value)


def suggest(name: str, allowed: Collection[str]) -> str:
    """`: did you mean x?`, or what there is to choose from."""
    close = difflib.get_close_matches(name, sorted(allowed), n=1)
    if close:
        return f": did you mean {close[0]}?"
    return f"; there are {', '.join(sorted(allowed))}" if allowed else ""
