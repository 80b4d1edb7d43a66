"""`ServeOptions`: which device and model are simulated, and where they are served."""

import os
from dataclasses import dataclass, field
from math import isfinite

from vllm_slo.device import device_model, kv_blocks
from vllm_slo.device.profiles import Scheduling
from vllm_slo.errors import SettingsError
from vllm_slo.settings import Settings
from vllm_slo.sim.config import DEFAULT_BLOCK_SIZE, SchedulerConfig
from vllm_slo.sim.serve.engine import Waker
from vllm_slo.sim.serve.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What `vllm-slo sim serve` is told. Port 0 is any free one.

    `mean_output_tokens` lets answers end by themselves; see `Service`. `golden_size` is how many
    requests the golden log keeps.

    Raises:
        SettingsError: a number out of range.
    """

    device: str = "a100-80gb"
    model: str = "llama-3-8b"
    served_model_name: str | None = None
    settings: Settings = field(default_factory=Settings)
    gpu_memory_utilization: float = 0.92
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = field(default_factory=lambda: os.environ.get("VLLM_API_KEY"), repr=False)
    mean_output_tokens: float | None = None
    seed: int = 0
    golden_size: int = 10_000

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port must be from 0 (any free one) to 65535, not {self.port}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise SettingsError(
                "gpu_memory_utilization must be above 0 and at most 1, not "
                f"{self.gpu_memory_utilization}"
            )
        mean = self.mean_output_tokens
        if mean is not None and not (isfinite(mean) and mean >= 1):
            raise SettingsError(f"mean_output_tokens must be a number >= 1, not {mean}")
        if self.golden_size < 0:
            raise SettingsError(f"golden_size must be >= 0, not {self.golden_size}")

    @property
    def model_name(self) -> str:
        return self.served_model_name or self.model

    def config(self) -> SchedulerConfig:
        """The scheduler's configuration, with the device's KV capacity.

        Raises:
            SettingsError: settings that vLLM refuses.
            ProfileError: no such device or model, or it does not hold the model.
        """
        settings = self.settings
        blocks = settings.num_gpu_blocks_override or kv_blocks(
            self.device,
            model=self.model,
            utilisation=self.gpu_memory_utilization,
            block_size=settings.block_size or DEFAULT_BLOCK_SIZE,
        )
        return SchedulerConfig.from_settings(settings, num_gpu_blocks=blocks)

    def service(self, waker: Waker) -> Service:
        """The service, ready to take requests.

        Raises:
            SettingsError, ProfileError: as `config`.
        """
        config = self.config()
        scheduling: Scheduling = "async" if config.async_scheduling else "sync"
        return Service(
            config,
            device_model(self.device, model=self.model, scheduling=scheduling),
            model_name=self.model_name,
            device=self.device,
            waker=waker,
            stream_interval=self.settings.stream_interval or 1,
            mean_output_tokens=self.mean_output_tokens,
            seed=self.seed,
            golden_size=self.golden_size,
        )
