"""What a threshold file may say: its tables as `Row`s, or one clear error."""

import difflib
import math
from typing import Any

from vllm_slo.errors import SettingsError, ThresholdsError
from vllm_slo.settings import Settings
from vllm_slo.slo.laws import LAWS
from vllm_slo.slo.limits import LIMIT_NAMES, Limit, make_limit
from vllm_slo.slo.reader import Reader
from vllm_slo.slo.row import Provenance, Row, row_title, settings_from

_PROVENANCE_KEYS = (
    "provenance",
    "source",
    "vllm_version",
    "date",
    "driver",
    "samples",
    "seed",
    "headroom",
)
_META_KEYS = ("device", "model", "notes", *_PROVENANCE_KEYS)
_ROW_KEYS = (
    "scenario",
    "settings",
    "concurrency",
    "limits",
    "advisory",
    "accept",
    *_PROVENANCE_KEYS,
)
_MOST_HEADROOM = 100
_KINDS = ("reported", "measured", "target")


def read_rows(root: Reader) -> tuple[Row, ...]:
    """The rows of a document, in order, with everything about them checked.

    Raises:
        ThresholdsError: the first thing that is wrong, with file, line, row and key.
    """
    root.check_names(("meta", "row"))
    meta = root.table("meta", required=True)
    assert meta is not None
    meta.check_names(_META_KEYS)
    meta.required_text("device", "the name of this file's folder")
    meta.required_text("model", "the name of this file")
    kind = _kind(meta)
    if kind is None:
        meta.fail(f"is missing: add provenance = one of {', '.join(_KINDS)}", "provenance")
    given = root.values.get("row", [])
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        root.fail("must be an array of tables: write each row under [[row]]", "row")
    rows: list[Row] = []
    first_line: dict[str, int] = {}
    for index in range(len(given)):
        row = _row(root, index, meta)
        if row.title in first_line:
            raise ThresholdsError(
                f"{root.path}:{row.line}: row {row.title}: is there twice, first in line "
                f"{first_line[row.title]}: remove one"
            )
        first_line[row.title] = row.line
        rows.append(row)
    return tuple(rows)


def _row(root: Reader, index: int, meta: Reader) -> Row:
    values = root.values["row"][index]
    scenario, settings = values.get("scenario"), values.get("settings", {})
    reader = Reader(
        path=root.path,
        values=values,
        at=("row", index),
        row=row_title(str(scenario or index + 1), settings if isinstance(settings, dict) else {}),
        lines=root.lines,
    )
    reader.check_names(_ROW_KEYS)
    scenario = reader.required_text("scenario", "the name that tests call the row by")
    named = _settings(reader)
    limits = _limits(reader)
    return Row(
        scenario=scenario,
        settings=tuple(sorted(named.items())),
        limits=limits,
        provenance=_provenance(reader, meta),
        concurrency=reader.whole("concurrency", at_least=1),
        accept=reader.names("accept", LAWS, "the lint rules"),
        line=reader.line(),
    )


def _settings(row: Reader) -> dict[str, Any]:
    table = row.table("settings")
    if table is None:
        return {}
    fields = sorted(set(Settings.__dataclass_fields__) - {"extra"})
    for name in table.values:
        # Any other engine argument may be named, so only what looks mistyped is refused.
        close = difflib.get_close_matches(name, fields, n=1, cutoff=0.88)
        if close and name not in fields:
            table.fail(f"is not a known setting: did you mean {close[0]}?", name)
    for name, value in table.values.items():
        if isinstance(value, float) and not math.isfinite(value):
            table.fail(f"must be a finite number, not {value}", name)
        try:
            settings_from({name: value})
        except (SettingsError, TypeError) as error:  # TypeError: a date inside a list, say
            table.fail(f"is wrong: {error}", name)
    return dict(table.values)


