"""A `Run` as plain JSON values and back, raw per-request records included.

Times become whole microseconds, and a request's events the time of the first and the gaps after
it: a third of the size, and the order of times survives the rounding.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_slo.errors import SloError
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import (
    ClientFacts,
    EmulationFacts,
    EngineInfo,
    GpuFacts,
    Round,
    Run,
    ServerFacts,
)
from vllm_slo.settings import Settings
from vllm_slo.traffic.workload import PlannedRequest, Workload

FORMAT = 1
REDACTED = "***"
_SECRET_NAME = re.compile(r"api_?key|secret|password|authorization|(^|_)token$", re.IGNORECASE)
_TIMES = ("scheduled", "sent", "finished", "first_answer_event", "queued")
_FACTS = {
    "client": ClientFacts,
    "server": ServerFacts,
    "emulation": EmulationFacts,
    "gpu": GpuFacts,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """The plan of a run that was read back: the lengths and start times of its first round."""

    requests: tuple[PlannedRequest, ...]

    def __call__(self, rng: np.random.Generator) -> Sequence[PlannedRequest]:
        return self.requests


def run_to_dict(run: Run) -> dict[str, Any]:
    """Everything of `run` but its plan's code, as values that `json` writes.

    Engine arguments whose names are those of secrets are left out as `***`; a number that is not
    finite becomes null.
    """
    return {
        "format": FORMAT,
        "workload": {
            "name": run.workload.name,
            "seed": run.workload.seed,
            "concurrency": run.workload.concurrency,
            "concurrency_per_seq": run.workload.concurrency_per_seq,
            "params": _redacted(run.workload.params),
        },
        "settings": _redacted(run.settings.asked().items()),
        "engine": engine_to_dict(run.engine),
        "rounds": [_round_to_dict(one) for one in run.rounds],
    }


def engine_to_dict(engine: EngineInfo) -> dict[str, Any]:
    """What answered, as plain values, its secrets left out."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(engine))
    return plain | {"config": _redacted(engine.config)}


def run_from_dict(data: Mapping[str, Any]) -> Run:
    """The run that `run_to_dict` wrote: times to a microsecond, and a `RecordedPlan`.

    Raises:
        SloError: another format, or a value that is missing or malformed.
    """
    if data.get("format") != FORMAT:
        raise SloError(
            f"a recorded run of format {data.get('format')!r} cannot be read, only {FORMAT}: "
            "write it again with this version"
        )
    try:
        rounds = tuple(_round_from_dict(one) for one in data["rounds"])
        workload = data["workload"]
        engine = data["engine"]
        return Run(
            workload=Workload(
                name=workload["name"],
                seed=workload["seed"],
                concurrency=workload["concurrency"],
                concurrency_per_seq=workload["concurrency_per_seq"],
                params=tuple(workload["params"].items()),
                plan=_recorded_plan(rounds, is_open=workload["concurrency"] is None),
            ),
            settings=_settings(data["settings"]),
            engine=EngineInfo(**engine | {"config": tuple(engine["config"].items())}),
            rounds=rounds,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SloError(f"a recorded run is malformed: {type(error).__name__} {error}") from None


def _round_to_dict(one: Round) -> dict[str, Any]:
    facts = {
        name: None if value is None else _plain(dataclasses.asdict(value))
        for name, value in ((name, getattr(one, name)) for name in _FACTS)
    }
    return {
        "seed": one.seed,
        "window_us": [_us(one.window_s[0]), _us(one.window_s[1])],
        "warnings": list(one.warnings),
        "server_died": one.server_died,
        **facts,
        "records": [_record_to_dict(record) for record in one.records],
    }


def _round_from_dict(data: Mapping[str, Any]) -> Round:
    start, end = data["window_us"]
    facts: dict[str, Any] = {}
    for name, kind in _FACTS.items():
        given = data[name]
        lists = {k: tuple(v) if isinstance(v, list) else v for k, v in (given or {}).items()}
        facts[name] = None if given is None else kind(**lists)
    return Round(
        seed=data["seed"],
        window_s=(start / 1e6, end / 1e6),
        warnings=tuple(data["warnings"]),
        server_died=data.get("server_died"),
        records=[_record_from_dict(record) for record in data["records"]],
        **facts,
    )


def _record_to_dict(record: RequestRecord) -> dict[str, Any]:
    """The fields that differ from their defaults; `event_tokens` is 1 where all are."""
    written: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        name = field.name.removesuffix("_s")
        if field.name == "event_s":
            at = np.rint(record.event_s * 1e6).astype(np.int64)
            written["event_us"] = np.diff(at, prepend=0).tolist()
        elif field.name == "event_tokens":
            is_plain = value is not None and bool((value == 1).all())
            written[name] = None if value is None else 1 if is_plain else value.tolist()
        elif value != field.default:
            written |= {f"{name}_us": _us(value)} if name in _TIMES else {name: _plain(value)}
    return written


def _record_from_dict(data: Mapping[str, Any]) -> RequestRecord:
    given = dict(data)
    event_s = np.cumsum(np.array(given.pop("event_us"), dtype=np.int64)) / 1e6
    tokens = given.pop("event_tokens")
    if tokens is not None:
        # A copy: what broadcast_to gives cannot be written to, as a live record's can.
        tokens = np.broadcast_to(np.array(tokens, dtype=np.int64), event_s.shape).copy()
    for name in _TIMES:
        if f"{name}_us" in given:
            at = given.pop(f"{name}_us")
            given[f"{name}_s"] = None if at is None else at / 1e6
    return RequestRecord(event_s=event_s, event_tokens=tokens, **given)


def _recorded_plan(rounds: Sequence[Round], *, is_open: bool) -> RecordedPlan:
    records = rounds[0].records if rounds else ()
    return RecordedPlan(
        requests=tuple(
            PlannedRequest(
                index=record.index,
                input_tokens=record.planned_prompt_tokens,
                output_tokens=record.planned_output_tokens,
                arrival_s=record.scheduled_s if is_open else None,
                class_name=record.class_name,
            )
            for record in records
        )
    )


def _settings(asked: Mapping[str, Any]) -> Settings:
    known = {field.name for field in dataclasses.fields(Settings)}
    named = {name: value for name, value in asked.items() if name in known}
    extra = {name: value for name, value in asked.items() if name not in known}
    return Settings(**named, extra=extra)


def _us(seconds: float | None) -> int | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds * 1e6)


def _redacted(pairs: Any) -> dict[str, Any]:
    return {
        name: REDACTED if _SECRET_NAME.search(str(name)) else _plain(value) for name, value in pairs
    }


def _plain(value: Any) -> Any:
    """As JSON has it: tuples as lists, numpy's numbers as Python's, no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
