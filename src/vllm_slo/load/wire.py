"""The wire client: HTTP/1.1 on `asyncio.Protocol`, so light that it does not shape the numbers."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from vllm_slo.errors import SettingsError
from vllm_slo.load.chunk import excerpt
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Exchange

_OPENING_AT_ONCE = 64  # well inside the accept queue of any server
_OPEN_TIMEOUT_S = 10.0
# A server that closes an idle connection just as a request leaves shows it within a round trip.
_CLOSED_WHILE_IDLE_S = 1.0

_REOPEN_AFTER_S = 1.0  # never faster than a server may close them

Address = tuple[int, tuple[Any, ...]]


class WireClient:
    """Plain HTTP/1.1 to one endpoint over kept connections; time is taken before any parsing.

    Per event it stores (time, body bytes) and nothing else. Connections that the server closed or
    reset while idle are opened anew; a request that was lost to that, with no byte of an answer,
    is sent once more (`Exchange.was_resent`).

    Raises:
        SettingsError: the endpoint asks for TLS.
    """

    def __init__(self, endpoint: Endpoint, *, request_timeout_s: float) -> None:
        parts = urlsplit(endpoint.url)
        if parts.scheme != "http":
            raise SettingsError(
                f"the wire client speaks plain HTTP, and the endpoint is {endpoint.base_url}:"
                " run again with --slo-client=httpx"
            )
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        lines = [f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in endpoint.headers().items()]
        self._head = "\r\n".join(lines).encode()
        self._request_timeout_s = request_timeout_s
        self._address: Address | None = None
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._connecting: dict[asyncio.Task[None], Exchange | None] = {}
        self._is_closing = False

    def prepare(self, body: bytes) -> bytes:
        return self._head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def open(self, connections: int) -> None:
        """Opens idle connections until there are that many; a server that is away is no error."""
        gate = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def one() -> None:
            async with gate:
                self._idle.append(await self._connect())

        missing = connections - len(self._idle)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                if missing > 0:
                    await one()  # finds the address that works before the many try it
                    await asyncio.gather(*(one() for _ in range(missing - 1)))
        except (OSError, TimeoutError):
            return  # the requests themselves will say what is wrong

    def send(self, exchange: Exchange) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                connection.start(exchange, timeout_s=self._request_timeout_s, was_idle=True)
                return
        self._spawn(self._connect_and_send(exchange), exchange)

    def abort(self, reason: str) -> None:
        for connection in list(self._connections):
            connection.fail(reason)
        for task, exchange in list(self._connecting.items()):
            task.cancel()
            if exchange is not None:
                exchange.end(reason)

    async def close(self) -> None:
        self._is_closing = True
        self.abort("the client was closed")
        if self._connecting:
            await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            await asyncio.sleep(0)

    async def _connect(self) -> "_Connection":
        if self._address is None:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            candidates: list[Address] = [(family, address) for family, _, _, _, address in found]
        else:
            candidates = [self._address]
        faults = []
        for family, address in candidates:
            try:
                connection = await self._connect_to(family, address)
            except OSError as error:
                faults.append(error)
            else:
                self._address = (family, address)
                return connection
        raise faults[0] if faults else OSError(errno.EADDRNOTAVAIL, "the host has no address")

    async def _connect_to(self, family: int, address: tuple[Any, ...]) -> "_Connection":
        loop = asyncio.get_running_loop()
        # A socket of our own, so that a request can be written at once and not, as uvloop's
        # transport does it, at the end of the loop's turn.
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            connection = _Connection(sock, on_idle=self._idle.append, on_lost=self._lost)
            await loop.create_connection(lambda: connection, sock=sock)
        except BaseException:
            sock.close()
            raise
        self._connections.add(connection)
        return connection

    async def _connect_and_send(self, exchange: Exchange) -> None:
        address = f"{self.host}:{self.port}"
        try:
            async with asyncio.timeout(self._request_timeout_s):
                connection = await self._connect()
        except TimeoutError:
            exchange.end(f"timeout: no connection to {address} in {self._request_timeout_s:g} s")
        except OSError as error:
            again = "the server cut the connection before any answer, and then we "
            we = again if exchange.was_resent else ""
            exchange.end(f"{we}could not connect to {address}: {_said(error)}")
        else:
            connection.start(exchange, timeout_s=self._request_timeout_s, was_idle=False)

    def _spawn(self, work: Coroutine[Any, Any, None], exchange: Exchange | None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._connecting[task] = exchange
        task.add_done_callback(self._connecting.pop)

    def _lost(self, connection: "_Connection", unanswered: Exchange | None) -> None:
        self._connections.discard(connection)
        was_idle = connection in self._idle
        if was_idle:
            self._idle.remove(connection)
        if unanswered is not None:
            unanswered.was_resent = True
            self._spawn(self._connect_and_send(unanswered), unanswered)
        elif was_idle and not self._is_closing and connection.idle_s() > _REOPEN_AFTER_S:
            self._spawn(self._reopen(), None)

    async def _reopen(self) -> None:
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                self._idle.append(await self._connect())
        except (OSError, TimeoutError):
            return  # a request that finds no idle connection opens one, and reports the fault


class _Connection(asyncio.Protocol):
    """One connection, with at most one exchange on it."""

    _transport: asyncio.Transport
    _parser: HttpResponseParser

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_idle: Callable[["_Connection"], None],
        on_lost: Callable[["_Connection", Exchange | None], None],
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
        if self._keeps_alive and self.is_open:
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


def _said(error: OSError) -> str:
    if error.errno is not None and error.errno > 0 and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return excerpt(error.strerror or error)
