"""The wire client: HTTP/1.1 on `asyncio.Protocol`, so light that it does not shape the numbers."""

import asyncio
import errno
import os
import socket
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

from vllm_slo.errors import SettingsError
from vllm_slo.load.chunk import excerpt
from vllm_slo.load.connection import Connection
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Exchange

_OPENING_AT_ONCE = 64  # well inside the accept queue of any server
_OPEN_TIMEOUT_S = 10.0

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
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
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
                    others = (one() for _ in range(missing - 1))
                    await asyncio.gather(*others, return_exceptions=True)
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

    async def _connect(self) -> Connection:
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

    async def _connect_to(self, family: int, address: tuple[Any, ...]) -> Connection:
        loop = asyncio.get_running_loop()
        # A socket of our own, so that a request can be written at once and not, as uvloop's
        # transport does it, at the end of the loop's turn.
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        connection = Connection(sock, on_idle=self._idle.append, on_lost=self._lost)
        self._connections.add(connection)
        try:
            await loop.create_connection(lambda: connection, sock=sock)
            if not connection.is_open:
                raise ConnectionResetError(errno.ECONNRESET, "closed as soon as it was open")
        except BaseException:
            # The transport has closed the descriptor, and its number may be another's by now.
            sock.detach()
            self._connections.discard(connection)
            raise
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

    def _lost(self, connection: Connection, unanswered: Exchange | None) -> None:
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


def _said(error: OSError) -> str:
    if error.errno is not None and error.errno > 0 and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    return excerpt(error.strerror or error)
