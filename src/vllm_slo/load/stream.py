"""`record_from_reads`: the one place where a stream of bytes becomes numbers."""

import json
from collections.abc import Iterable

import numpy as np

from vllm_slo.load.chunk import Api, Chunk, StreamError, error_message, excerpt, parse_chunk
from vllm_slo.load.sse import SseDecoder
from vllm_slo.measure.record import RequestRecord

_FAILED_FINISH = ("abort", "error")


def record_from_reads(
    reads: Iterable[tuple[float, bytes]],
    *,
    api: Api,
    status: int | None,
    planned_prompt_tokens: int,
    planned_output_tokens: int,
    scheduled_s: float,
    sent_s: float,
    index: int = 0,
    class_name: str = "all",
    ended_s: float | None = None,
    broken: str | None = None,
    location: str | None = None,
    exact_prompt: bool = True,
) -> RequestRecord:
    """Turns the reads of one response body into its record; no bytes make it raise.

    `reads` are (arrival time, body bytes) pairs, however the body was cut; times are seconds on
    the clock of `scheduled_s` and `sent_s`. An event's time is that of the read that completes
    it. `status` is the HTTP status, `None` where no response came. `broken` says how the
    transport failed, if it did; a stream that had reached `[DONE]` by then is whole all the same.
    `location` is where a redirect pointed. `ended_s` is when the exchange ended; it is the
    `finished_s` of a failed request (the last read where it is not given), that of a good one is
    the arrival of `[DONE]`. With `exact_prompt=False` (a chat template adds tokens of its own)
    the server's prompt count need not equal the plan.

    Tokens per event are differences of the cumulative usage, where every event that carries text
    has one. Otherwise they are unknown, and the events that carry text are the token events.

    Raises:
        ValueError: `api` is neither "completions" nor "chat".
    """
    if api not in ("completions", "chat"):
        raise ValueError(f'api must be "completions" or "chat", not {api!r}')
    reads = list(reads)
    stream = _Stream(api)
    if status is not None and 200 <= status < 300:
        stream.read(reads)
        fault = stream.fault(
            body=reads,
            broken=broken,
            planned_prompt_tokens=planned_prompt_tokens if exact_prompt else None,
            planned_output_tokens=planned_output_tokens,
        )
    elif status is not None:
        fault = _http_fault(status, b"".join(body for _, body in reads), location)
    else:
        fault = broken or "no response came"
    event_s, event_tokens = stream.token_events()
    if fault is None:
        finished_s = stream.done_s
    elif ended_s is not None:
        finished_s = ended_s
    else:
        finished_s = reads[-1][0] if reads else None
    return RequestRecord(
        index=index,
        class_name=class_name,
        planned_prompt_tokens=planned_prompt_tokens,
        planned_output_tokens=planned_output_tokens,
        scheduled_s=scheduled_s,
        sent_s=sent_s,
        event_s=np.array(event_s, dtype=np.float64),
        event_tokens=None if event_tokens is None else np.array(event_tokens, dtype=np.int64),
        finished_s=finished_s,
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens,
        finish_reason=stream.finish_reason,
        first_answer_event_s=stream.first_answer_event_s(),
        status=status,
        error=fault,
    )


