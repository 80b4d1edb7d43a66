from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

from vllm import behaviour


@dataclass
class _EngineArgs:
    model: str = "facebook/opt-125m"
    served_model_name: str | list[str] | None = None
    load_format: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    long_prefill_token_threshold: int = 0
    worker_cls: str = "auto"
    distributed_executor_backend: str | None = None
    enforce_eager: bool = False
    seed: int = 0
    compilation_config: dict[str, Any] = field(default_factory=dict)
    max_loras: int = 1
    max_lora_rank: int = 16
    hf_token: bool | str | None = None


_OLD = [
    ("preemption_mode", str | None, None),
    ("swap_space", float, 4.0),
    ("disable_log_requests", bool, False),
]
AsyncEngineArgs = _EngineArgs
if behaviour.get("old_arguments"):
    AsyncEngineArgs = make_dataclass("_OldArgs", _OLD, bases=(_EngineArgs,))
