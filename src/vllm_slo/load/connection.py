"""One HTTP/1.1 connection of the wire client: the hot path."""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from vllm_slo.load.chunk import excerpt
from vllm_slo.load.exchange import Exchange

# A server that closes an idle connection just as a request leaves shows it within a round trip.
_CLOSED_WHILE_IDLE_S = 1.0


class Connection(asyncio.Protocol):
    """One connection, with at most one exchange on it.

    `on_idle` is called when an answer has ended and the connection can take the next request,
    before that exchange's own `on_end`. `on_lost` is called when the connection is gone, with the
    exchange that should be sent once more: the server had closed the idle connection it left on.
    """

    _transport: asyncio.Transport
    _parser: HttpResponseParser

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_idle: Callable[["Connection"], None],
        on_lost: Callable[["Connection", Exchange | None], None],
    ) -> None:
        self.is_open = False
        self._sock = sock
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._idle_since_s = 0.0
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._feed: Callable[[bytes], None] = self._unasked
        self._keep: Callable[[tuple[float, bytes]], None] = _drop
        self._now = 0.0
        self._was_idle = False
        self._has_head = False
        self._is_whole = False
        self._ends_by_close = True
        self._keeps_alive = False

    # The hot path: one call a read, one `on_body` a chunk.

    def data_received(self, data: bytes) -> None:
        self._now = monotonic()
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._not_understood(error, data)
        if self._is_whole:
            self._end_response()

    def on_body(self, body: bytes) -> None:
        self._keep((self._now, body))

    # The rest runs once a request.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._idle_since_s = monotonic()
        self.is_open = True

    def start(self, exchange: Exchange, *, timeout_s: float, was_idle: bool) -> None:
        """Writes the request now; what does not fit into the socket follows as it drains."""
        self._exchange = exchange
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._keep = exchange.reads.append
        self._now = 0.0
        self._was_idle = was_idle
        self._has_head = self._is_whole = self._keeps_alive = False
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._too_late, timeout_s)
        request = exchange.request
        exchange.sent_s = monotonic()
        try:
            written = self._sock.send(request)
        except BlockingIOError:
            written = 0
        except OSError:
            self._transport.abort()  # `connection_lost` follows, and sorts it out
            return
        if written < len(request):
            self._transport.write(request[written:])

    def on_message_begin(self) -> None:
        self._ends_by_close = True
        if self._is_whole:  # a second answer, which nobody asked for
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_by_close = False
        elif name == b"location" and self._exchange is not None:
            self._exchange.location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        # A status below 200 is an interim answer, such as 100 Continue.
        if status >= 200 and not self._has_head and self._exchange is not None:
            self._has_head = True
            self._exchange.status = status

    def on_message_complete(self) -> None:
        if self._has_head and not self._is_whole:
            self._is_whole = True
            self._keeps_alive = self._parser.should_keep_alive()

    def _end_response(self) -> None:
        exchange = self._release()
        # An answer may come before the whole request has gone out: no other can follow it then.
        is_sent = self._transport.get_write_buffer_size() == 0
        if self._keeps_alive and self.is_open and is_sent:
            self._idle_since_s = self._now
            self._on_idle(self)
        else:
            self.close()
        if exchange is not None:
            exchange.end(None, at_s=self._now)

    def _release(self) -> Exchange | None:
        exchange, self._exchange = self._exchange, None
        self._feed = self._unasked
        self._keep = _drop
        self._is_whole = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return exchange

    def _not_understood(self, error: Exception, data: bytes) -> None:
        if self._is_whole:  # the answer is in; what follows it is nobody's
            self._keeps_alive = False
        elif isinstance(error, HttpParserUpgrade):
            self.fail("the server switched to another protocol than HTTP/1.1")
        else:
            where = "a broken response" if self._has_head else "the answer is not HTTP/1.1"
            self.fail(f"{where} ({error}): {excerpt(data[:80].decode('latin-1'))!r}")

    def _unasked(self, data: bytes) -> None:
        self.close()  # such as a 408 for an idle connection

    def _too_late(self, timeout_s: float) -> None:
        self.fail(f"timeout: the answer had not ended {timeout_s:g} s after the request")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        exchange = self._release()
        unanswered = None
        if exchange is not None:
            now = monotonic()
            is_unanswered = self._now == 0.0
            soon = now - (exchange.sent_s or now) < _CLOSED_WHILE_IDLE_S
            if self._has_head and self._ends_by_close and exc is None:
                exchange.end(None, at_s=now)
            elif is_unanswered and self._was_idle and soon:
                unanswered = exchange
            else:
                how = "closed it" if exc is None else "reset it"
                where = "before any answer" if is_unanswered else "inside its answer"
                exchange.end(f"the connection was cut: the server {how} {where}", at_s=now)
        self._on_lost(self, unanswered)

    def fail(self, reason: str) -> None:
        """Ends the exchange with this fault, if there is one, and the connection with it."""
        exchange = self._release()
        if exchange is not None:
            self.close()
            exchange.end(reason)

    def idle_s(self) -> float:
        return monotonic() - self._idle_since_s

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()


def _drop(read: tuple[float, bytes]) -> None:
    """Takes what belongs to no exchange."""
