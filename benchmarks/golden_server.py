"""A small streaming server that stamps what it sends: the truth that clients are held against.

Run by itself it is the benchmark's server: `python benchmarks/golden_server.py --interval-ms 25`
prints its port, serves completions of one token every interval, and answers `GET /log` with the
times of what it received and sent since it was last asked. In tests it runs in a thread and plays
scripts, faults included.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httptools
import uvloop


@dataclass(frozen=True, slots=True)
class Body:
    """Body bytes, sent as one chunk of a chunked response and logged."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes of the connection, sent as they are and not logged as body."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Does nothing for that long; `Wait(None)` for ever."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Close:
    """Ends the connection: in order, or with a reset."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class Ticks:
    """Chunks already framed, one every interval from when the request came; logged by time."""

    chunks: Sequence[bytes]
    interval_s: float


Step = Body | Raw | Wait | Close | Ticks
HEAD = Raw(
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = Raw(b"0\r\n\r\n")


@dataclass(slots=True)
class Served:
    """One request as the server saw it: all times are `CLOCK_MONOTONIC`."""

    path: str
    headers: dict[str, str]
    body: bytes
    received_s: float
    connection: int
    sent: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads(self.body)

    def sent_s(self) -> list[float]:
        return [at_s for at_s, _ in self.sent]


def event(*, text: str, tokens: int, prompt: int, finish: str | None = None) -> bytes:
    """One completions event in vLLM's form, with its cumulative usage."""
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    head = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps(head | {"choices": [choice], "usage": usage}).encode() + b"\n\n"


def last_usage(*, tokens: int, prompt: int) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
    head = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps(head | {"choices": [], "usage": usage}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def events(*, tokens: int, prompt: int) -> list[bytes]:
    """The events of a good answer: one a token, the usage, `[DONE]`."""
    each = [
        event(text=f" t{n}", tokens=n, prompt=prompt, finish="length" if n == tokens else None)
        for n in range(1, tokens + 1)
    ]
    return [*each, last_usage(tokens=tokens, prompt=prompt), DONE]


def good_answer(served: Served, *, pause_s: float = 0.0) -> list[Step]:
    """What was asked, an event every `pause_s`."""
    asked = served.asked
    tokens, prompt = asked["max_tokens"], len(asked.get("prompt", ()))
    steps: list[Step] = [HEAD]
    for data in events(tokens=tokens, prompt=prompt):
        steps += [Wait(pause_s), Body(data)] if pause_s else [Body(data)]
    return [*steps, END]


Answer = Callable[[Served], Sequence[Step]]


class GoldenServer:
    """Serves scripts on a port of its own; `served` is the log."""

    def __init__(self, answer: Answer = good_answer) -> None:
        self.answer = answer
        self.served: list[Served] = []
        self.connections: list[Connection] = []
        self.connection_class = Connection
        self.port = 0
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.port = sock.getsockname()[1]
        self._server = await self.loop.create_server(lambda: self.connection_class(self), sock=sock)

    async def stop(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.cut()
        await asyncio.sleep(0)

    @contextlib.contextmanager
    def in_thread(self) -> Iterator["GoldenServer"]:
        """Runs the server in a thread of this process while the block lasts."""
        is_up, is_over = threading.Event(), asyncio.Event()

        async def main() -> None:
            await self.start()
            is_up.set()
            await is_over.wait()
            await self.stop()

        thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        thread.start()
        is_up.wait()
        try:
            yield self
        finally:
            self.loop.call_soon_threadsafe(is_over.set)
            thread.join()

    def cut_connections(self) -> None:
        """Closes what is open, idle connections too; from any thread, done when it returns."""
        is_cut = threading.Event()

        def cut() -> None:
            for connection in self.connections:
                connection.cut()
            is_cut.set()

        self.loop.call_soon_threadsafe(cut)
        is_cut.wait()


class Connection(asyncio.Protocol):
    """One client's connection: reads requests, plays the script of each."""

    def __init__(self, server: GoldenServer) -> None:
        self.server = server
        self.number = len(server.connections)
        server.connections.append(self)
        self.transport: asyncio.Transport
        self.parser: httptools.HttpRequestParser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._new_request()

    def _new_request(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_whole = False

    def data_received(self, data: bytes) -> None:
        received_s = monotonic()
        self.parser.feed_data(data)
        if not self.is_whole:
            return
        served = Served(self.path, self.headers, self.body, received_s, self.number)
        self._new_request()
        if served.path == "/log":
            log = [
                {"prompt": s.asked["prompt"], "received_s": s.received_s, "sent_s": s.sent_s()}
                for s in self.server.served
            ]
            self.server.served.clear()
            self._plain(json.dumps(log).encode())
        elif not served.path.endswith("/completions"):
            self._plain(b"{}")
        else:
            self.server.served.append(served)
            self._play(served, iter(self.server.answer(served)))

    def on_url(self, url: bytes) -> None:
        self.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True

    def _plain(self, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def _play(self, served: Served, steps: Iterator[Step]) -> None:
        for step in steps:
            if self.transport.is_closing():
                return
            if isinstance(step, Wait):
                if step.seconds is not None:
                    loop = asyncio.get_running_loop()
                    loop.call_later(step.seconds, self._play, served, steps)
                return
            if isinstance(step, Close):
                self.cut(reset=step.reset)
                return
            if isinstance(step, Body):
                served.sent.append((monotonic(), step.data))
                self.transport.write(framed(step.data))
            elif isinstance(step, Ticks):
                self._tick(served, step, 0, steps)
                return
            else:
                self.transport.write(step.data)

    def _tick(self, served: Served, ticks: Ticks, number: int, rest: Iterator[Step]) -> None:
        if number:
            chunk = ticks.chunks[number - 1]
            served.sent.append((monotonic(), chunk))
            self.transport.write(chunk)
        if number == len(ticks.chunks):
            self._play(served, rest)
        elif not self.transport.is_closing():
            due_s = served.received_s + (number + 1) * ticks.interval_s
            wait_s = max(0.0, due_s - monotonic())
            self.server.loop.call_later(wait_s, self._tick, served, ticks, number + 1, rest)

    def cut(self, *, reset: bool = False) -> None:
        if reset:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, 0 s: close() sends a reset
            sock = self.transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
        else:
            self.transport.close()


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def ticking(*, interval_s: float) -> Answer:
    """A good answer with a token every `interval_s`; the bytes are made once for each shape.

    The body is not parsed: for 512 requests at once that alone would take a tenth of a second.
    """
    shapes: dict[tuple[int, int], list[Step]] = {}

    def answer(served: Served) -> list[Step]:
        asked = re.search(rb'"max_tokens": ?(\d+)', served.body)
        prompt = served.body.count(b",", served.body.index(b"["), served.body.index(b"]")) + 1
        shape = (int(asked[1]) if asked else 16, prompt)
        if shape not in shapes:
            *tokens, usage, done = map(framed, events(tokens=shape[0], prompt=prompt))
            shapes[shape] = [HEAD, Ticks(tokens, interval_s), Raw(usage + done + END.data)]
        return shapes[shape]

    return answer


async def _serve(interval_s: float) -> None:
    server = GoldenServer(ticking(interval_s=interval_s))
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval-ms", type=float, default=25.0)
    parser.add_argument("--core", type=int, help="the one core to run on")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    uvloop.run(_serve(options.interval_ms / 1000))


if __name__ == "__main__":
    main()
