"""One event of a completions or chat stream, checked and reduced to what is measured."""

import json
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["completions", "chat"]

_LARGEST_COUNT = 2**53
_EXCERPT = 300


class StreamError(Exception):
    """The stream says, or shows, that the request failed; the text is the record's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one event says.

    `has_choice` tells an event of the answer from a usage-only one. `is_reasoning` and
    `is_answer` say what the event carries; both are false for a role-only or empty delta.
    `completion_tokens` and `prompt_tokens` are cumulative counts, `None` where not said.
    """

    has_choice: bool
    is_reasoning: bool
    is_answer: bool
    finish_reason: str | None
    completion_tokens: int | None
    prompt_tokens: int | None

    @property
    def carries_text(self) -> bool:
        return self.is_reasoning or self.is_answer


def parse_chunk(event_type: bytes, data: str, *, api: Api) -> Chunk:
    """Reads the data of one event.

    Raises:
        StreamError: not a JSON object, an error of the server's, more than one choice, or a
            usage that makes no sense.
    """
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        if event_type == b"error":
            raise StreamError(f"the server reported an error: {excerpt(data)}") from None
        raise StreamError(f"an event of the stream is not JSON: {excerpt(data)}") from None
    if not isinstance(event, dict):
        raise StreamError(f"an event of the stream is not a JSON object: {excerpt(data)}")
    message = error_message(event)
    if message is None and event_type == b"error":
        message = excerpt(data)
    if message is not None:
        raise StreamError(f"the server reported an error: {message}")
    choice = _only_choice(event)
    completion_tokens, prompt_tokens = _usage(event)
    finish_reason = choice.get("finish_reason") if choice else None
    return Chunk(
        has_choice=choice is not None,
        is_reasoning=choice is not None and api == "chat" and _is_reasoning(choice),
        is_answer=choice is not None and (_is_text if api == "completions" else _is_delta)(choice),
        finish_reason=finish_reason if isinstance(finish_reason, str) and finish_reason else None,
        completion_tokens=completion_tokens,
        prompt_tokens=prompt_tokens,
    )


def error_message(body: Any) -> str | None:
    """The server's own message in an error object, in any of the forms in use; else `None`.

    `{"error": {"message": ..}}` (OpenAI, vLLM), `{"error": ".."}` (TGI),
    `{"object": "error", "message": ..}` (vLLM before 0.10).
    """
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict):
        return excerpt(error.get("message") or error)
    if error:
        return excerpt(error)
    if body.get("object") == "error":
        return excerpt(body.get("message") or body)
    return None


def excerpt(value: object) -> str:
    """Foreign text, fit for one line of a report: short, printable, no control characters."""
    try:
        text = str(value).encode("utf-8", "replace").decode()
    except RecursionError:
        return "something nested too deeply to print"
    text = "".join(c if c.isprintable() else " " for c in text[: 2 * _EXCERPT])
    text = " ".join(text.split())
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."


def _only_choice(event: dict[str, Any]) -> dict[str, Any] | None:
    choices = event.get("choices")
    if choices is None or choices == []:
        return None
    if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
        raise StreamError(f"`choices` is not a list of objects: {excerpt(choices)}")
    others = [c.get("index") for c in choices if c.get("index") not in (0, None)]
    if others or len(choices) > 1:
        which = f"choice {excerpt(others[0])}" if others else f"{len(choices)} choices in one event"
        raise StreamError(f"the stream has {which}: one choice a request is measured, ask for n=1")
    only: dict[str, Any] = choices[0]
    return only


def _usage(event: dict[str, Any]) -> tuple[int | None, int | None]:
    usage = event.get("usage")
    if usage is None:
        return None, None
    if not isinstance(usage, dict):
        raise StreamError(f"`usage` is not an object: {excerpt(usage)}")
    counts = []
    for name in ("completion_tokens", "prompt_tokens"):
        count = usage.get(name)
        if count is not None and (type(count) is not int or not 0 <= count < _LARGEST_COUNT):
            raise StreamError(f"usage.{name} is not a count: {excerpt(count)}")
        counts.append(count)
    return counts[0], counts[1]


def _is_text(choice: dict[str, Any]) -> bool:
    return _has_text(choice, "text") or bool(choice.get("token_ids"))


def _is_delta(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    has_call = bool(delta.get("tool_calls")) or bool(delta.get("function_call"))
    return has_call or _has_text(delta, "content") or _has_text(delta, "refusal")


def _is_reasoning(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    # vLLM renamed `reasoning_content` to `reasoning`; other servers keep the old name.
    return _has_text(delta, "reasoning") or _has_text(delta, "reasoning_content")


def _has_text(holder: dict[str, Any], name: str) -> bool:
    value = holder.get(name)
    return isinstance(value, str) and value != ""
