"""`Alarm`: wakes a callback at a moment, to a fraction of a millisecond."""

import asyncio
from collections.abc import Callable
from time import monotonic

# An event loop's timers count whole milliseconds; what is left is spent turning the loop.
_TURNING_S = 0.0015


class Alarm:
    """One alarm of an event loop; I/O is served while it waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self._due_s = 0.0
        self._callback: Callable[[], None]

    def set(self, due_s: float, callback: Callable[[], None]) -> None:
        """Calls `callback` at `due_s` of `time.monotonic`, once, in place of what was set."""
        self.cancel()
        self._due_s, self._callback = due_s, callback
        # Never at once: what has come in meanwhile is read first, also by a server that is late.
        self._soon()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        left_s = self._due_s - monotonic()
        if left_s <= 0:
            self._handle = None
            self._callback()
        elif left_s < _TURNING_S:
            self._soon()
        else:
            self._handle = self._loop.call_later(int(left_s * 1e3) / 1e3, self._wait)

    def _soon(self) -> None:
        self._handle = self._loop.call_soon(self._wait)