class _Stream:
    """The events of one stream up to `[DONE]` or the first fault, and what they add up to."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.events: list[tuple[float, Chunk]] = []
        self.done_s: float | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self._found: str | None = None
        self._tokens_at_finish: int | None = None

    def read(self, reads: list[tuple[float, bytes]]) -> None:
        decoder = SseDecoder()
        try:
            for arrival_s, body in reads:
                for event_type, data in decoder.feed(body):
                    self._take(arrival_s, event_type, data)
                    if self.done_s is not None:
                        return
            # A last event without its blank line is a cut one, unless it is an end by itself.
            for event_type, data in decoder.rest():
                if data.strip() == b"[DONE]" or _says_error(event_type, data):
                    self._take(reads[-1][0], event_type, data)
        except StreamError as fault:
            self._found = str(fault)

    def _take(self, arrival_s: float, event_type: bytes, data: bytes) -> None:
        text = data.decode("utf-8", "replace").strip()
        if not text:
            return
        if text == "[DONE]":
            self.done_s = arrival_s
            return
        chunk = parse_chunk(event_type, text, api=self.api)
        self.events.append((arrival_s, chunk))
        if chunk.prompt_tokens is not None:
            self.prompt_tokens = chunk.prompt_tokens
        if chunk.completion_tokens is not None:
            before = self.output_tokens or 0
            if chunk.completion_tokens < before:
                raise StreamError(
                    "usage.completion_tokens went backwards,"
                    f" from {before} to {chunk.completion_tokens}"
                )
            self.output_tokens = chunk.completion_tokens
        if chunk.finish_reason is not None and self.finish_reason is None:
            self.finish_reason = chunk.finish_reason
            self._tokens_at_finish = self.output_tokens

    def _counts_are_per_event(self) -> bool:
        """Whether usage came with every event that carries text, and adds up to its end.

        A count that still grows after the finish belongs to earlier events, nobody knows which.
        """
        with_text = [c for _, c in self.events if c.carries_text]
        relevant = with_text or [c for _, c in self.events if c.has_choice]
        if not relevant or any(c.completion_tokens is None for c in relevant):
            return False
        return self.finish_reason is None or self._tokens_at_finish == self.output_tokens

    def _token_chunks(self) -> list[tuple[float, Chunk, int | None]]:
        if not self._counts_are_per_event():
            return [(at_s, c, None) for at_s, c in self.events if c.carries_text]
        tokens: list[tuple[float, Chunk, int | None]] = []
        before = 0
        for at_s, chunk in self.events:
            if chunk.completion_tokens is not None and chunk.completion_tokens > before:
                tokens.append((at_s, chunk, chunk.completion_tokens - before))
                before = chunk.completion_tokens
        return tokens

    def token_events(self) -> tuple[list[float], list[int] | None]:
        """Times of the events that carried tokens, and their tokens where every one is known."""
        chunks = self._token_chunks()
        counts = [n for _, _, n in chunks if n is not None]
        is_known = len(counts) == len(chunks) and self.output_tokens is not None
        return [at_s for at_s, _, _ in chunks], counts if is_known else None

    def first_answer_event_s(self) -> float | None:
        chunks = self._token_chunks()
        if any(c.is_reasoning for _, c in self.events):
            chunks = [row for row in chunks if row[1].is_answer]
        return chunks[0][0] if chunks else None

    def fault(
        self,
        *,
        body: list[tuple[float, bytes]],
        broken: str | None,
        planned_prompt_tokens: int | None,
        planned_output_tokens: int,
    ) -> str | None:
        """Why this stream is not a good answer to what was asked; `None` where it is one."""
        if self._found is not None:
            return self._found
        token_events = len(self._token_chunks())
        if self.done_s is None:
            return self._cut(body=body, broken=broken, token_events=token_events)
        if token_events == 0 and planned_output_tokens > 0:
            counted = f", although usage counts {self.output_tokens}" if self.output_tokens else ""
            return f"no token: no event of the stream carried one{counted}"
        if self.finish_reason is None:
            return "no finish_reason in the stream"
        if self.finish_reason in _FAILED_FINISH:
            return f"the server gave the request up: finish_reason is {self.finish_reason!r}"
        if self.output_tokens is None or self.prompt_tokens is None:
            missing = "completion_tokens" if self.output_tokens is None else "prompt_tokens"
            return (
                f"the server sent no usage.{missing}: the token count is unknown"
                " (does it know stream_options.include_usage?)"
            )
        faults = []
        if self.output_tokens != planned_output_tokens:
            faults.append(
                f"output tokens: {self.output_tokens} of {planned_output_tokens} came,"
                f" finish_reason {excerpt(self.finish_reason)!r} (is ignore_eos honoured?)"
            )
        if planned_prompt_tokens is not None and self.prompt_tokens != planned_prompt_tokens:
            faults.append(
                f"prompt tokens: the server counted {self.prompt_tokens},"
                f" {planned_prompt_tokens} were sent (does it tokenise anew?)"
            )
        return "; ".join(faults) or None

    def _cut(
        self, *, body: list[tuple[float, bytes]], broken: str | None, token_events: int
    ) -> str:
        if broken is not None:
            return f"{broken}, after {token_events} token events" if token_events else broken
        if self.events:
            missing = "" if self.finish_reason else "no finish_reason, "
            where = f"after {token_events} token events" if token_events else "before any token"
            return f"the stream was cut {where}: {missing}no [DONE]"
        text = b"".join(part for _, part in body).decode("utf-8", "replace").strip()
        if not text:
            return "no token: the body of the response is empty"
        message = error_message(_json_or_none(text))
        if message is not None:
            return f"the server reported an error: {message}"
        return f"no token: the body is cut, or not a stream of events: {excerpt(text)}"


def _http_fault(status: int, body: bytes, location: str | None) -> str:
    if 300 <= status < 400:
        where = excerpt(location) if location else "nowhere"
        return f"HTTP {status}, a redirect to {where}: give the address it leads to as endpoint"
    text = body.decode("utf-8", "replace").strip()
    said = _json_or_none(text)
    message = error_message(said)
    if message is None and isinstance(said, dict):
        message = excerpt(said.get("message") or said.get("detail") or text)
    return f"HTTP {status}: {message or excerpt(text) or 'no message'}"


def _says_error(event_type: bytes, data: bytes) -> bool:
    return event_type == b"error" or (
        error_message(_json_or_none(data.decode("utf-8", "replace"))) is not None
    )


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
