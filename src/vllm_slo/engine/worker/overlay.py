"""The folder that carries the padding worker into an engine's environment."""

import shutil
from pathlib import Path

import vllm_slo
from vllm_slo.device.profiles import device_model
from vllm_slo.engine.worker import environment

WORKER_CLS = "vllm_slo.engine.worker.padding.PaddingWorker"

# What the worker imports lives in these, each file of which keeps to numpy and the standard
# library; what serves the suite alone stays behind.
_PATTERNS = ("errors.py", "device/*.py", "device/*.toml", "engine/worker/*.py")
_LEFT_BEHIND = (
    "device/calibrate.py",
    "device/commands.py",
    "engine/worker/observer.py",
    "engine/worker/overlay.py",
)


def overlay(
    directory: Path,
    *,
    device: str,
    model: str,
    accounting_path: Path,
    steps_path: Path | None = None,
) -> dict[str, str]:
    """Fills `directory` with the worker and what it needs; returns the variables to set.

    The folder goes on the engine's PYTHONPATH in place of the suite's site-packages, which would
    shadow the engine's own numpy and torch. Beside the standard library it needs numpy only.
    `device` and `model` are as `device_model` takes them; paths among them may be relative.
    `steps_path` asks for a line per step, in the form `vllm-slo calibrate` reads.

    Raises:
        ProfileError: the device or the model is not known, found before anything boots.
    """
    device, model = _absolute(device), _absolute(model)
    device_model(device, model=model)
    source = Path(vllm_slo.__file__).parent
    package = directory / "vllm_slo"
    for path in sorted(path for pattern in _PATTERNS for path in source.glob(pattern)):
        name = path.relative_to(source)
        if name.as_posix() in _LEFT_BEHIND or name.name == "__init__.py":
            continue
        target = package / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for folder in ("", "device", "engine", "engine/worker"):
        (package / folder / "__init__.py").write_text('"""Part of pytest-vllm-slo."""\n')
    variables = {
        "PYTHONPATH": str(directory.resolve()),
        environment.DEVICE: device,
        environment.MODEL: model,
        environment.ACCOUNT: str(accounting_path.resolve()),
        # The tiny model needs one thread, and no core to itself: bound to one, a worker waits
        # there for whatever else runs on it while another core idles.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    if steps_path is not None:
        variables[environment.STEPS] = str(steps_path.resolve())
    return variables


def _absolute(name: str) -> str:
    path = Path(name)
    return str(path.resolve()) if path.exists() else name
