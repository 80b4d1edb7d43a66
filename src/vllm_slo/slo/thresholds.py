"""Threshold files: `thresholds/<device>/<model>.toml`, checked in and reviewed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from vllm_slo.errors import ThresholdsError
from vllm_slo.settings import Settings
from vllm_slo.slo.headroom import DEFAULT_HEADROOM, with_headroom
from vllm_slo.slo.limits import make_limit
from vllm_slo.slo.reader import Reader, read_text, suggest
from vllm_slo.slo.row import Row
from vllm_slo.slo.schema import read_rows

USUAL_LIMITS = ("ttft_p99_ms", "tpot_p99_ms", "output_tok_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The rows of one device and model."""

    path: Path
    device: str
    model: str
    rows: tuple[Row, ...]
    device_line: int = 1

    @classmethod
    def load(cls, path: Path) -> "Thresholds":
        """Reads a threshold file.

        Raises:
            ThresholdsError: it cannot be read, or says something that it may not; the text names
                file, line, row and key, and what to do.
        """
        path = Path(path)
        return cls.parse(read_text(path), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> "Thresholds":
        """As `load`, from a text; `path` is what errors call it."""
        root = Reader.parse(text, path)
        rows = read_rows(root)
        meta = root.values["meta"]
        return cls(
            path=path,
            device=meta["device"],
            model=meta["model"],
            rows=rows,
            device_line=root.line("meta", "device"),
        )

    def row(
        self, scenario: str, settings: Settings, *, figures: Mapping[str, float] | None = None
    ) -> Row:
        """The row of a scenario whose settings the run has all of; the one that names most wins.

        `figures`, by limit name, are what the run measured: an error's proposal is made of them.

        Raises:
            ThresholdsError: no such row, with the lines to add; or two that name as many settings.
        """
        matching = [r for r in self.rows if r.scenario == scenario and r.matches(settings)]
        if not matching:
            raise ThresholdsError(self._missing(scenario, settings, figures or {}))
        most = max(len(row.settings) for row in matching)
        best = [row for row in matching if len(row.settings) == most]
        if len(best) > 1:
            where = " and ".join(f"line {row.line} ({row.title})" for row in best)
            raise ThresholdsError(
                f"{self.path}:{best[1].line}: scenario {scenario} with {settings}: {where} match "
                "equally well: let one of them name more of the settings"
            )
        return best[0]

    def unused(self, used: Collection[str]) -> list[Row]:
        """The rows that no test used; `used` has the titles of those that some test did."""
        return [row for row in self.rows if row.title not in used]

    def check_scenarios(self, known: Collection[str]) -> None:
        """Raises if a row is for a scenario that does not exist.

        Raises:
            ThresholdsError: the first such row, with its line.
        """
        for row in self.rows:
            if row.scenario not in known:
                raise ThresholdsError(
                    f"{self.path}:{row.line}: row {row.title}: no test has a scenario "
                    f"{row.scenario!r}{suggest(row.scenario, known)}"
                )

    def _missing(self, scenario: str, settings: Settings, figures: Mapping[str, float]) -> str:
        named = self._settings_to_name(scenario, settings)
        same = [row for row in self.rows if row.scenario == scenario]
        have = "\n".join(f"  line {row.line}: {row.title}" for row in same) or (
            f"  no row of this scenario; there are {', '.join(self._scenarios()) or 'none at all'}"
        )
        proposal = row_lines(scenario, named, _moved_away(figures) or _figures_of(same))
        origin = (
            f"as measured just now, with {DEFAULT_HEADROOM:.0%} headroom"
            if figures
            else "numbers are for you to set"
        )
        return (
            f"{self.path}: no row for scenario {scenario} with {settings}; there are\n{have}\n"
            f"add to {self.path} ({origin}):\n\n{proposal}\n"
            "or let a run write what it measures: pytest --slo-update"
        )

    def _settings_to_name(self, scenario: str, settings: Settings) -> dict[str, Any]:
        """The settings that this scenario's other rows are told apart by, else all asked for."""
        asked = settings.asked()
        keys = {name for r in self.rows if r.scenario == scenario for name, _ in r.settings}
        return {n: v for n, v in asked.items() if n in keys} or asked

    def _scenarios(self) -> list[str]:
        return sorted({row.scenario for row in self.rows})


def find(thresholds_dir: Path, device: str, model: str) -> Thresholds:
    """The thresholds of a device and model: `<dir>/<device>/<model>.toml`.

    Raises:
        ThresholdsError: there is no such file, and the text lists those there are; or as
            `Thresholds.load`; or the file says that it is of another device or model.
    """
    thresholds_dir = Path(thresholds_dir)
    path = threshold_path(thresholds_dir, device, model)
    if not path.is_file():
        raise ThresholdsError(_no_file(thresholds_dir, device, model, path))
    found = Thresholds.load(path)
    for key, wanted, said in (("device", device, found.device), ("model", model, found.model)):
        if said != wanted:
            line = Reader.parse(read_text(path), path).line("meta", key)
            raise ThresholdsError(
                f"{path}:{line}: meta.{key} is {said!r}, and the file's place says {wanted!r}: "
                "move the file or mend the line"
            )
    return found


def threshold_path(thresholds_dir: Path, device: str, model: str) -> Path:
    """Where the thresholds of a device and model are.

    Raises:
        ThresholdsError: a name that is no file name.
    """
    for key, name in (("device", device), ("model", model)):
        if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
            raise ThresholdsError(
                f"{key} {name!r} cannot name a threshold file: use letters, digits, dots and dashes"
            )
    return thresholds_dir / device / f"{model}.toml"


def row_lines(scenario: str, settings: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    """A row as TOML, such as a threshold file takes. `limits` are by name."""
    table = tomlkit.inline_table()
    table.update(settings)
    lines = ["[[row]]", f"scenario = {tomlkit.item(scenario).as_string()}"]
    if settings:
        lines.append(f"settings = {table.as_string()}")
    lines.append("[row.limits]")
    lines += [f"{name} = {tomlkit.item(value).as_string()}" for name, value in limits.items()]
    return "\n".join(lines) + "\n"


def _moved_away(figures: Mapping[str, float]) -> dict[str, float]:
    """Measured figures as limits, with the usual headroom."""
    limits = {
        name: with_headroom(make_limit(name, 0.5), value, DEFAULT_HEADROOM)
        for name, value in figures.items()
    }
    return {name: _whole(value) for name, value in limits.items() if value is not None}


def _figures_of(rows: Iterable[Row]) -> dict[str, float]:
    """The limits of the first of some rows, as an example; of no rows, round numbers."""
    for row in rows:
        return {
            limit.name: _whole(limit.value)
            for limit in row.limits
            if limit.class_name is None and not limit.advisory
        }
    return dict(zip(USUAL_LIMITS, (1000, 100, 100), strict=True))


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _no_file(thresholds_dir: Path, device: str, model: str, path: Path) -> str:
    if not thresholds_dir.is_dir():
        return (
            f"{thresholds_dir}: no such folder of threshold files; --slo-thresholds=DIR names one"
        )
    there = sorted(
        f"{one.parent.name}/{one.stem}" for one in thresholds_dir.glob("*/*.toml") if one.is_file()
    )
    listed = "\n".join(f"  {name}" for name in there) or "  (none)"
    return (
        f"{path}: no thresholds for device {device} and model {model}; {thresholds_dir} has\n"
        f"{listed}\n"
        "run with --slo-device and --slo-model of one of them, or write this one from what is "
        "measured: pytest --slo-update"
    )
