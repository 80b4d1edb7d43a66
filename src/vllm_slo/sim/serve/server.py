"""Running the server: in this process until a signal, or in a thread for as long as a block."""

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from time import time
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vllm_slo.errors import SettingsError
from vllm_slo.sim.serve.alarm import Alarm
from vllm_slo.sim.serve.app import App
from vllm_slo.sim.serve.options import ServeOptions

_BACKLOG = 2048


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol, writing at once: a token's time is when it is given to the socket.

    uvloop would keep what is written until the callback ends, after the tokens of all other
    streams, unless that is above the high-water mark.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)


class _Uvicorn(uvicorn.Server):
    """uvicorn's server; it leaves the signals to us, and cuts what still streams when it ends."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in tuple(self.server_state.connections):
            cast(HttpToolsProtocol, connection).transport.abort()
        await super().shutdown(sockets)


def bind(options: ServeOptions) -> socket.socket:
    """A socket on the address that is asked for, not listening yet.

    Raises:
        SettingsError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        raise SettingsError(
            f"cannot serve on {options.host}, port {options.port}: {error.strerror or error}\n"
            "give another --host or --port; --port 0 takes any free one"
        ) from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_on(
    sock: socket.socket, options: ServeOptions, *, started: Callable[[_Uvicorn, App], None]
) -> None:
    """Serves until the server that `started` is given is told to exit.

    Raises:
        SloError: the device model does not cover a step; all connections are cut then.
    """
    service = options.service(Alarm(asyncio.get_running_loop()))
    app = App(service, api_key=options.api_key, created=int(time()))
    server = _Uvicorn(
        uvicorn.Config(
            cast("uvicorn._types.ASGIApplication", app),
            http=_Connection,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
        )
    )
    fatal: list[BaseException] = []

    def die(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if isinstance(context.get("exception"), Exception):
            # As vLLM when its engine has died: it answers no more, and ends.
            fatal.append(context["exception"])
            server.should_exit = True

    asyncio.get_running_loop().set_exception_handler(die)
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if server.started:
        started(server, app)
    await serving
    service.say_pace()
    if fatal:
        raise fatal[0]


def serve(options: ServeOptions, *, announce: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM; `announce` is given the URL once it answers.

    Raises:
        SettingsError, ProfileError: as `ServeOptions.config`; or the address cannot be had.
    """
    import uvloop

    options.config()
    sock = bind(options)

    def started(server: _Uvicorn, _: App) -> None:
        def stop() -> None:
            server.should_exit = True

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        # What is there by now stays: collecting it again and again would only cost time.
        gc.collect()
        gc.freeze()
        announce(url_of(sock))

    with sock:
        uvloop.run(serve_on(sock, options, started=started))


class SimServer:
    """The server in a thread of this process, while a `with` block lasts; `base_url` is its own.

    For tests, and where exact pace does not matter: it shares the interpreter with its client.

    Raises:
        SettingsError, ProfileError: as `serve`, from the constructor.
    """

    def __init__(self, options: ServeOptions | None = None) -> None:
        self.options = options or ServeOptions()
        self.options.config()
        self._sock = bind(self.options)
        self.base_url = url_of(self._sock)
        self._server: _Uvicorn
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sim-serve", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        import uvloop

        uvloop.run(serve_on(self._sock, self.options, started=self._started))

    def _started(self, server: _Uvicorn, _: App) -> None:
        self._server = server
        self._is_up.set()
