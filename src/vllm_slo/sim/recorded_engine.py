"""What a recorded engine ran with, from the `meta.json` of its recording.

`engine_kwargs` is what was asked for, `resolved_config` vLLM's own configuration after boot, with
its defaults filled in, and `kv_cache` what it allocated. The recorder leaves the latter two empty
where it could not ask, so each setting is looked for in all of them, the resolved ones first.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from vllm_slo.errors import SettingsError, TraceError
from vllm_slo.settings import Settings
from vllm_slo.sim.config import DEFAULT_BLOCK_SIZE, SchedulerConfig

_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
)
# vLLM's defaults that were not always there, by the first version that has them: asynchronous
# scheduling on a GPU, and room for a whole prompt before it is admitted (pull request 37307).
_ASYNC_SINCE, _RESERVE_SINCE = Version("0.14"), Version("0.19")

Section = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEngine:
    """`num_requests` is how many it served, where the recording says so."""

    config: SchedulerConfig
    vllm_version: str
    model: str
    num_requests: int | None
    warnings: tuple[str, ...]


def read_engine(folder: Path, *, num_gpu_blocks: int | None = None) -> RecordedEngine:
    """Reads `meta.json`, and from `model.json` how many GPUs the profile is of.

    Raises:
        TraceError: a file that is missing or malformed, or an engine that is not modelled.
    """
    path = folder / "meta.json"
    meta = _json(path)
    engine, resolved = _section(meta, "engine_kwargs"), _section(meta, "resolved_config")
    if not engine and not resolved:
        raise TraceError(f"{path}: lacks engine_kwargs, what the engine ran with")
    model_path = folder / "model.json"
    profiled = _json(model_path) if model_path.exists() else {}
    _check_one_gpu(path, engine, _section(resolved, "parallel_config"))
    _check_one_gpu(model_path, profiled)
    if resolved.get("speculative_config") or engine.get("speculative_config"):
        raise TraceError(f"{path}: speculative_config: speculative decoding is not modelled")
    if (folder / "moe.csv").exists():
        raise TraceError(f"{folder / 'moe.csv'}: a mixture of experts is not modelled")
    warnings = [
        f"{name} is set, and not modelled"
        for name in ("kv_transfer_config", "ec_transfer_config", "lora_config")
        if resolved.get(name)
    ]
    version = str(meta.get("vllm_version") or "unknown")
    try:
        config = _config(meta, num_gpu_blocks=num_gpu_blocks, warnings=warnings)
    except SettingsError as error:
        raise TraceError(f"{path}: {error}") from None
    count = meta.get("num_requests")
    return RecordedEngine(
        config=config,
        vllm_version=version,
        model=str(meta.get("model") or engine.get("model") or profiled.get("model") or "unknown"),
        num_requests=count if type(count) is int else None,
        warnings=tuple(f"{path}: {text}" for text in warnings),
    )


def _config(meta: Section, *, num_gpu_blocks: int | None, warnings: list[str]) -> SchedulerConfig:
    engine, resolved = _section(meta, "engine_kwargs"), _section(meta, "resolved_config")
    scheduler = _section(resolved, "scheduler_config")
    cache = _first_known(_section(meta, "kv_cache"), _section(resolved, "cache_config"), engine)
    asked = _first_known(scheduler, engine, _section(resolved, "model_config"))
    warnings += [
        f"does not say {name}: taken to be vLLM's default on an A100"
        for name in ("max_num_seqs", "max_num_batched_tokens")
        if name not in asked
    ]
    if not scheduler:
        warnings.append(
            "has no resolved_config.scheduler_config: what engine_kwargs does not say is taken to "
            "be vLLM's default"
        )
    block_size = cache.get("block_size", DEFAULT_BLOCK_SIZE)
    if type(block_size) is not int or block_size < 1:
        raise SettingsError(f"kv_cache.block_size must be a whole number >= 1, not {block_size!r}")
    blocks = _num_gpu_blocks(cache, block_size) if num_gpu_blocks is None else num_gpu_blocks
    if type(blocks) is not int or blocks < 2:
        raise SettingsError(
            f"kv_cache.num_gpu_blocks must be a whole number >= 2, not {blocks!r}\n"
            "give what the engine's log says: --num-gpu-blocks N"
        )
    # A longer request than the cache holds cannot have been served: the tighter bound changes none.
    capacity = (blocks - 1) * block_size
    max_model_len = asked.get("max_model_len") or capacity
    if type(max_model_len) is int:
        max_model_len = min(max_model_len, capacity)
    extra: dict[str, Any] = {
        name: asked[name]
        for name in ("max_num_scheduled_tokens", "watermark", "scheduler_reserve_full_isl")
        if name in asked
    }
    version = meta.get("vllm_version")
    extra.setdefault("scheduler_reserve_full_isl", _is_since(_RESERVE_SINCE, version))
    settings = Settings(
        max_num_seqs=asked.get("max_num_seqs"),
        max_num_batched_tokens=asked.get("max_num_batched_tokens"),
        max_model_len=max_model_len,
        block_size=block_size,
        enable_prefix_caching=cache.get("enable_prefix_caching"),
        enable_chunked_prefill=asked.get("enable_chunked_prefill"),
        scheduling_policy=asked.get("policy", asked.get("scheduling_policy")),
        long_prefill_token_threshold=asked.get("long_prefill_token_threshold"),
        async_scheduling=asked.get("async_scheduling", _is_since(_ASYNC_SINCE, version)),
        extra=extra,
    )
    return SchedulerConfig.from_settings(settings, num_gpu_blocks=blocks)


def _num_gpu_blocks(cache: Section, block_size: int) -> object:
    tokens = cache.get("num_kv_tokens")
    if "num_gpu_blocks" not in cache and type(tokens) is int:
        return tokens // block_size
    return cache.get("num_gpu_blocks")


def _is_since(first: Version, version: object) -> bool:
    """Whether a version has what came with `first`; one that is not known is a recent one."""
    try:
        return Version(Version(str(version)).base_version) >= first
    except InvalidVersion:
        return True


def _check_one_gpu(path: Path, *sections: Section) -> None:
    for section in sections:
        for name in _PARALLEL:
            if section.get(name) not in (None, 1):
                raise TraceError(f"{path}: {name} is {section[name]!r}: only one GPU is modelled")


def _first_known(*sections: Section) -> dict[str, Any]:
    """All that the sections know, those named first before the others."""
    known: dict[str, Any] = {}
    for section in reversed(sections):
        known |= {name: value for name, value in section.items() if value is not None}
    return known


def _section(of: Section, name: str) -> Section:
    """A section, empty where there is none: the recorder writes text for what it cannot read."""
    section = of.get(name)
    return section if isinstance(section, dict) else {}


def _json(path: Path) -> Section:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}:{error.lineno}: is not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise TraceError(f"{path}: is not a JSON object")
    return content
