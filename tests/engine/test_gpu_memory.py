import sys
from types import SimpleNamespace

from vllm_slo.engine.gpu_memory import not_back, used_bytes

GIB = 1 << 30


class FakeNvml:
    """pynvml, as far as it is used: two GPUs, or a driver that is not there."""

    class NVMLError(Exception):
        pass

    def __init__(self, used):
        self.used = used
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        if self.used is None:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=self.used[handle])


def test_memory_in_use_is_read_per_gpu(monkeypatch):
    nvml = FakeNvml([3 * GIB, GIB])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert (3 * GIB, GIB) == used_bytes()
    assert 0 == nvml.open


def test_no_driver_is_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(None))
    assert () == used_bytes()


def test_memory_that_comes_back_late_is_waited_for():
    readings = [(40 * GIB, 9 * GIB), (20 * GIB, 9 * GIB), (GIB, 9 * GIB)]
    assert None is not_back((GIB, GIB), (70 * GIB, GIB), read=lambda: readings.pop(0))
    assert [] == readings


def test_memory_that_stays_is_said_with_its_gpu():
    held = not_back((GIB, GIB), (GIB, 70 * GIB), read=lambda: (GIB, 31 * GIB), timeout_s=0.0)
    assert "GPU 1 has 30.0 GiB more in use than before" == held


def test_without_a_gpu_there_is_nothing_to_wait_for():
    assert None is not_back((), (), read=lambda: 1 / 0)