def _limits(row: Reader) -> tuple[Limit, ...]:
    table = row.table("limits", required=True)
    assert table is not None
    found = _limits_of(table, class_name=None)
    classes = table.table("class")
    if classes is not None:
        for name in classes.values:
            of_class = classes.table(name, required=True)
            assert of_class is not None
            found += _limits_of(of_class, class_name=name)
    if not found:
        table.fail("is empty: name at least one, such as ttft_p99_ms = 500")
    advisory = _advisory(row, [limit.key for limit in found])
    return tuple(
        make_limit(
            limit.name,
            limit.value,
            bound=limit.bound if limit.key.endswith((".min", ".max")) else None,
            class_name=limit.class_name,
            advisory=limit.key in advisory,
            line=limit.line,
        )
        for limit in found
    )


def _limits_of(table: Reader, *, class_name: str | None) -> list[Limit]:
    found = []
    for name, value in table.values.items():
        if name == "class" and class_name is None:
            continue
        if isinstance(value, dict) and name in LIMIT_NAMES:
            both = table.table(name)
            assert both is not None
            both.check_names(("min", "max"))
            if not both.values:
                both.fail("is empty: give min, max or both")
            for bound, number in both.values.items():
                found.append(_limit(both, bound, name, number, class_name))
            if both.values.get("min", 0) > both.values.get("max", math.inf):
                both.fail("has a min above its max")
        else:
            found.append(_limit(table, name, name, value, class_name))
    return found


def _limit(table: Reader, key: str, name: str, value: Any, class_name: str | None) -> Limit:
    try:
        return make_limit(
            name,
            value,
            bound="lower" if key == "min" else "upper" if key == "max" else None,
            class_name=class_name,
            line=table.line(key),
        )
    except ThresholdsError as error:
        table.fail(str(error), key)


def _advisory(row: Reader, keys: list[str]) -> set[str]:
    """The keys of the limits that are shown and not judged."""
    value = row.values.get("advisory", False)
    if isinstance(value, bool):
        return set(keys) if value else set()
    names = {key.removesuffix(".min").removesuffix(".max") for key in keys}
    if not isinstance(value, list):
        row.fail("must be true, or a list of this row's limits", "advisory")
    chosen = row.names("advisory", names | set(keys), "this row's limits")
    return {key for key in keys if key.removesuffix(".min").removesuffix(".max") in chosen} | (
        set(chosen) & set(keys)
    )


def _kind(table: Reader) -> str | None:
    kind = table.text("provenance")
    if kind is not None and kind not in _KINDS:
        table.fail(f"must be one of {', '.join(_KINDS)}, not {kind!r}", "provenance")
    return kind


def _provenance(row: Reader, meta: Reader) -> Provenance:
    """The row's own statements; the file's where the row has none and is of the same kind."""
    kind = _kind(row) or _kind(meta)
    inherits = kind == _kind(meta)

    def of(key: str) -> Reader:
        return row if key in row.values or not inherits else meta

    headroom = of("headroom").values.get("headroom")
    if headroom is not None and (
        isinstance(headroom, bool)
        or not isinstance(headroom, int | float)
        or not 0 <= headroom <= _MOST_HEADROOM
    ):
        of("headroom").fail(
            f"must be a share from 0 to {_MOST_HEADROOM}, such as 0.2 for 20 %", "headroom"
        )
    found = Provenance(
        kind=kind,  # type: ignore[arg-type]  # `_kind` has checked it
        source=of("source").text("source"),
        vllm_version=of("vllm_version").text("vllm_version"),
        date=of("date").date("date"),
        driver=of("driver").text("driver"),
        samples=of("samples").whole("samples", at_least=1),
        seed=of("seed").whole("seed", at_least=0),
        headroom=headroom,
    )
    needed = {
        "reported": ("source",),
        "measured": ("vllm_version", "date", "samples", "seed", "headroom"),
        "target": (),
    }
    for key in needed[found.kind]:
        if getattr(found, key) is None:
            row.fail(
                f"is missing: limits that are {found.kind} need {', '.join(needed[found.kind])}, "
                "in the row or in [meta]",
                key,
            )
    return found
