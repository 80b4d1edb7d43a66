"""NVML beside a round: memory, utilisation, clocks, power, throttling and other processes."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm_slo.errors import SettingsError
from vllm_slo.measure.run import GpuFacts

MIB = 1024**2

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that slow a GPU down. Left out: idle, and
# application clocks, which are somebody's setting.
THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def nvml_status() -> str | None:
    """Why there is nothing to sample (no library, no driver, no GPU), or `None` if there is."""
    try:
        nvml = _library()
    except ImportError:
        return "no GPU figures: the nvidia-ml-py library is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"no GPU figures: NVML does not start: {error}"
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return f"no GPU figures: NVML cannot count devices: {error}"
    finally:
        nvml.nvmlShutdown()
    return None if count else "no GPU figures: NVML finds no GPU"


def device_name(index: int = 0) -> str:
    """The product name of the `index`-th visible GPU, such as `NVIDIA A100-SXM4-80GB`.

    Raises:
        SettingsError: there is none to ask.
    """
    absent = nvml_status()
    if absent is not None:
        raise SettingsError(f"{absent}\nsay which device's thresholds hold: --slo-device=a100-80gb")
    nvml = _library()
    nvml.nvmlInit()
    try:
        handle = _visible_device(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"), index)
        name = nvml.nvmlDeviceGetName(handle)
    except (nvml.NVMLError, LookupError) as error:
        raise SettingsError(
            f"no GPU to ask: {error}\nsay which device's thresholds hold: --slo-device=a100-80gb"
        ) from None
    finally:
        nvml.nvmlShutdown()
    return name.decode() if isinstance(name, bytes) else str(name)


class NvmlObserver:
    """An `Observer` that gives `{"gpu": GpuFacts}`, or `{}` where `nvml_status` says why not.

    `device_index` counts within `visible_devices`, the server's CUDA_VISIBLE_DEVICES (this
    process's when not given): indices, GPU UUIDs or their beginnings, MIG UUIDs. Indices are
    NVML's, that is in PCI order. Processes are foreign when they are neither in the session of
    `server_pid` nor its descendants.
    """

    def __init__(
        self,
        server_pid: int,
        device_index: int = 0,
        *,
        visible_devices: str | None = None,
        interval_s: float = 0.5,
    ) -> None:
        self._server_pid = server_pid
        self._device_index = device_index
        self._visible = (
            os.environ.get("CUDA_VISIBLE_DEVICES") if visible_devices is None else visible_devices
        )
        self._interval_s = interval_s
        self._nvml: ModuleType | None = None
        self._sampler: _Sampler | None = None
        self._warning: str | None = None

    def begin(self) -> None:
        self._sampler = self._warning = None
        if nvml_status() is not None:
            return
        nvml = self._nvml = _library()
        nvml.nvmlInit()
        try:
            handle = _visible_device(nvml, self._visible, self._device_index)
        except (nvml.NVMLError, LookupError) as error:
            self._warning = f"no GPU figures: {error}"
            nvml.nvmlShutdown()
            return
        self._sampler = _Sampler(_Reader(nvml, handle, self._server_pid), self._interval_s)
        self._sampler.start()

    def end(self) -> Mapping[str, object]:
        if self._warning is not None:
            return {"warnings": (self._warning,)}
        if self._sampler is None or self._nvml is None:
            return {}
        samples, error = self._sampler.stop()
        self._sampler = None
        self._nvml.nvmlShutdown()
        if not samples:
            return {"warnings": (f"no GPU figures: {error}",)}
        facts, warnings = _summary(samples)
        if error is not None:
            warnings = (*warnings, f"GPU figures end early: {error}")
        return {"gpu": facts} | ({"warnings": warnings} if warnings else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One reading; what the device does not report is `None`."""

    memory_mib: float
    utilisation: float | None
    clock_mhz: float | None
    power_w: float | None
    throttle: int
    own_pids: frozenset[int]
    other_pids: frozenset[int]


