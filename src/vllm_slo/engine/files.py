"""Where the engine package keeps its files: the cache folder, locks and whole-or-nothing writes."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The cache folder: the one given, else `$SLO_CACHE`, else `~/.cache/pytest-vllm-slo`."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().absolute()
    from_environment = os.environ.get("SLO_CACHE")
    if from_environment:
        return Path(from_environment).expanduser().absolute()
    return Path.home() / ".cache" / "pytest-vllm-slo"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` between processes; the kernel frees it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, text: str) -> None:
    """Writes `text` aside and renames it: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(aside).chmod(0o644)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
