"""Writing measured limits into a threshold file: `--slo-update`."""

import datetime
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from vllm_slo.errors import ThresholdsError
from vllm_slo.files import rewrite
from vllm_slo.slo.proposal import Proposal
from vllm_slo.slo.row import Row, row_title
from vllm_slo.slo.thresholds import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did: the unified diff, empty if nothing changed, and what it left alone."""

    path: Path
    diff: str
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """The text on its way; `notes` collect what is left alone."""

    text: str
    notes: list[str] = field(default_factory=list)


def update(
    path: Path,
    proposals: Sequence[Proposal],
    *,
    device: str,
    model: str,
    today: datetime.date,
    allow_loosen: bool = False,
) -> Update:
    """Writes what `proposals` propose into the file at `path`, once, and says what changed.

    A limit that gates is only tightened, unless `allow_loosen`; an advisory one is replaced and
    gates from then on. Rows that are not there are added, and so is the file. Comments, order and
    all else stay; each row that changes says its provenance. The file is read again under a lock,
    so that rows which another session has written meanwhile are kept.

    Raises:
        ThresholdsError: the file is malformed or cannot be written.
    """
    before, draft = "", _Draft("")

    def change(old: str | None) -> str | None:
        nonlocal before, draft
        # A file whose lines all end as on Windows is worked on, and written back, as such.
        before = old or ""
        is_windows = 0 < before.count("\n") == before.count("\r\n")
        before = before.replace("\r\n", "\n") if is_windows else before
        draft = _Draft(before if old is not None else _new_file(device, model))
        for proposal in proposals:
            _apply(draft, proposal, path, today=today, allow_loosen=allow_loosen)
        if not Thresholds.parse(draft.text, path).rows and old is None:
            draft.text = ""
            return None
        return draft.text.replace("\n", "\r\n") if is_windows else draft.text

    try:
        rewrite(path, change)
    except UnicodeDecodeError:
        raise ThresholdsError(f"{path}: is not UTF-8: save the file as UTF-8") from None
    except OSError as error:
        raise ThresholdsError(f"{path}: cannot be written: {error.strerror}") from None
    diff = difflib.unified_diff(
        before.splitlines(keepends=True),
        draft.text.splitlines(keepends=True),
        fromfile=str(path) if before else "/dev/null",
        tofile=str(path),
    )
    return Update(path=path, diff="".join(diff), notes=tuple(draft.notes))


def _apply(
    draft: _Draft, proposal: Proposal, path: Path, *, today: datetime.date, allow_loosen: bool
) -> None:
    title = row_title(proposal.scenario, proposal.settings)
    if proposal.refused:
        draft.notes.append(f"{title}: not written: {proposal.refused}")
        return
    rows = Thresholds.parse(draft.text, path).rows
    document = tomlkit.parse(draft.text)
    for index, row in enumerate(rows):
        if row.title == title:
            table = document["row"][index]
            changed = _change_row(draft, table, row, proposal, allow_loosen=allow_loosen)
            if changed:
                _state_provenance(table, row, proposal, today)
                draft.text = tomlkit.dumps(document)
            return
    end = "" if not draft.text or draft.text.endswith("\n") else "\n"
    draft.text += end + "\n" + _new_row(proposal, today)


def _change_row(
    draft: _Draft, table: Any, row: Row, proposal: Proposal, *, allow_loosen: bool
) -> bool:
    """Puts the proposed values into the row's table; gives whether any differs."""
    replaced = set()
    for limit in row.limits:
        value = proposal.limits.get(limit.key)
        if value is None:
            continue
        would_loosen = replace(limit, value=value).is_looser_than(limit)
        if would_loosen and not limit.advisory and not allow_loosen:
            draft.notes.append(
                f"{row.title}: {limit.text} kept: {value:g} would be looser "
                "(--slo-allow-loosen writes it)"
            )
            continue
        if value != limit.value or limit.advisory:
            _put(table["limits"], limit.key, value)
            replaced.add(limit.key)
    _lift_advisory(table, row, replaced)
    return bool(replaced)


def _lift_advisory(table: Any, row: Row, replaced: set[str]) -> None:
    """A measured value gates: its limit is no longer advisory."""
    if "advisory" not in table:
        return
    left = [limit.key for limit in row.limits if limit.advisory and limit.key not in replaced]
    if not left:
        del table["advisory"]
    elif len(left) < sum(limit.advisory for limit in row.limits):
        table["advisory"] = left


def _state_provenance(table: Any, row: Row, proposal: Proposal, today: datetime.date) -> None:
    """Writes what the row does not say yet, or inherits; drops what no longer holds."""
    known = row.provenance
    stays_measured = known.kind == "measured"
    for key, value in _provenance(proposal, today).items():
        inherited = getattr(known, key, None) if stays_measured else None
        if key == "provenance":
            inherited = known.kind if stays_measured else None
        if value is not None and value != inherited:
            table[key] = value
    for key in ("source", "driver"):
        if key in table and (key == "source" or proposal.driver is None):
            del table[key]


def _provenance(proposal: Proposal, today: datetime.date) -> dict[str, Any]:
    return {
        "provenance": "measured",
        "vllm_version": proposal.vllm_version,
        "date": today,
        "driver": proposal.driver,
        "samples": proposal.samples,
        "seed": proposal.seed,
        "headroom": proposal.headroom,
    }


def _new_file(device: str, model: str) -> str:
    document = tomlkit.document()
    document.add(tomlkit.comment("Limits as this suite measured them, each moved away from the"))
    document.add(tomlkit.comment("measured value by the headroom that its row states."))
    document.add(tomlkit.comment("Written by pytest --slo-update; comments and edits are kept."))
    document.add(tomlkit.nl())
    meta = tomlkit.table()
    meta.update({"device": device, "model": model, "provenance": "measured"})
    document.add("meta", meta)
    return tomlkit.dumps(document)


def _new_row(proposal: Proposal, today: datetime.date) -> str:
    settings = tomlkit.inline_table()
    settings.update(proposal.settings)
    table: Table = tomlkit.table()
    table.add("scenario", proposal.scenario)
    if proposal.settings:
        table.add("settings", settings)
    if proposal.concurrency is not None:
        table.add("concurrency", proposal.concurrency)
    for key, value in _provenance(proposal, today).items():
        if value is not None:
            table.add(key, value)
    limits = tomlkit.table()
    for key, value in proposal.limits.items():
        _put(limits, key, value)
    table.add("limits", limits)
    rows = tomlkit.aot()
    rows.append(table)
    document = tomlkit.document()
    document.add("row", rows)
    return tomlkit.dumps(document)


def _put(limits: Any, key: str, value: float) -> None:
    """Sets the number of a `Limit.key` below the row's `limits`, in whatever form it has there."""
    bound = key[-3:] if key.endswith((".min", ".max")) else None
    class_name, _, name = key.removesuffix(f".{bound}").removeprefix("class.").rpartition(".")
    path = [*(["class", class_name] if class_name else []), name, *([bound] if bound else [])]
    for parent in path[:-1]:
        if parent not in limits:
            limits[parent] = tomlkit.table()
        limits = limits[parent]
    limits[path[-1]] = int(value) if value == int(value) else value


def as_plain(proposal: Proposal) -> Mapping[str, Any]:
    """The proposal as values that pytest-xdist can carry; `Proposal(**values)` undoes it."""
    return asdict(proposal)
