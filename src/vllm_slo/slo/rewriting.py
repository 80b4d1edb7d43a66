"""Changing a file that others may change at the same moment, without ever losing or halving it."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def rewrite(path: Path, change: Callable[[str | None], str | None]) -> bool:
    """Replaces a file's text by `change` of it; gives whether it did.

    `change` gets the text as it is under the lock, `None` where there is no file, and gives the
    new one, `None` to leave it. Other processes that rewrite files of this folder wait. A reader
    sees the old file or the new one, also after a crash or a power cut. The file keeps its mode,
    its owner where we may give it away, and its symbolic link.

    Raises:
        OSError: the folder or the file cannot be written.
        UnicodeDecodeError: the file is not UTF-8.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        old = path.read_bytes().decode("utf-8") if path.exists() else None
        new = change(old)
        if new is None or new == old:
            return False
        _replace(path, new.encode("utf-8"))
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder itself: no lock file stays behind, and the kernel frees it when we die."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, content: bytes) -> None:
    # Not named *.toml: one that a crash leaves behind is no threshold file.
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".aside", dir=path.parent)
    temporary = Path(aside)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                was = path.stat()
                with suppress(PermissionError):
                    os.fchown(file.fileno(), was.st_uid, was.st_gid)
                os.fchmod(file.fileno(), was.st_mode & 0o7777)
            else:
                os.fchmod(file.fileno(), 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
