"""The padding worker's account: counters in a mapped file, written by a store, read at any time.

A mapped file costs no system call on the step's path, is current whenever it is read, and keeps
its contents when the engine is killed.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from vllm_slo.errors import EngineEnvironmentError

_MAGIC = b"slo-acc1"
_HEADER = struct.Struct("=8sQQ")  # magic, steps, overruns
_RING = 4096  # lateness of the latest overruns, in milliseconds
_LATE = struct.Struct("=d")
_SIZE = _HEADER.size + _RING * _LATE.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Counts since the engine booted; `late_ms` are the latest overruns, oldest first."""

    steps: int
    overruns: int
    late_ms: tuple[float, ...] = ()


class AccountWriter:
    """Counts steps into a file that `read_account` reads, made anew."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_HEADER.pack(_MAGIC, 0, 0).ljust(_SIZE, b"\0"))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._steps = 0
        self._overruns = 0

    def count(self, *, overrun_ms: float | None = None) -> None:
        """Counts one step; `overrun_ms` is by how much it was late, if it was."""
        self._steps += 1
        if overrun_ms is not None:
            slot = _HEADER.size + self._overruns % _RING * _LATE.size
            _LATE.pack_into(self._map, slot, overrun_ms)
            self._overruns += 1
        _HEADER.pack_into(self._map, 0, _MAGIC, self._steps, self._overruns)


def read_account(path: Path) -> Account:
    """The account as it stands.

    Raises:
        EngineEnvironmentError: no padding worker has made the file, or it is not such a file.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise EngineEnvironmentError(
            f"{path}: no account of the padding worker; was the server booted with "
            "--worker-cls and the overlay's environment?"
        ) from None
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        raise EngineEnvironmentError(f"{path}: not an account of the padding worker")
    _, steps, overruns = _HEADER.unpack_from(data)
    kept = range(max(0, overruns - _RING), overruns)
    late = (_LATE.unpack_from(data, _HEADER.size + i % _RING * _LATE.size)[0] for i in kept)
    return Account(steps=steps, overruns=overruns, late_ms=tuple(late))
