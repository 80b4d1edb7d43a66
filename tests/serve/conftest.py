"""What the tests of the simulated server share: servers of a device whose steps take 2 ms."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from vllm_slo.settings import Settings
from vllm_slo.sim.serve import ServeOptions, SimServer

STEP_MS = 2.0
_ZERO = (
    *("weights", "token", "activation", "kv", "fixed", "head", "head_row", "decode"),
    *("prefill_token", "prefill_pair"),
)


class Served:
    """A running server, and a client of it."""

    def __init__(self, base_url: str, client: httpx.Client) -> None:
        self.base_url = base_url
        self.client = client

    def complete(self, prompt: object = "a b c", **fields: Any) -> httpx.Response:
        return self.client.post("/v1/completions", json={"prompt": prompt, **fields})

    def chat(self, content: object = "a b c", **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return self.client.post("/v1/chat/completions", json={"messages": messages, **fields})

    def golden(self) -> list[dict[str, Any]]:
        return list(self.client.get("/golden/requests").json()["requests"])

    def health(self) -> dict[str, Any]:
        return dict(self.client.get("/golden/health").json())

    def wait_until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Polls the server's health until it is as wanted."""
        give_up = time.monotonic() + 10
        while not holds(health := self.health()):
            assert time.monotonic() < give_up, health
            time.sleep(0.005)
        return health


@pytest.fixture(scope="session")
def metronome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device profile: every step takes `STEP_MS`."""
    path = tmp_path_factory.mktemp("device") / "metronome.toml"
    zeros = "\n".join(f"{name} = 0" for name in _ZERO)
    path.write_text(f"[roofline]\nhost = {STEP_MS}\n{zeros}\n", encoding="utf-8")
    return path


@contextmanager
def running(device: Path, options: dict[str, Any], settings: dict[str, Any]) -> Iterator[Served]:
    """A server of a device with these options and settings."""
    given = {"num_gpu_blocks_override": 2000, **settings}
    made = ServeOptions(
        **{"device": str(device), "api_key": None, "settings": Settings(**given), **options}
    )
    with (
        SimServer(made) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        yield Served(server.base_url, client)


@pytest.fixture
def serve(metronome: Path) -> Iterator[Callable[..., Served]]:
    """Starts a server with these settings; options of its own in `options`."""
    with ExitStack() as stack:

        def start(options: dict[str, Any] | None = None, **settings: Any) -> Served:
            return stack.enter_context(running(metronome, options or {}, settings))

        yield start


@pytest.fixture(scope="module")
def served(metronome: Path) -> Iterator[Served]:
    """A server with the defaults, for all tests of a module."""
    with running(metronome, {}, {}) as server:
        yield server