class _Reader:
    """Reads one device. Clocks, power and throttling of a MIG instance are its whole GPU's."""

    def __init__(self, nvml: ModuleType, handle: Any, server_pid: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._server_pid = server_pid
        is_mig = self._or_none(getattr(nvml, "nvmlDeviceIsMigDeviceHandle", None), handle)
        self._board = (
            nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_mig else handle
        )

    def read(self) -> _Sample:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        rates = self._or_none(nvml.nvmlDeviceGetUtilizationRates, self._handle)
        clock = self._or_none(nvml.nvmlDeviceGetClockInfo, self._board, nvml.NVML_CLOCK_SM)
        power = self._or_none(nvml.nvmlDeviceGetPowerUsage, self._board)
        reasons = self._or_none(
            getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None),
            self._board,
        )
        processes = self._or_none(nvml.nvmlDeviceGetComputeRunningProcesses, self._handle) or []
        pids = frozenset(process.pid for process in processes)
        own = frozenset(pid for pid in pids if belongs_to(pid, self._server_pid))
        return _Sample(
            memory_mib=memory.used / MIB,
            utilisation=None if rates is None else float(rates.gpu),
            clock_mhz=None if clock is None else float(clock),
            power_w=None if power is None else power / 1e3,
            throttle=reasons or 0,
            own_pids=own,
            other_pids=pids - own,
        )

    def _or_none(self, function: Callable[..., Any] | None, *args: Any) -> Any:
        if function is None:
            return None
        try:
            return function(*args)
        except self._nvml.NVMLError_NotSupported:
            return None


class _Sampler(threading.Thread):
    def __init__(self, reader: _Reader, interval_s: float) -> None:
        super().__init__(name="nvml-sampler", daemon=True)
        self._reader = reader
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._samples: list[_Sample] = []
        self._error: Exception | None = None

    def run(self) -> None:
        while not self._stopped.wait(self._interval_s) and self._error is None:
            self._sample()

    def stop(self) -> tuple[Sequence[_Sample], Exception | None]:
        """The samples and the error that ended them; a round too short for one gets one now."""
        self._stopped.set()
        self.join()
        if not self._samples and self._error is None:
            self._sample()
        return self._samples, self._error

    def _sample(self) -> None:
        try:
            self._samples.append(self._reader.read())
        except self._reader._nvml.NVMLError as error:  # such as a GPU that fell off the bus
            self._error = error


def belongs_to(pid: int, server_pid: int) -> bool:
    """Whether a process is the server, of its session, or descends from it."""
    try:
        if pid == server_pid or os.getsid(pid) == os.getsid(server_pid):
            return True
    except OSError:
        return False
    while pid > 1:
        pid = _parent(pid)
        if pid == server_pid:
            return True
    return False


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])  # the name before it may hold anything


def _visible_device(nvml: ModuleType, visible: str | None, index: int) -> Any:
    """The handle of the `index`-th visible device.

    Raises:
        LookupError: there is no such device.
    """
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    names = [name.strip() for name in visible.split(",")]
    # CUDA ignores the first entry that names no device, and all after it.
    good = []
    for name in names:
        if not name or name.startswith("-"):
            break
        good.append(name)
    if index >= len(good):
        raise LookupError(f"CUDA_VISIBLE_DEVICES={visible!r} has no device number {index}")
    name = good[index]
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    if name.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    for place in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(place)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name):
            return handle
    raise LookupError(f"CUDA_VISIBLE_DEVICES={visible!r}: no GPU's UUID begins with {name!r}")


def _summary(samples: Sequence[_Sample]) -> tuple[GpuFacts, tuple[str, ...]]:
    warnings = []
    utilisation = [s.utilisation for s in samples if s.utilisation is not None]
    clocks = [s.clock_mhz for s in samples if s.clock_mhz is not None]
    power = [s.power_w for s in samples if s.power_w is not None]
    for values, what in ((utilisation, "utilisation"), (clocks, "SM clocks"), (power, "power")):
        if not values:
            warnings.append(f"the GPU does not report its {what}")
    throttle = 0
    for sample in samples:
        throttle |= sample.throttle
    own = frozenset[int]().union(*(s.own_pids for s in samples))
    others = frozenset[int]().union(*(s.other_pids for s in samples))
    if others and not own:
        # In a container NVML lists the host's process ids, and the server's own is among them.
        warnings.append(
            "foreign GPU processes unknown: NVML's process ids are not this namespace's"
        )
        others = frozenset()
    facts = GpuFacts(
        samples=len(samples),
        memory_used_mib_max=max(s.memory_mib for s in samples),
        sm_utilisation_percent=_mean(utilisation),
        sm_clock_mhz_min=min(clocks, default=float("nan")),
        sm_clock_mhz_max=max(clocks, default=float("nan")),
        power_w_mean=_mean(power),
        throttle_reasons=tuple(name for bit, name in THROTTLE_REASONS.items() if throttle & bit),
        foreign_pids=tuple(sorted(others)),
    )
    return facts, tuple(warnings)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _library() -> ModuleType:
    import pynvml

    library: ModuleType = pynvml
    return library
