"""Opening what a workload is driven at: `sim`, `emulated`, `gpu` or a URL."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vllm_slo.errors import SettingsError
from vllm_slo.settings import Settings

if TYPE_CHECKING:
    from vllm_slo.engine import EngineEnvironment, Server
    from vllm_slo.load import Endpoint
    from vllm_slo.measure.run import EngineInfo, Observer, Target

Kind = Literal["sim", "emulated", "gpu", "url"]
MODELLED_DEVICE = "a100-80gb"
EMULATED_VLLM = "0.32.0"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """Which target, and all that it takes to open it with any `Settings`.

    `device` is the modelled device of sim and emulated, and names the threshold folder of the
    other two. `environment` is the engine's, as `vllm_slo.engine.find` takes it.
    """

    kind: Kind
    model: str = "llama-3-8b"
    device: str | None = None
    url: str | None = None
    api_key: str | None = None
    environment: str | None = None
    sim_scheduler: Literal["builtin", "vllm"] = "builtin"
    client: Literal["wire", "httpx"] = "wire"
    boot_timeout_s: float = 600.0
    request_timeout_s: float = 300.0
    report_dir: Path = Path("slo-report")
    cache_dir: Path | None = None

    @property
    def is_simulated(self) -> bool:
        return self.kind in ("sim", "emulated")

    @property
    def engine_model(self) -> str:
        """The model as the engine takes it: a bare name of ours is its shape, without weights."""
        from vllm_slo.engine.shapes import SHAPES

        is_ours = self.model in SHAPES and not Path(self.model).exists()
        return f"shape:{self.model}" if is_ours else self.model

    @property
    def model_slug(self) -> str:
        """The model as threshold files are named: `shape:llama-3-8b` is `llama-3-8b.toml`."""
        return slug(self.model.removeprefix("shape:").rstrip("/").rsplit("/", 1)[-1])

    def device_slug(self) -> str:
        """The device as threshold folders are named; asks NVML on `gpu` unless it is given."""
        if self.kind in ("sim", "emulated"):
            return f"{self.kind}-{slug(self.device or MODELLED_DEVICE)}"
        if self.device:
            return slug(self.device)
        if self.kind == "gpu":
            from vllm_slo.engine.nvml import device_name

            return slug(device_name())
        raise SettingsError(
            f"--slo-target={self.url}: a URL does not say its device, so its threshold file "
            "cannot be found\nrun again with --slo-device=a100-80gb (the folder's name)"
        )


def slug(name: str) -> str:
    """A device's or model's name as a file name: `NVIDIA A100-SXM4-80GB` is `a100-80gb`."""
    lowered = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    return re.sub(r"\b(nvidia|geforce|tesla|sxm\d?|pcie|hbm\d\w*)-?", "", lowered).strip("-")


def resolve_kind(target: str, *, environment: str | None) -> Kind:
    """`--slo-target` as a kind; `auto` looks for a GPU's device file and for vLLM, nothing more.

    Raises:
        SettingsError: a word that is no target.
    """
    if target in ("sim", "emulated", "gpu"):
        return target  # type: ignore[return-value]
    if target.startswith(("http://", "https://")):
        return "url"
    if target == "auto":
        has_gpu = Path("/dev/nvidiactl").exists()
        return "gpu" if has_gpu and (environment or find_spec("vllm")) else "sim"
    raise SettingsError(
        f"--slo-target={target}: not one of auto, sim, emulated, gpu or a URL that starts with http"
    )


@dataclass(slots=True, kw_only=True)
class Served:
    """A target that is open with certain settings, until `close`.

    `server` is the engine's process, where there is one of ours.
    """

    settings: Settings
    engine: "EngineInfo"
    target: "Target"
    max_num_seqs: int | None = None
    server: "Server | None" = None

    def become(self, other: "Served") -> None:
        """Stands for another server from now on: whoever holds this one sees a live one again."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(other, name))

    @property
    def base_url(self) -> str | None:
        return None if self.server is None else self.server.base_url

    def alive(self) -> bool:
        return self.server is None or self.server.alive()

    def died_because(self) -> str | None:
        """Why the server died by itself; `None` if it lives, or is not ours."""
        return None if self.server is None else self.server.died_because()

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
        if hasattr(self.target, "close"):
            self.target.close()


def open_target(
    spec: TargetSpec, settings: Settings, *, progress: Progress | None = None
) -> Served:
    """Opens the target with these settings: boots a server where the kind has one.

    Raises:
        SloError: it cannot be opened; the text says why and what to do.
    """
    if spec.kind == "sim":
        return _open_sim(spec, settings)
    if spec.kind == "url":
        return _open_url(spec, settings, progress)
    return _open_engine(spec, settings, progress)


