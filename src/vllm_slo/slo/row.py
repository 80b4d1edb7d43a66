"""`Row`: the limits of one scenario under certain settings, and where they come from."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vllm_slo.settings import Settings
from vllm_slo.slo.limits import Limit

ProvenanceKind = Literal["reported", "measured", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where limits come from: a document, runs of this suite, or somebody's SLO.

    `samples` are the requests behind the limits and `seed` the first round's; `headroom` is the
    share by which a limit lies beyond what was measured: 0.2 is 20 %.
    """

    kind: ProvenanceKind
    source: str | None = None
    vllm_version: str | None = None
    date: datetime.date | None = None
    driver: str | None = None
    samples: int | None = None
    seed: int | None = None
    headroom: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One `[[row]]`. `settings` are those it names; a run may have more. `line` is its header's.

    `concurrency` is the closed loop's that the limits hold for, where the file says so. `accept`
    lists the lint rules whose findings are known and kept.
    """

    scenario: str
    settings: tuple[tuple[str, Any], ...]
    limits: tuple[Limit, ...]
    provenance: Provenance
    concurrency: int | None = None
    accept: tuple[str, ...] = ()
    line: int = 0

    @property
    def title(self) -> str:
        """`uniform max_num_seqs=8`: unique in a file."""
        return row_title(self.scenario, dict(self.settings))

    @property
    def judged(self) -> tuple[Limit, ...]:
        """The limits that gate: all but the advisory ones."""
        return tuple(limit for limit in self.limits if not limit.advisory)

    def limit(self, name: str, class_name: str | None = None) -> Limit | None:
        """The limit of that name and class; the first where there is a minimum and a maximum."""
        for limit in self.limits:
            if limit.name == name and limit.class_name == class_name:
                return limit
        return None

    def matches(self, settings: Settings) -> bool:
        """Whether the run's settings have every value that this row names."""
        wanted = settings_from(dict(self.settings))
        return all(
            setting_value(wanted, name) == setting_value(settings, name)
            for name, _ in self.settings
        )


def row_title(scenario: str, settings: Mapping[str, Any]) -> str:
    named = ",".join(f"{name}={_plain(value)}" for name, value in sorted(settings.items()))
    return f"{scenario} {named or '(any settings)'}"


def settings_from(named: Mapping[str, Any]) -> Settings:
    """The `Settings` of a row's table: what is no field of it is another engine argument.

    Raises:
        SettingsError: as `Settings`.
    """
    fields = set(Settings.__dataclass_fields__) - {"extra"}
    known = {name: value for name, value in named.items() if name in fields}
    return Settings(**known, extra={n: v for n, v in named.items() if n not in fields})


def setting_value(settings: Settings, name: str) -> Any:
    """A setting's value by name, `None` where it is left to the engine."""
    if name in Settings.__dataclass_fields__:
        return getattr(settings, name)
    return dict(settings.extra).get(name)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
