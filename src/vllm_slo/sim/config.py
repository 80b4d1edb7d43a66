"""`SchedulerConfig`: what vLLM's scheduler and KV cache manager are told, under vLLM's names."""

from dataclasses import dataclass
from typing import Any, Literal

from vllm_slo.device.defaults import scheduler_defaults
from vllm_slo.device.profiles import REFERENCE_DEVICE
from vllm_slo.errors import SettingsError
from vllm_slo.settings import UNLIMITED, Settings

SchedulingPolicy = Literal["fcfs", "priority"]

DEFAULT_BLOCK_SIZE = 16

FROM_EXTRA = (
    "long_prefill_token_threshold_adaptive",
    "max_num_active_seqs",
    "max_num_scheduled_tokens",
    "scheduler_reserve_full_isl",
    "watermark",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduler and KV cache settings; the defaults are vLLM 0.32's API server on an A100.

    `num_gpu_blocks` counts the null block, as vLLM's `num_gpu_blocks` does: one block less can be
    used. `max_num_queued_reqs` bounds the requests in flight, waiting and running (HTTP 503).

    Raises:
        SettingsError: a combination that vLLM refuses at boot (`vllm/config/scheduler.py`,
            `verify_max_model_len`; `vllm/v1/core/kv_cache_utils.py`,
            `_check_enough_kv_cache_memory`).
    """

    num_gpu_blocks: int
    max_model_len: int
    block_size: int = DEFAULT_BLOCK_SIZE
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: SchedulingPolicy = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    max_num_queued_reqs: int | None = None
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        for name in ("num_gpu_blocks", "max_model_len", "block_size", "max_num_seqs"):
            _whole(name, getattr(self, name), at_least=1)
        _whole("max_num_batched_tokens", self.max_num_batched_tokens, at_least=1)
        for name in ("max_num_scheduled_tokens", "max_num_active_seqs", "max_num_queued_reqs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), at_least=int(name != "max_num_queued_reqs"))
        _whole("long_prefill_token_threshold", self.long_prefill_token_threshold, at_least=0)
        if not 0 <= self.watermark < 1:
            raise SettingsError(f"watermark must be a fraction from 0 to 1, not {self.watermark}")
        if self.policy not in ("fcfs", "priority"):
            raise SettingsError(f'policy must be "fcfs" or "priority", not {self.policy!r}')
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SettingsError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): every running request decodes one token"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > self.max_num_seqs:
            raise SettingsError(
                f"max_num_active_seqs ({self.max_num_active_seqs}) cannot be greater than "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise SettingsError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) "
                f"must be at least max_model_len ({self.max_model_len}): raise the one or lower "
                "the other"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise SettingsError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) cannot be "
                f"greater than max_model_len ({self.max_model_len})"
            )
        needed = -(-self.max_model_len // self.block_size) + 1
        if self.num_gpu_blocks < needed:
            raise SettingsError(
                f"{self.num_gpu_blocks} KV blocks of {self.block_size} tokens cannot hold one "
                f"request of max_model_len ({self.max_model_len}): vLLM refuses to boot\n"
                f"give at least {needed} blocks (one is the null block), or a max_model_len of at "
                f"most {max(0, self.num_gpu_blocks - 1) * self.block_size}"
            )

    @property
    def token_budget(self) -> int:
        """The most tokens that one step computes."""
        if self.max_num_scheduled_tokens is None:
            return self.max_num_batched_tokens
        return min(self.max_num_scheduled_tokens, self.max_num_batched_tokens)

    @property
    def max_num_running_reqs(self) -> int:
        """The most requests that may be running, decoding or in prefill."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        num_gpu_blocks: int,
        max_model_len: int = 8192,
        device: str = REFERENCE_DEVICE,
    ) -> "SchedulerConfig":
        """The configuration that a server on a GPU would run with.

        `num_gpu_blocks` is the device's capacity, used where the settings have no override, and
        `max_model_len` the model's own, likewise; `device` names the GPU whose defaults hold.
        Engine arguments in `settings.extra` that the scheduler does not know change nothing.

        Raises:
            SettingsError: a setting that vLLM V1 does not have, or refuses.
        """
        if settings.preemption == "swap":
            raise SettingsError(
                'preemption="swap": vLLM V1 only recomputes (swap_space went in 0.18)\n'
                'set preemption="recompute"'
            )
        model_len = settings.max_model_len or max_model_len
        defaults = scheduler_defaults(device, settings, max_model_len=model_len)
        batched = settings.max_num_batched_tokens
        if batched == UNLIMITED:
            batched = defaults["max_num_seqs"] * model_len
        asked: dict[str, Any] = {
            "enable_chunked_prefill": settings.enable_chunked_prefill,
            "enable_prefix_caching": settings.enable_prefix_caching,
            "policy": settings.scheduling_policy,
            "long_prefill_token_threshold": settings.long_prefill_token_threshold,
            "async_scheduling": settings.async_scheduling,
            "block_size": settings.block_size,
        }
        extra = dict(settings.extra)
        asked |= {name: extra.get(name) for name in FROM_EXTRA}
        return cls(
            num_gpu_blocks=settings.num_gpu_blocks_override or num_gpu_blocks,
            max_model_len=model_len,
            max_num_seqs=defaults["max_num_seqs"],
            max_num_batched_tokens=batched or defaults["max_num_batched_tokens"],
            max_num_queued_reqs=settings.max_num_queued_reqs,
            **{name: value for name, value in asked.items() if value is not None},
        )


def _whole(name: str, value: object, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise SettingsError(f"{name} must be a whole number >= {at_least}, not {value!r}")
