"""`App`: the HTTP face of a `Service`, as a plain ASGI application."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import monotonic
from typing import Any

from vllm_slo.sim.serve.ask import Api, read_ask
from vllm_slo.sim.serve.fields import Fields
from vllm_slo.sim.serve.outlet import Message, Outlet, Send
from vllm_slo.sim.serve.refusal import RefusedError
from vllm_slo.sim.serve.service import Service

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Headers = dict[bytes, bytes]

VERSION = "0.32.0+sim"  # the vLLM whose scheduler and API this is, and that it is a simulation
_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_METRICS = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_GUARDED = ("/v1", "/golden")


class App:
    """Routes requests; with an `api_key`, `/v1` and `/golden` are for those who have it."""

    def __init__(self, service: Service, *, api_key: str | None = None, created: int = 0) -> None:
        self._service = service
        self._created = created
        self._key = None if not api_key else hashlib.sha256(api_key.encode()).digest()
        self._routes: dict[tuple[str, str], Callable[[Send], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", "/golden/health"): self._golden_health,
            ("GET", "/golden/requests"): self._golden_requests,
            ("DELETE", "/golden/requests"): self._golden_clear,
        }
        self._apis: dict[str, Api] = {
            "/v1/completions": "completions",
            "/v1/chat/completions": "chat",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        received_s = monotonic()
        method, path = scope["method"], scope["path"]
        headers: Headers = dict(scope["headers"])
        try:
            if path.startswith(_GUARDED) and not self._is_known(headers):
                await _respond(send, HTTPStatus.UNAUTHORIZED, b'{"error":"Unauthorized"}')
            elif path in self._apis and method == "POST":
                await self._generate(self._apis[path], headers, receive, send, received_s)
            else:
                await self._route(method, path)(send)
        except RefusedError as refusal:
            await _respond(send, refusal.status, refusal.body())

    def _route(self, method: str, path: str) -> Callable[[Send], Awaitable[None]]:
        found = self._routes.get((method, path))
        if found is not None:
            return found
        known = path in self._apis or any(path == other for _, other in self._routes)
        status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
        raise RefusedError(status.phrase, status=status, error_type=status.phrase)

    def _is_known(self, headers: Headers) -> bool:
        if self._key is None:
            return True
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = hashlib.sha256(token).digest()
        return scheme.lower() == b"bearer" and secrets.compare_digest(given, self._key)

    async def _generate(
        self, api: Api, headers: Headers, receive: Receive, send: Send, received_s: float
    ) -> None:
        body = await _body(receive)
        if body is None:
            return
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise RefusedError(
                "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                error_type="Bad Request",
            )
        fields = Fields.of(body)
        ask = read_ask(fields, api=api, served=(self._service.model_name,))
        self._service.check_admission()
        reply = self._service.submit(
            ask, Outlet(send), request_id=_request_id(api, headers, fields), received_s=received_s
        )
        head = _EVENTS if ask.stream else _JSON
        await send({"type": "http.response.start", "status": 200, "headers": [head]})
        # The engine writes the body. This returns when the client is gone, or has all of it.
        while (await receive())["type"] != "http.disconnect":
            pass
        if not reply.is_done:
            self._service.abort(reply)

    async def _health(self, send: Send) -> None:
        await _respond(send, HTTPStatus.OK, b"")

    async def _version(self, send: Send) -> None:
        await _respond(send, HTTPStatus.OK, json.dumps({"version": VERSION}).encode())

    async def _metrics(self, send: Send) -> None:
        engine = self._service.engine
        running, waiting, usage = engine.gauges()
        text = self._service.metrics.text(
            running=running, waiting=waiting, usage=usage, pace=engine.pace
        )
        await _respond(send, HTTPStatus.OK, text.encode(), _METRICS)

    async def _models(self, send: Send) -> None:
        card = {
            "id": self._service.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._service.model_name,
            "parent": None,
            "max_model_len": self._service.config.max_model_len,
            "permission": [],
        }
        body = json.dumps({"object": "list", "data": [card]})
        await _respond(send, HTTPStatus.OK, body.encode())

    async def _golden_health(self, send: Send) -> None:
        await _respond(send, HTTPStatus.OK, json.dumps(self._service.health()).encode())

    async def _golden_requests(self, send: Send) -> None:
        """One record a line's worth of JSON at a time, so that tokens go out between them."""
        start = {"type": "http.response.start", "status": 200, "headers": [_JSON]}
        await send(start)
        before = f'{{"dropped":{self._service.golden.dropped},"requests":['.encode()
        for record in self._service.golden:
            body = before + json.dumps(record.as_json()).encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)
            before = b",\n"
        end = b"]}" if before == b",\n" else before + b"]}"
        await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _golden_clear(self, send: Send) -> None:
        self._service.golden.clear()
        await _respond(send, HTTPStatus.OK, b"{}")


async def _body(receive: Receive) -> bytes | None:
    """The whole body; `None` if the client went away before it was."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _request_id(api: Api, headers: Headers, fields: Fields) -> str:
    """As vLLM: the header's, else the body's, else a random one."""
    asked = headers.get(b"x-request-id", b"").decode("latin-1") or fields.text("request_id")
    return f"{'cmpl' if api == 'completions' else 'chatcmpl'}-{asked or secrets.token_hex(16)}"


async def _respond(
    send: Send, status: HTTPStatus, body: bytes, kind: tuple[bytes, bytes] = _JSON
) -> None:
    length = (b"content-length", str(len(body)).encode())
    headers = [kind, length] if body else [length]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
