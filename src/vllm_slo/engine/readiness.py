"""When a server is ready: it lives, it is ours, and it answers with a token."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from vllm_slo.engine.models import Model
from vllm_slo.engine.ports import listens_only
from vllm_slo.engine.supervise import Supervised
from vllm_slo.engine.warden import descendants

_POLL_S = 0.1
# Any model's vocabulary has these, and no tokenizer's special tokens are among them.
_PROMPT = [17, 18, 19]


class DiedError(Exception):
    """The process ended before it was ready."""


class TimeUpError(Exception):
    """The time is up; the text says what was waited for."""


class WrongAnswerError(Exception):
    """The server answers, and not as it should; the text says how."""


class NotOursError(Exception):
    """What listens on the port is not the server we started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the server said of itself: its version, its model entry, its /metrics, /server_info."""

    version: str
    model_entry: Mapping[str, Any]
    metrics: str
    server_info: Mapping[str, Any] | None


def control_client(base_url: str, api_key: str | None = None) -> httpx.Client:
    """A client for control requests: no proxy, since the server is on this machine."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=base_url, headers=headers, trust_env=False, timeout=5.0)


def wait_until_ready(
    process: Supervised, *, base_url: str, port: int, api_key: str, model: Model, until: float
) -> Answers:
    """Polls until `/health` answers, then proves that the server is ours and gives a token.

    `until` is a time of `time.monotonic`.

    Raises:
        DiedError: the process ended; it is noticed within a tenth of a second.
        NotOursError: another process listens on the port.
        WrongAnswerError: no token comes back, or our key is refused or not asked for.
        TimeUpError: it is.
    """
    with control_client(base_url, api_key) as client:
        _wait_healthy(process, client, until)
        if not listens_only(port, {process.pid, *descendants(process.pid)}):
            raise NotOursError(f"another process listens on port {port}")
        version = str(_json(process, client, "/version", until).get("version", ""))
        _prove_key(process, base_url, until)
        models = _json(process, client, "/v1/models", until).get("data") or [{}]
        _one_token(process, client, model, until)
        metrics = _get(process, client, "/metrics", until)
        info = client.get("/server_info", params={"config_format": "json"})
    return Answers(
        version=version,
        model_entry=models[0],
        metrics=metrics.text if metrics.status_code == 200 else "",
        server_info=info.json() if info.status_code == 200 else None,
    )


def _wait_healthy(process: Supervised, client: httpx.Client, until: float) -> None:
    last = "nothing listens on its port yet"
    while True:
        _check(process, until, last, wait_s=_POLL_S)
        try:
            # Short: while a stranger's port swallows the request, the process may die.
            answer = client.get("/health", timeout=0.5)
        except httpx.HTTPError as error:
            last = f"/health: {type(error).__name__}"
            continue
        if answer.status_code == 200:
            return
        last = f"/health answers {answer.status_code}"


def _prove_key(process: Supervised, base_url: str, until: float) -> None:
    with control_client(base_url) as stranger:
        status = _get(process, stranger, "/v1/models", until).status_code
    if status not in (401, 403):
        raise WrongAnswerError(f"/v1/models answers {status} without the API key")


def _one_token(process: Supervised, client: httpx.Client, model: Model, until: float) -> None:
    body = {"model": model.served_name, "prompt": _PROMPT, "max_tokens": 1, "temperature": 0.0}
    left = max(until - time.monotonic(), 0.1)
    try:
        answer = client.post("/v1/completions", json=body, timeout=left)
    except httpx.HTTPError as error:
        _check(process, until, f"the first completion: {type(error).__name__}", wait_s=1.0)
        if isinstance(error, httpx.TimeoutException):
            raise TimeUpError("the first completion has no answer") from error
        raise WrongAnswerError(f"the first completion failed: {error!r}") from error
    if answer.status_code != 200:
        _check(process, until, "", wait_s=1.0)
        raise WrongAnswerError(
            f"the first completion answers {answer.status_code}: {answer.text[:300]}"
        )
    usage = answer.json().get("usage") or {}
    if usage.get("completion_tokens") != 1:
        raise WrongAnswerError(f"the first completion has no token: usage {usage}")


def _json(process: Supervised, client: httpx.Client, path: str, until: float) -> dict[str, Any]:
    answer = _get(process, client, path, until)
    try:
        value = answer.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError) as error:
        raise WrongAnswerError(f"{path}: {error}") from error
    return value if isinstance(value, dict) else {}


def _get(process: Supervised, client: httpx.Client, path: str, until: float) -> httpx.Response:
    try:
        return client.get(path)
    except httpx.HTTPError as error:
        _check(process, until, "", wait_s=1.0)
        raise WrongAnswerError(f"{path}: {error!r}") from error


def _check(process: Supervised, until: float, waited_for: str, *, wait_s: float) -> None:
    if process.wait(wait_s) is not None:
        raise DiedError
    if time.monotonic() > until:
        raise TimeUpError(waited_for)
