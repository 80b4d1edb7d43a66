"""What a server that runs already says of itself."""

from dataclasses import dataclass

from vllm_slo.errors import BootError

_TIMEOUT_S = 10.0
# Nearly every served model has more; ids below it are words of its vocabulary too.
SAFE_VOCAB_SIZE = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A server's answers; `version` is "unknown" where it does not tell, `has_metrics` vLLM's."""

    base_url: str
    model: str
    version: str
    has_metrics: bool
    vocab_size: int = SAFE_VOCAB_SIZE


def ask(url: str, *, api_key: str | None, model: str | None = None) -> Remote:
    """Asks a server which models it serves, its version, and whether it has vLLM's metrics.

    `model` picks one of several by its full name or its end; with one served it is not needed.

    Raises:
        BootError: it does not answer, refuses the key, or serves no such model.
    """
    import httpx

    base_url = url.rstrip("/").removesuffix("/v1")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT_S) as client:
            answer = client.get("/v1/models")
            if answer.status_code in (401, 403):
                raise BootError(
                    f"{base_url} refuses the request ({answer.status_code})\n"
                    "give its key by environment: SLO_API_KEY=... pytest ..."
                )
            answer.raise_for_status()
            served = [str(entry["id"]) for entry in answer.json()["data"]]
            version = client.get("/version")
            metrics = client.get("/metrics")
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise BootError(
            f"{base_url}/v1/models does not answer as an OpenAI-compatible server: {error}\n"
            f"see for yourself: curl -i {base_url}/v1/models"
        ) from None
    return Remote(
        base_url=base_url,
        model=_pick(served, model, base_url),
        version=_version(version),
        has_metrics=metrics.is_success and "vllm:" in metrics.text,
    )


def _pick(served: list[str], wanted: str | None, base_url: str) -> str:
    matching = [name for name in served if wanted and name.lower().endswith(wanted.lower())]
    if wanted in served:
        return wanted
    if len(matching) == 1:
        return matching[0]
    if len(served) == 1:
        return served[0]
    raise BootError(
        f"{base_url} serves {', '.join(served) or 'no model'}: say which with --slo-model"
    )


def _version(answer: object) -> str:
    try:
        return str(answer.json()["version"])  # type: ignore[attr-defined]
    except (ValueError, KeyError, TypeError):
        return "unknown"
