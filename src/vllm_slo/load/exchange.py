"""One request on its way, and what a client that carries it must do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """One request and what came back, as a client fills it in. Times are `CLOCK_MONOTONIC`.

    `request` are the prepared bytes. `reads` are (arrival time, body bytes) pairs. `broken` says
    how the transport failed, if it did. `on_end` is called once, when nothing more will come.
    """

    request: bytes
    on_end: Callable[["Exchange"], None]
    scheduled_s: float | None = None
    sent_s: float | None = None
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    status: int | None = None
    location: str | None = None
    ended_s: float | None = None
    broken: str | None = None
    was_resent: bool = False

    def end(self, broken: str | None, *, at_s: float | None = None) -> None:
        """Nothing more will come; the first end counts."""
        if self.ended_s is None:
            self.ended_s = monotonic() if at_s is None else at_s
            self.broken = broken
            self.on_end(self)


class Client(Protocol):
    """Carries exchanges to one endpoint, any number of them at a time, in one event loop.

    A request that fails ends its exchange with `broken` set; no method raises for it.
    """

    def prepare(self, body: bytes) -> bytes:
        """The bytes to send for a JSON body; all that can be done before time zero."""
        ...

    async def open(self, connections: int) -> None:
        """Opens and keeps that many connections, as far as the server lets it."""
        ...

    def send(self, exchange: Exchange) -> None:
        """Sends now, without waiting for the answer."""
        ...

    def abort(self, reason: str) -> None:
        """Ends every exchange that is on its way, with `reason` as its fault."""
        ...

    async def close(self) -> None:
        """Closes every connection."""
        ...
