"""The same client over httpx, for endpoints behind TLS, HTTP/2 or a proxy."""

import asyncio
from importlib.util import find_spec
from time import monotonic

import httpx

from vllm_slo.load.chunk import excerpt
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Exchange

_OPEN_TIMEOUT_S = 30.0


class HttpxClient:
    """httpx with its limits lifted: no cap on connections, no timeouts but ours.

    Costs many times the wire client's CPU per event (docs/client.md), and a read's time is taken
    when httpx hands it over. HTTP/2 is used where the `h2` package is there. Proxies and
    certificates are taken from the environment, as httpx does it.

    Every connection is an `httpx.AsyncClient` of its own: with n idle connections in one pool
    httpcore 1.0 takes time of the order of n squared for each request, seconds for 256.
    """

    def __init__(self, endpoint: Endpoint, *, request_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._request_timeout_s = request_timeout_s
        self._tls = httpx.create_ssl_context()
        self._idle: list[httpx.AsyncClient] = []
        self._all: list[httpx.AsyncClient] = []
        self._tasks: dict[asyncio.Task[None], Exchange] = {}

    def prepare(self, body: bytes) -> bytes:
        return body

    async def open(self, connections: int) -> None:
        """Opens that many connections, by as many requests for the list of models."""

        async def one() -> None:
            http = self._new()
            await http.get(f"{self._endpoint.base_url}/v1/models")
            self._idle.append(http)

        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                missing = connections - len(self._idle)
                await asyncio.gather(*(one() for _ in range(missing)), return_exceptions=True)
        except TimeoutError:
            return  # the requests themselves will say what is wrong

    def send(self, exchange: Exchange) -> None:
        http = self._idle.pop() if self._idle else self._new()
        task = asyncio.get_running_loop().create_task(self._carry(exchange, http))
        self._tasks[task] = exchange
        task.add_done_callback(self._tasks.pop)

    def abort(self, reason: str) -> None:
        for task, exchange in list(self._tasks.items()):
            task.cancel()
            exchange.end(reason)

    async def close(self) -> None:
        self.abort("the client was closed")
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for http in self._all:
            await http.aclose()

    def _new(self) -> httpx.AsyncClient:
        http = httpx.AsyncClient(
            headers=self._endpoint.headers(),
            verify=self._tls,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=None
            ),
            timeout=httpx.Timeout(None),
            http2=find_spec("h2") is not None,
        )
        self._all.append(http)
        return http

    async def _carry(self, exchange: Exchange, http: httpx.AsyncClient) -> None:
        exchange.sent_s = monotonic()
        fault: str | None = "the client failed, not the server"
        try:
            async with (
                asyncio.timeout(self._request_timeout_s),
                http.stream("POST", self._endpoint.url, content=exchange.request) as response,
            ):
                exchange.status = response.status_code
                exchange.location = response.headers.get("location")
                async for read in response.aiter_raw():
                    exchange.reads.append((monotonic(), read))
            fault = None
        except TimeoutError:
            within = f"{self._request_timeout_s:g} s after the request"
            fault = f"timeout: the answer had not ended {within}"
        except httpx.ConnectError as error:
            fault = f"could not connect to {self._endpoint.base_url}: {excerpt(error)}"
        except httpx.RemoteProtocolError as error:
            where = "before any answer" if exchange.status is None else "inside its answer"
            fault = f"the connection was cut {where}, or it is not HTTP: {excerpt(error)}"
        except (httpx.HTTPError, OSError) as error:
            where = "before any answer" if exchange.status is None else "inside its answer"
            said = excerpt(error) or type(error).__name__
            fault = f"the connection was cut {where}: {said}"
        finally:
            self._idle.append(http)
            exchange.end(fault)
