"""Where requests go, and the bodies they are sent with."""

import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vllm_slo.errors import SettingsError
from vllm_slo.load.chunk import Api
from vllm_slo.traffic.workload import PlannedRequest, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server, and the model asked of it.

    `base_url` is what comes before `/v1`; a trailing `/v1` is dropped. `vocab_size` bounds the
    prompt's token ids. On "completions" prompts are token ids, so their lengths are exact. On
    "chat" the prompt is a text of as many words as the plan has tokens, inside the server's chat
    template: its length in tokens is the server's to count, and is not checked.

    Raises:
        SettingsError: a malformed URL or API key, an unknown `api`, a vocabulary too small.
    """

    base_url: str
    model: str
    vocab_size: int
    api_key: str | None = field(default=None, repr=False)
    api: Api = "completions"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url.strip())
            port = parts.port
        except ValueError as error:
            raise SettingsError(f"the endpoint {self.base_url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise SettingsError(
                f"the endpoint {self.base_url!r} is not one: write http://HOST:PORT"
            )
        if parts.username or parts.query or parts.fragment:
            raise SettingsError(
                "the endpoint must be a plain http://HOST:PORT or https://HOST/PATH, without user,"
                " query or fragment; an API key goes into api_key"
            )
        path = parts.path.rstrip("/").removesuffix("/v1")
        url = f"{parts.scheme}://{parts.netloc}{path}"
        if not _is_header_text(url):
            raise SettingsError(f"the endpoint {self.base_url!r} has characters no URL has")
        object.__setattr__(self, "base_url", url)
        if self.api_key is not None and not _is_header_text(self.api_key):
            raise SettingsError(
                "api_key holds a space, a line end or a character outside ASCII: it cannot be sent"
                " in a header (was it read from a file with its newline?)"
            )
        if self.api not in ("completions", "chat"):
            raise SettingsError(f'api must be "completions" or "chat", not {self.api!r}')
        if self.vocab_size < 17:
            raise SettingsError(
                f"vocab_size is {self.vocab_size}: prompts are drawn from ids 16 and up"
            )

    @property
    def url(self) -> str:
        """Where requests are posted to."""
        name = "completions" if self.api == "completions" else "chat/completions"
        return f"{self.base_url}/v1/{name}"

    @property
    def has_exact_prompts(self) -> bool:
        return self.api == "completions"

    def headers(self) -> dict[str, str]:
        """The headers of every request, its length and host left out."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # Compression would delay events and hide their sizes.
            "Accept-Encoding": "identity",
        }
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def body(self, workload: Workload, request: PlannedRequest) -> bytes:
        """The JSON body that asks for exactly what is planned.

        Output length is forced by `max_tokens`, `min_tokens` and `ignore_eos`. A priority is sent
        only where there is one: vLLM refuses it under its fcfs policy.
        """
        ids = workload.prompt_ids(request, vocab_size=self.vocab_size).tolist()
        body: dict[str, object] = {"model": self.model}
        if self.api == "completions":
            body["prompt"] = ids
        else:
            body["messages"] = [{"role": "user", "content": " ".join(map(str, ids))}]
        body |= {
            "max_tokens": request.output_tokens,
            "min_tokens": request.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if request.priority != 0:
            body["priority"] = request.priority
        return json.dumps(body, separators=(",", ":")).encode()


def _is_header_text(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
