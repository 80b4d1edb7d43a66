"""GPU memory before, during and after a server: what it took must come back."""

import time
from collections.abc import Callable
from types import ModuleType

# Less than this is the driver's own coming and going.
_SLACK_BYTES = 512 << 20


def used_bytes() -> tuple[int, ...]:
    """Memory in use on each GPU, in NVML's order; empty without NVML or a GPU."""
    try:
        import pynvml
    except ImportError:
        return ()
    library: ModuleType = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError:
        return ()
    try:
        handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return tuple(int(library.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except library.NVMLError:
        return ()
    finally:
        library.nvmlShutdown()


def not_back(
    before: tuple[int, ...],
    during: tuple[int, ...],
    *,
    timeout_s: float = 10.0,
    read: Callable[[], tuple[int, ...]] = used_bytes,
) -> str | None:
    """Waits until each GPU that the server filled has its memory back; says which has not.

    The driver frees a dead process's memory within a second or so. A GPU that somebody else filled
    meanwhile cannot be told from one that was not freed.
    """
    filled = [
        i for i, (b, d) in enumerate(zip(before, during, strict=False)) if d - b > _SLACK_BYTES
    ]
    until = time.monotonic() + timeout_s
    while filled:
        now = read()
        held = [i for i in filled if i < len(now) and now[i] - before[i] > _SLACK_BYTES]
        if not held:
            return None
        if time.monotonic() > until:
            return ", ".join(
                f"GPU {i} has {(now[i] - before[i]) / (1 << 30):.1f} GiB more in use than before"
                for i in held
            )
        time.sleep(0.1)
    return None
