"""`GoldenLog`: what was received and sent, and when: the truth that load clients are held to."""

import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm_slo.sim.serve.ask import Tokens


@dataclass(slots=True, kw_only=True)
class GoldenRecord:
    """One choice of one request. Times are `time.monotonic` of this machine, in seconds.

    `token_s` are the times at which the device was done with each token, `sent_s` and
    `sent_tokens` the events that carried tokens: when the bytes were given to the socket, and how
    many tokens had been sent by then. An answer that is not streamed has one such event.
    `prompt_crc32` is the CRC-32 of the prompt's token ids as little-endian 64-bit numbers, or of
    its words, joined by spaces, in UTF-8.
    """

    id: str
    choice: int
    api: str
    stream: bool
    received_s: float
    prompt_tokens: int
    prompt_crc32: int
    max_tokens: int
    priority: int
    token_s: "array[float]" = field(default_factory=lambda: array("d"))
    sent_s: "array[float]" = field(default_factory=lambda: array("d"))
    sent_tokens: "array[int]" = field(default_factory=lambda: array("q"))
    finished_s: float | None = None
    finish_reason: str | None = None
    preemptions: int = 0
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {k: list(v) if isinstance(v, array) else v for k, v in values.items()}


class GoldenLog:
    """The latest `size` records, in the order the requests came; `dropped` counts older ones."""

    def __init__(self, size: int) -> None:
        self._records: deque[GoldenRecord] = deque(maxlen=size)
        self.dropped = 0

    def add(self, record: GoldenRecord) -> None:
        if len(self._records) == self._records.maxlen:
            self.dropped += 1
        self._records.append(record)

    def clear(self) -> None:
        self._records.clear()
        self.dropped = 0

    def __iter__(self) -> Iterator[GoldenRecord]:
        return iter(tuple(self._records))


def prompt_crc32(tokens: Tokens) -> int:
    """As `GoldenRecord.prompt_crc32`."""
    if tokens and isinstance(tokens[0], str):
        return zlib.crc32(" ".join(map(str, tokens)).encode("utf-8", "surrogatepass"))
    return zlib.crc32(array("q", [int(token) for token in tokens]).tobytes())
