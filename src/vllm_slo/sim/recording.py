"""A recorded run of real vLLM: when each request came and was answered, on one clock.

The form of a folder, as LLMServingSim (casys-kaist) records it: `meta.json` (see
`recorded_engine.py`), `requests.jsonl` and a layer profile of its GPU (`device/layers.py`). Each
line of `requests.jsonl` is a request: input_toks, output_toks, and the times of vLLM's
`RequestStateStats`. Of these arrival_time is the front end's wall clock, and queued_ts,
first_token_ts, last_token_ts are the engine's monotonic one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.errors import TraceError
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.recorded_engine import read_engine
from vllm_slo.traffic.workload import MAX_TOKENS

_LENGTHS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
# Requests end within seconds or minutes: times further apart than this are of two clocks.
_ONE_CLOCK_S = 100_000.0
# A request waits for the engine's step in progress, which takes a fraction of this.
_LATE_S = 1.0

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """Lengths in tokens, times in seconds from the first arrival, all on one clock.

    `first_token_s` and `last_token_s` are `None` where the recording has none; `where` is its file
    and line.
    """

    input_tokens: int
    output_tokens: int
    arrival_s: float
    first_token_s: float | None
    last_token_s: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The requests in order of arrival, what their engine ran with, and what is amiss."""

    requests: tuple[RecordedRequest, ...]
    config: SchedulerConfig
    vllm_version: str
    model: str
    warnings: tuple[str, ...]


def read_recording(folder: str | Path, *, num_gpu_blocks: int | None = None) -> Recording:
    """Reads `meta.json` and `requests.jsonl` of a folder; `num_gpu_blocks` overrides the KV blocks.

    Raises:
        TraceError: a file that is missing or malformed, with its line; an engine that is not
            modelled, such as one on several GPUs.
    """
    folder = Path(folder)
    engine = read_engine(folder, num_gpu_blocks=num_gpu_blocks)
    path = folder / "requests.jsonl"
    rows = _rows(path)
    warnings = list(engine.warnings)
    if engine.num_requests not in (None, len(rows)):
        warnings.append(
            f"{path}: has {len(rows)} requests, the run had {engine.num_requests}: "
            "what the others did to these is missing"
        )
    timed = [row for row in rows if any(row[name] is not None for name in _TIMES)]
    if len(timed) < len(rows):
        warnings.append(f"{path}: {len(rows) - len(timed)} requests without times are left out")
    return Recording(
        requests=_on_one_clock(timed, path, warnings),
        config=engine.config,
        vllm_version=engine.vllm_version,
        model=engine.model,
        warnings=tuple(warnings),
    )


def _rows(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is not UTF-8 text: {error.reason}") from None
    rows = [_row(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise TraceError(f"{path}: has no requests")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: is not a request: {line[:60]}")
    for name in _LENGTHS:
        tokens = row.get(name)
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise TraceError(
                f"{where}: {name} must be a whole number from 1 to {MAX_TOKENS}, not {tokens!r}"
            )
    times = {name: _time(row.get(name), f"{where}: {name}") for name in _TIMES}
    in_order = [times[name] for name in _TIMES[1:] if times[name] is not None]
    if in_order != sorted(in_order):  # type: ignore[type-var]
        raise TraceError(f"{where}: queued_ts, first_token_ts, last_token_ts are not in order")
    if (times["first_token_ts"] is None) != (times["last_token_ts"] is None):
        raise TraceError(f"{where}: has one of first_token_ts, last_token_ts without the other")
    return {name: row[name] for name in _LENGTHS} | times | {"where": where}


def _time(value: object, what: str) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A comparison, unlike float(), holds for whole numbers of any size, and fails for NaN.
    if not is_number or not abs(value) < 1e12:  # type: ignore[arg-type]
        raise TraceError(f"{what} must be a number of seconds, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def _on_one_clock(
    rows: Sequence[Row], path: Path, warnings: list[str]
) -> tuple[RecordedRequest, ...]:
    """The requests with times on the engine's clock, from the first arrival on."""
    if not any(row["first_token_ts"] is not None for row in rows):
        raise TraceError(f"{path}: no request has a first_token_ts: there is nothing to compare")
    came = "arrival_time"
    if any(row[came] is None for row in rows):
        came = "queued_ts"
        for row in rows:
            if row[came] is None:
                raise TraceError(f"{row['where']}: needs its arrival_time, or all their queued_ts")
        warnings.append(
            f"{path}: lacks arrival_time: TTFT counts from queued_ts, without the wait for the "
            "step in progress"
        )
    offset = 0.0 if came == "queued_ts" else _clock_offset(rows, path, warnings)
    ordered = sorted(rows, key=lambda row: float(row[came]))
    start = ordered[0][came] + offset
    requests = []
    for row in ordered:
        first, last = row["first_token_ts"], row["last_token_ts"]
        arrival_s = (row[came] + offset) - start
        if first is not None and first - start < arrival_s - 1e-3:
            raise TraceError(f"{row['where']}: its first token came before it arrived")
        requests.append(
            RecordedRequest(
                input_tokens=row["input_toks"],
                output_tokens=row["output_toks"],
                arrival_s=arrival_s,
                first_token_s=None if first is None else first - start,
                last_token_s=None if last is None else last - start,
                where=row["where"],
            )
        )
    return tuple(requests)


def _clock_offset(rows: Sequence[Row], path: Path, warnings: list[str]) -> float:
    """What to add to an arrival_time to have it on the engine's clock.

    The engine cannot have a request before it came, and has one that comes while it is idle at
    once: the quickest passage between the two clocks is taken to have been immediate. What the
    others waited longer, they waited for the step in progress, which is part of TTFT.
    """
    first = [row for row in rows if row["first_token_ts"] is not None]
    if all(abs(row["first_token_ts"] - row["arrival_time"]) < _ONE_CLOCK_S for row in first):
        return 0.0
    passages = [
        row["queued_ts"] - row["arrival_time"] for row in rows if row["queued_ts"] is not None
    ]
    if not passages:
        raise TraceError(
            f"{path}: arrival_time and first_token_ts are on two clocks, and there is no queued_ts "
            "to bring them together"
        )
    late_s = max(passages) - min(passages)
    if late_s > _LATE_S:
        warnings.append(
            f"{path}: some requests were queued {late_s:.3g} s after their arrival_time: the front "
            "end was that slow, or its clock was set, and then TTFT is off by as much"
        )
    return float(min(passages))
