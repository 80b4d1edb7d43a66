# ruff: noqa: N801, N802, N818 (NVML's own names)
"""NVML through a module put in place of pynvml."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

from vllm_slo.engine.nvml import NvmlObserver, belongs_to, device_name, nvml_status
from vllm_slo.errors import SettingsError
from vllm_slo.measure.run import GpuFacts

MIB = 1024**2


class FakeNvml(ModuleType):
    """Two GPUs and one MIG instance on the second; `reading` says what the next samples are."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.uuids = ["GPU-aaaa-1", "GPU-bbbb-2"]
        self.pids: list[int] = [os.getpid()]
        self.reasons = 0x01
        self.started = 0
        self.broken: str | None = None

    def nvmlInit(self) -> None:
        if self.broken == "init":
            raise self.NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.uuids):
            raise self.NVMLError("Invalid Argument")
        return f"gpu{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "MIG-cccc":
            raise self.NVMLError("Not Found")
        return "mig"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return self.uuids[int(handle[-1])]

    def nvmlDeviceGetName(self, handle: str) -> str:
        return {"gpu0": "NVIDIA A100-SXM4-80GB", "gpu1": "NVIDIA L4"}[handle]

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> bool:
        return handle == "mig"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return "gpu1"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        used = {"gpu0": 70_000, "gpu1": 10_000, "mig": 4_000}[handle]
        return SimpleNamespace(used=used * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        if handle == "mig":
            raise self.NVMLError_NotSupported("Not Supported")
        if self.broken == "lost":
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=91)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert handle != "mig"
        return 1410

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 312_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.fixture
def spawn() -> Iterator[Callable[[], int]]:
    """Starts processes that do nothing, each in a session of its own; gives their ids."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        process = subprocess.Popen(["sleep", "60"], start_new_session=True)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def quiet(
    server_pid: int | None = None, device_index: int = 0, visible_devices: str | None = None
) -> NvmlObserver:
    """An observer that samples once, at the end."""
    return NvmlObserver(
        os.getpid() if server_pid is None else server_pid,
        device_index,
        visible_devices=visible_devices,
        interval_s=3600.0,
    )


def one_sample(observer: NvmlObserver) -> GpuFacts:
    observer.begin()
    facts = observer.end()["gpu"]
    assert isinstance(facts, GpuFacts)
    return facts


def test_a_short_round_gets_one_sample(nvml: FakeNvml) -> None:
    assert one_sample(quiet()) == GpuFacts(
        samples=1,
        memory_used_mib_max=70_000.0,
        sm_utilisation_percent=91.0,
        sm_clock_mhz_min=1410.0,
        sm_clock_mhz_max=1410.0,
        power_w_mean=312.0,
    )
    assert nvml.started == 0


def test_a_round_is_summarised_over_its_samples(nvml: FakeNvml) -> None:
    enough = threading.Event()
    clocks = [1200, 1410, 1305]

    def next_clock(handle: str, kind: int) -> int:
        if len(clocks) == 1:
            enough.set()
            return clocks[0]
        return clocks.pop(0)

    nvml.nvmlDeviceGetClockInfo = next_clock  # type: ignore[method-assign]
    observer = NvmlObserver(os.getpid(), interval_s=0.001)
    observer.begin()
    assert enough.wait(timeout=10)
    facts = observer.end()["gpu"]
    assert isinstance(facts, GpuFacts)
    assert facts.samples >= 3
    assert (facts.sm_clock_mhz_min, facts.sm_clock_mhz_max) == (1200.0, 1410.0)


def test_throttling_is_named_and_idling_is_not_throttling(nvml: FakeNvml) -> None:
    nvml.reasons = 0x01 | 0x02 | 0x04 | 0x40
    assert one_sample(quiet()).throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")


def test_processes_of_the_servers_session_and_its_descendants_are_its_own(
    nvml: FakeNvml, spawn: Callable[[], int]
) -> None:
    nvml.pids = [os.getpid(), spawn()]
    assert one_sample(quiet(os.getpid())).foreign_pids == ()


def test_other_processes_are_foreign(nvml: FakeNvml, spawn: Callable[[], int]) -> None:
    server, other = spawn(), spawn()
    nvml.pids = [server, other]
    assert one_sample(quiet(server)).foreign_pids == (other,)


def test_process_ids_of_another_namespace_say_nothing(nvml: FakeNvml) -> None:
    nvml.pids = [2**22 + 1, 2**22 + 2]  # above the highest pid there can be
    observer = quiet()
    observer.begin()
    given = observer.end()
    assert isinstance(given["gpu"], GpuFacts)
    assert given["gpu"].foreign_pids == ()
    assert "not this namespace's" in str(given["warnings"])


def test_no_process_belongs_to_a_server_that_is_gone() -> None:
    assert not belongs_to(os.getpid(), 2**22 + 1)


@pytest.mark.parametrize(
    ("visible", "index", "memory_mib"),
    [
        (None, 1, 10_000.0),
        ("1", 0, 10_000.0),
        ("1,0", 1, 70_000.0),
        (" 1 , 0 ", 0, 10_000.0),
        ("GPU-bbbb-2", 0, 10_000.0),
        ("GPU-b", 0, 10_000.0),
        ("GPU-bbbb-2,GPU-aaaa-1", 1, 70_000.0),
    ],
)
def test_the_device_is_the_one_that_cuda_would_take(
    nvml: FakeNvml, visible: str | None, index: int, memory_mib: float
) -> None:
    facts = one_sample(quiet(device_index=index, visible_devices=visible))
    assert facts.memory_used_mib_max == memory_mib


def test_this_process_environment_counts_where_none_is_given(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert one_sample(quiet()).memory_used_mib_max == 10_000.0


@pytest.mark.parametrize(
    ("visible", "index", "message"),
    [
        ("", 0, "has no device number 0"),
        ("0,-1,1", 1, "has no device number 1"),
        ("7", 0, "Invalid Argument"),
        ("GPU-zzzz", 0, "no GPU's UUID begins with 'GPU-zzzz'"),
    ],
)
def test_a_device_that_is_not_there_is_a_warning(
    nvml: FakeNvml, visible: str, index: int, message: str
) -> None:
    observer = quiet(device_index=index, visible_devices=visible)
    observer.begin()
    given = observer.end()
    assert "gpu" not in given
    assert message in str(given["warnings"])
    assert nvml.started == 0


def test_a_mig_instance_has_its_own_memory_and_its_gpus_clocks(nvml: FakeNvml) -> None:
    observer = quiet(visible_devices="MIG-cccc")
    observer.begin()
    given = observer.end()
    facts = given["gpu"]
    assert isinstance(facts, GpuFacts)
    assert facts.memory_used_mib_max == 4_000.0
    assert facts.sm_clock_mhz_min == 1410.0
    assert math.isnan(facts.sm_utilisation_percent)
    assert given["warnings"] == ("the GPU does not report its utilisation",)


def test_a_gpu_that_is_lost_ends_the_samples_with_a_warning(nvml: FakeNvml) -> None:
    nvml.broken = "lost"
    observer = quiet()
    observer.begin()
    assert observer.end() == {"warnings": ("no GPU figures: GPU is lost",)}


def test_status_is_none_where_there_is_a_gpu(nvml: FakeNvml) -> None:
    assert nvml_status() is None


def test_status_says_what_is_lacking(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.uuids = []
    assert nvml_status() == "no GPU figures: NVML finds no GPU"
    nvml.broken = "init"
    assert nvml_status() == "no GPU figures: NVML does not start: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_status() == "no GPU figures: the nvidia-ml-py library is not installed"


def test_without_a_gpu_a_round_has_no_gpu_facts(nvml: FakeNvml) -> None:
    nvml.broken = "init"
    observer = quiet()
    observer.begin()
    assert observer.end() == {}


def test_a_gpu_goes_by_its_drivers_name(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_name() == "NVIDIA A100-SXM4-80GB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert device_name() == "NVIDIA L4"
    assert nvml.started == 0


def test_where_there_is_no_gpu_its_name_must_be_given(nvml: FakeNvml) -> None:
    with pytest.raises(SettingsError, match="--slo-device"):
        device_name(3)
    nvml.uuids = []
    with pytest.raises(SettingsError, match="--slo-device"):
        device_name()
