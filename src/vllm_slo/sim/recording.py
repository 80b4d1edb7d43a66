"""A recorded run of real vLLM: its engine's settings, and when each request came and was answered.

The form of a folder: `meta.json` (engine_kwargs, kv_cache, resolved_config), `requests.jsonl` (one
request a line: input_toks, output_toks, arrival_time on the wall clock, and queued_ts,
first_token_ts, last_token_ts on the engine's), and a layer profile of its GPU (`device/layers.py`).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.errors import TraceError
from vllm_slo.settings import Settings

_LENGTHS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """Lengths in tokens, times in seconds from the first arrival, all on one clock."""

    input_tokens: int
    output_tokens: int
    arrival_s: float
    first_token_s: float
    last_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The requests in order of arrival, and what their engine ran with."""

    requests: tuple[RecordedRequest, ...]
    settings: Settings
    num_gpu_blocks: int
    vllm_version: str
    model: str


def read_recording(folder: str | Path) -> Recording:
    """Reads `meta.json` and `requests.jsonl` of a folder.

    Raises:
        TraceError: a file that is missing or malformed, with its line; tensor or pipeline
            parallelism, which is not modelled.
    """
    folder = Path(folder)
    path = folder / "meta.json"
    meta = _meta(path)
    engine = meta["engine_kwargs"]
    scheduler = meta.get("resolved_config", {}).get("scheduler_config", {})
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if engine.get(name, 1) != 1:
            raise TraceError(f"{path}: {name} is {engine[name]}: only one GPU is modelled")
    kv_cache = meta["kv_cache"]
    blocks = _whole(kv_cache.get("num_gpu_blocks"), f"{path}: kv_cache.num_gpu_blocks")
    extra = {
        name: scheduler[name]
        for name in ("scheduler_reserve_full_isl", "max_num_scheduled_tokens", "watermark")
        if scheduler.get(name) is not None
    }
    return Recording(
        requests=_requests(folder / "requests.jsonl"),
        settings=Settings(
            max_num_seqs=engine.get("max_num_seqs"),
            max_num_batched_tokens=engine.get("max_num_batched_tokens"),
            max_model_len=engine.get("max_model_len"),
            block_size=kv_cache.get("block_size"),
            enable_prefix_caching=kv_cache.get("enable_prefix_caching"),
            enable_chunked_prefill=scheduler.get("enable_chunked_prefill"),
            scheduling_policy=scheduler.get("policy"),
            long_prefill_token_threshold=scheduler.get("long_prefill_token_threshold"),
            async_scheduling=scheduler.get("async_scheduling"),
            num_gpu_blocks_override=blocks,
            extra=extra,
        ),
        num_gpu_blocks=blocks,
        vllm_version=str(meta.get("vllm_version", "unknown")),
        model=str(meta.get("model", "unknown")),
    )


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise TraceError(f"{path}: is not JSON: {error}") from None
    for name in ("engine_kwargs", "kv_cache"):
        if not isinstance(meta, dict) or not isinstance(meta.get(name), dict):
            raise TraceError(f"{path}: lacks {name}, what the engine ran with")
    return dict(meta)


def _requests(path: Path) -> tuple[RecordedRequest, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    rows = [_row(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise TraceError(f"{path}: has no requests")
    rows.sort(key=lambda row: row["arrival_time"])
    # Two clocks: the engine cannot have a request before it came, and the quickest came at once.
    start = rows[0]["arrival_time"]
    engine_start = start + min(row["queued_ts"] - row["arrival_time"] for row in rows)
    return tuple(
        RecordedRequest(
            input_tokens=int(row["input_toks"]),
            output_tokens=int(row["output_toks"]),
            arrival_s=row["arrival_time"] - start,
            first_token_s=row["first_token_ts"] - engine_start,
            last_token_s=row["last_token_ts"] - engine_start,
        )
        for row in rows
    )


def _row(line: str, where: str) -> dict[str, float]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{where}: is not a request: {line[:60]}")
    for name in _LENGTHS:
        _whole(row.get(name), f"{where}: {name}")
    for name in _TIMES:
        value = row.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(float(value or 0)):
            raise TraceError(f"{where}: {name} must be a number of seconds, not {value!r}")
    if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
        raise TraceError(f"{where}: queued_ts, first_token_ts, last_token_ts are not in order")
    return {name: row[name] for name in (*_LENGTHS, *_TIMES)}


def _whole(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TraceError(f"{where} must be a whole number >= 1, not {value!r}")
    return value
