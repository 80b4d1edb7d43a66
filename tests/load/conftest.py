"""What the tests of the load generator share: streams in a compact notation, the golden server."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from golden_server import GoldenServer

from vllm_slo.load import Endpoint, HttpTarget, WarmUp
from vllm_slo.measure.run import EngineInfo
from vllm_slo.settings import Settings
from vllm_slo.traffic.workload import PlannedRequest, Workload


class Sse:
    """Writes events of a stream: `prompt` tokens in, usage with every event unless told."""

    def __init__(self, *, prompt: int = 8) -> None:
        self.prompt = prompt

    def __call__(self, event: object, *, end: str = "\n\n") -> bytes:
        return b"data: " + json.dumps(event).encode() + end.encode()

    def usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": tokens,
            "total_tokens": self.prompt + tokens,
        }

    def text(self, text: str, tokens: int | None, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": finish}
        return self._event(choice, tokens)

    def delta(self, tokens: int | None, finish: str | None = None, **delta: object) -> bytes:
        return self._event({"index": 0, "delta": delta, "finish_reason": finish}, tokens)

    def last(self, tokens: int) -> bytes:
        return self({"id": "x", "choices": [], "usage": self.usage(tokens)})

    def _event(self, choice: dict[str, object], tokens: int | None) -> bytes:
        event: dict[str, object] = {"id": "x", "model": "m", "choices": [choice]}
        if tokens is not None:
            event["usage"] = self.usage(tokens)
        return self(event)


@pytest.fixture
def sse() -> Sse:
    return Sse()


@pytest.fixture
def golden() -> Iterator[GoldenServer]:
    with GoldenServer().in_thread() as server:
        yield server


@pytest.fixture
def target_at() -> Callable[..., HttpTarget]:
    """Makes a target at a URL, without warm-up unless asked."""

    def make(url: str, *, api: str = "completions", **options: Any) -> HttpTarget:
        defaults: dict[str, Any] = {"warm_up": WarmUp(max_batches=0), "round_timeout_s": 60.0}
        return HttpTarget(
            endpoint=Endpoint(base_url=url, model="m", vocab_size=512, api=api),
            settings=Settings(),
            engine=EngineInfo(target="url", device="none", model="m", vllm_version="none"),
            **(defaults | options),
        )

    return make


@pytest.fixture
def closed_loop() -> Callable[..., Workload]:
    def make(
        requests: int, *, concurrency: int, input_tokens: int = 8, output_tokens: int = 4
    ) -> Workload:
        return Workload(
            name="closed",
            plan=lambda _: [
                PlannedRequest(index=i, input_tokens=input_tokens, output_tokens=output_tokens)
                for i in range(requests)
            ],
            seed=7,
            concurrency=concurrency,
        )

    return make


@pytest.fixture
def open_loop() -> Callable[..., Workload]:
    def make(arrivals_s: list[float], **shape: Any) -> Workload:
        shape = {"input_tokens": 8, "output_tokens": 4} | shape
        return Workload(
            name="open",
            plan=lambda _: [
                PlannedRequest(index=i, arrival_s=arrival_s, **shape)
                for i, arrival_s in enumerate(arrivals_s)
            ],
            seed=7,
        )

    return make
