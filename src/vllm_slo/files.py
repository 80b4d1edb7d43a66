"""Files that appear whole or not at all, and that several processes may change at once."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes `text` aside and renames it: a reader sees the old file or the new one.

    That holds after a crash or a power cut too. Missing folders are made. The file keeps its mode,
    its owner where we may give it away, and its symbolic link; a new one has the usual mode.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, text.encode("utf-8"))


def check_writable(path: Path) -> None:
    """Raises now what `write_whole(path, ...)` would raise later; leaves nothing but its folder.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    tempfile.TemporaryFile(dir=path.parent).close()


def rewrite(path: Path, change: Callable[[str | None], str | None]) -> bool:
    """Replaces a file's text by `change` of it, as `write_whole` does; gives whether it did.

    `change` gets the text as it is under the lock, `None` where there is no file, and gives the
    new one, `None` to leave it. Other processes that rewrite files of this folder wait.

    Raises:
        OSError: the folder or the file cannot be written.
        UnicodeDecodeError: the file is not UTF-8.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The folder itself is the lock: no lock file stays behind among the files.
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        old = path.read_bytes().decode("utf-8") if path.exists() else None
        new = change(old)
        if new is None or new == old:
            return False
        _replace(path, new.encode("utf-8"))
        return True
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` between processes; the kernel frees it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, content: bytes) -> None:
    # Not named as the file is: one that a crash leaves behind must not be taken for it.
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
