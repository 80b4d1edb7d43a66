"""`Settings`: the scheduler settings under test, under vLLM's own names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from vllm_slo.errors import SettingsError

UNLIMITED: Literal["unlimited"] = "unlimited"

_SHORT = {
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "batched",
    "enable_chunked_prefill": "chunked",
    "scheduling_policy": "policy",
    "preemption": "preemption",
    "num_gpu_blocks_override": "blocks",
    "block_size": "block",
    "max_model_len": "len",
    "enable_prefix_caching": "prefix",
    "stream_interval": "interval",
    "async_scheduling": "async",
    "long_prefill_token_threshold": "longprefill",
    "max_num_queued_reqs": "queued",
}
_AT_LEAST_ONE = (
    "max_num_seqs",
    "num_gpu_blocks_override",
    "block_size",
    "max_model_len",
    "stream_interval",
    "max_num_queued_reqs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server's scheduler settings; `None` leaves the engine's own default.

    Hashable and comparable, so that one server is booted per distinct value. `str()` is a short
    test id that `pytest -k` can select by, such as `seqs64-batched2048`.
    `max_num_batched_tokens="unlimited"` lets one step take every waiting prompt whole:
    max_num_seqs x max_model_len tokens. `extra` holds any other engine argument under its
    `AsyncEngineArgs` name; it is given as a mapping and kept as sorted pairs, values that are
    lists or mappings as JSON text.

    Raises:
        SettingsError: a value of the wrong type or out of range.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | Literal["unlimited"] | None = None
    enable_chunked_prefill: bool | None = None
    scheduling_policy: Literal["fcfs", "priority"] | None = None
    preemption: Literal["recompute", "swap"] = "recompute"
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    enable_prefix_caching: bool | None = None
    stream_interval: int | None = None
    async_scheduling: bool | None = None
    long_prefill_token_threshold: int | None = None
    max_num_queued_reqs: int | None = None
    extra: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            self._check_int(name, at_least=1)
        self._check_int("long_prefill_token_threshold", at_least=0)
        if self.max_num_batched_tokens != UNLIMITED:
            self._check_int("max_num_batched_tokens", at_least=1)
        for name in ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling"):
            if getattr(self, name) not in (None, True, False):
                raise SettingsError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.scheduling_policy not in (None, "fcfs", "priority"):
            raise SettingsError(
                f'scheduling_policy must be "fcfs" or "priority", not {self.scheduling_policy!r}'
            )
        if self.preemption not in ("recompute", "swap"):
            raise SettingsError(
                f'preemption must be "recompute" or "swap", not {self.preemption!r}'
            )
        object.__setattr__(self, "extra", _frozen_extra(self.extra))

    def _check_int(self, name: str, *, at_least: int) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise SettingsError(f"{name} must be a whole number >= {at_least}, not {value!r}")

    def asked(self) -> dict[str, Any]:
        """What differs from "leave it to the engine", by name; `extra` spread out at the end."""
        named = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name != "extra" and getattr(self, f.name) != f.default
        }
        return named | dict(self.extra)

    def __str__(self) -> str:
        parts = []
        for name, value in self.asked().items():
            label = _SHORT.get(name, name)
            if value is True:
                parts.append(label)
            elif value is False:
                parts.append(f"no{label}")
            else:
                parts.append(f"{label}{value}")
        return "-".join(parts) or "defaults"


def _frozen_extra(extra: Mapping[str, Any] | tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    known = {f.name for f in fields(Settings)}
    frozen = []
    for name, value in sorted(dict(extra).items()):
        if not isinstance(name, str) or not name.isidentifier():
            raise SettingsError(
                f"extra[{name!r}]: write the argument's AsyncEngineArgs name, such as max_loras"
            )
        if name in known:
            raise SettingsError(f"extra[{name!r}] is a field of Settings: set it as {name}=...")
        is_nested = isinstance(value, Mapping | list | tuple)
        frozen.append((name, json.dumps(value, sort_keys=True) if is_nested else value))
    return tuple(frozen)
