"""The same client over httpx, for endpoints behind TLS, HTTP/2 or a proxy."""

import asyncio
from importlib.util import find_spec
from time import monotonic

import httpx

from vllm_slo.load.chunk import excerpt
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Exchange

_OPEN_TIMEOUT_S = 10.0


class HttpxClient:
    """httpx with its limits lifted: no cap on connections, no timeouts but ours.

    Costs about ten times the wire client's CPU per event (docs/client.md), and times are taken
    after httpx has decoded a read. HTTP/2 is used where the `h2` package is there.
    """

    def __init__(self, endpoint: Endpoint, *, request_timeout_s: float) -> None:
        self._url = endpoint.url
        self._models_url = f"{endpoint.base_url}/v1/models"
        self._request_timeout_s = request_timeout_s
        self._tasks: dict[asyncio.Task[None], Exchange] = {}
        self._http = httpx.AsyncClient(
            headers=endpoint.headers(),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=None
            ),
            timeout=httpx.Timeout(None),
            http2=find_spec("h2") is not None,
        )

    def prepare(self, body: bytes) -> bytes:
        return body

    async def open(self, connections: int) -> None:
        """Leaves that many connections in the pool, by as many requests for the models' list."""

        async def one() -> None:
            await self._http.get(self._models_url)

        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                await asyncio.gather(*(one() for _ in range(connections)))
        except (httpx.HTTPError, OSError, TimeoutError):
            return  # the requests themselves will say what is wrong

    def send(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(exchange))
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
        await self._http.aclose()

    async def _carry(self, exchange: Exchange) -> None:
        exchange.sent_s = monotonic()
        fault: str | None = "the client failed, not the server"
        try:
            async with (
                asyncio.timeout(self._request_timeout_s),
                self._http.stream("POST", self._url, content=exchange.request) as response,
            ):
                exchange.status = response.status_code
                exchange.location = response.headers.get("location")
                async for read in response.aiter_raw():
                    exchange.reads.append((monotonic(), read))
            fault = None
        except TimeoutError:
            fault = (
                f"timeout: the answer had not ended {self._request_timeout_s:g} s after the request"
            )
        except httpx.ConnectError as error:
            fault = f"could not connect to {self._url}: {excerpt(error)}"
        except (httpx.HTTPError, OSError) as error:
            where = "before any answer" if exchange.status is None else "inside its answer"
            fault = f"the connection was cut {where}: {type(error).__name__}: {excerpt(error)}"
        finally:
            exchange.end(fault)