def _open_engine(spec: TargetSpec, settings: Settings, progress: Progress | None) -> Served:
    from vllm_slo.engine import boot
    from vllm_slo.engine.metrics import MetricsObserver
    from vllm_slo.engine.nvml import NvmlObserver, nvml_status
    from vllm_slo.engine.worker import EmulationObserver
    from vllm_slo.load import Endpoint

    is_emulated = spec.kind == "emulated"
    server = boot(
        settings,
        environment=_environment(spec),
        model=spec.model if is_emulated else spec.engine_model,
        report_dir=spec.report_dir,
        target="emulated" if is_emulated else "gpu",
        device=(spec.device or MODELLED_DEVICE) if is_emulated else spec.device_slug(),
        boot_timeout_s=spec.boot_timeout_s,
        cache_dir=spec.cache_dir,
    )
    observers: list[Observer] = [
        MetricsObserver(server.base_url, server.api_key, version=server.engine.vllm_version)
    ]
    if server.accounting_path is not None:
        observers.append(EmulationObserver(server.accounting_path))
    elif nvml_status() is None:
        observers.append(NvmlObserver(server.pid))
    endpoint = Endpoint(
        base_url=server.base_url,
        model=server.model,
        vocab_size=server.vocab_size,
        api_key=server.api_key,
    )
    target = _http_target(spec, settings, server.engine, endpoint, observers, progress)
    max_num_seqs = settings.max_num_seqs or _whole(dict(server.engine.config).get("max_num_seqs"))
    return Served(
        settings=settings,
        engine=server.engine,
        target=target,
        max_num_seqs=max_num_seqs,
        server=server,
    )


def _open_url(spec: TargetSpec, settings: Settings, progress: Progress | None) -> Served:
    from vllm_slo.engine.metrics import MetricsObserver
    from vllm_slo.load import Endpoint
    from vllm_slo.load.remote import ask
    from vllm_slo.measure.run import EngineInfo

    assert spec.url is not None, "a url target has one"
    remote = ask(spec.url, api_key=spec.api_key, model=spec.model)
    engine = EngineInfo(
        target="url",
        device=spec.device_slug(),
        model=spec.model_slug,
        vllm_version=remote.version,
    )
    endpoint = Endpoint(
        base_url=remote.base_url,
        model=remote.model,
        vocab_size=remote.vocab_size,
        api_key=spec.api_key,
    )
    observers: list[Observer] = []
    if remote.has_metrics:
        observers.append(MetricsObserver(remote.base_url, spec.api_key, version=remote.version))
    return Served(
        settings=settings,
        engine=engine,
        target=_http_target(spec, settings, engine, endpoint, observers, progress),
        max_num_seqs=settings.max_num_seqs,
    )


def _http_target(
    spec: TargetSpec,
    settings: Settings,
    engine: "EngineInfo",
    endpoint: "Endpoint",
    observers: "Sequence[Observer]",
    progress: Progress | None,
) -> "Target":
    from vllm_slo.load import HttpTarget

    return HttpTarget(
        endpoint=endpoint,
        settings=settings,
        engine=engine,
        observers=observers,
        client=spec.client,
        request_timeout_s=spec.request_timeout_s,
        progress=progress,
    )


def _environment(spec: TargetSpec) -> "EngineEnvironment":
    """The environment asked for; else the pinned one on emulated, and our own Python on a GPU."""
    from vllm_slo.engine import find

    if spec.environment is not None:
        return find(spec.environment, cache_dir=spec.cache_dir)
    if spec.kind == "gpu" and find_spec("vllm") is not None:
        return find(sys.executable)
    wanted = EMULATED_VLLM if spec.kind == "emulated" else None
    return find(wanted, cache_dir=spec.cache_dir)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _open_sim(spec: TargetSpec, settings: Settings) -> Served:
    from vllm_slo.sim import open_sim

    python = _environment(spec).python if spec.sim_scheduler == "vllm" else None
    target = open_sim(
        settings,
        device=spec.device or MODELLED_DEVICE,
        model=spec.model.removeprefix("shape:"),
        engine_device=spec.device_slug(),
        engine_model=spec.model_slug,
        scheduler=spec.sim_scheduler,
        python=python,
    )
    return Served(
        settings=settings,
        engine=target.engine,
        target=target,
        max_num_seqs=target.max_num_seqs,
    )
