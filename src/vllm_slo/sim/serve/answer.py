"""The bytes of an answer: one JSON object, or events as vLLM streams them, made cheaply."""

import json
from dataclasses import dataclass
from typing import Any

from vllm_slo.sim.serve.ask import Ask
from vllm_slo.sim.serve.output import Output

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is the same in every event of an answer."""

    id: str
    created: int
    model: str
    api: str

    def values(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def event(self, **rest: Any) -> bytes:
        """One event of the stream."""
        kind = "text_completion" if self.api == "completions" else "chat.completion.chunk"
        text = json.dumps(self.values(kind) | rest, separators=(",", ":"))
        return f"data: {text}\n\n".encode()


def usage(*, prompt: int, output: int) -> dict[str, int]:
    """The `usage` object, in vLLM's order."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


class ChoiceEvents:
    """The events of one choice: those that are like all others are filled in, not made anew."""

    def __init__(
        self, head: Head, ask: Ask, output: Output, *, choice: int, prompt_tokens: int
    ) -> None:
        self._head = head
        self._output = output
        self._choice = choice
        self._prompt_tokens = prompt_tokens
        self._has_usage = ask.continuous_usage
        self._is_chat = ask.api == "chat"
        # The commonest event, with its three numbers left open.
        like = self._event(" t@1@", 0).replace(b"%", b"%%").replace(b"@1@", b"%d")
        zero = json.dumps(usage(prompt=prompt_tokens, output=0), separators=(",", ":")).encode()
        open_usage = b'{"prompt_tokens":%d,"total_tokens":%%d,"completion_tokens":%%d}'
        self._template = like.replace(zero, open_usage % prompt_tokens)
        self._is_plain = output.texts is None

    def first(self) -> bytes:
        """What comes before the first token: a chat's role."""
        if not self._is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._chunk(
            {"index": self._choice, "delta": delta, "logprobs": None, "finish_reason": None}, 0
        )

    def tokens(self, first: int, last: int) -> bytes:
        """The event that carries the tokens from `first` to `last`, counted from 1."""
        if first == last != 1 and self._is_plain and last != self._output.tokens:
            if self._has_usage:
                return self._template % (last, self._prompt_tokens + last, last)
            return self._template % last
        return self._event(self._output.text(first, last), last, is_end=last == self._output.tokens)

    def _event(self, text: str, number: int, *, is_end: bool = False) -> bytes:
        reason = self._output.finish_reason if is_end else None
        choice: dict[str, Any] = {"index": self._choice}
        choice |= {"delta": {"content": text}} if self._is_chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if is_end or not self._is_chat:
            choice["stop_reason"] = self._output.stop_reason if is_end else None
        choice["token_ids"] = None
        if not self._is_chat:
            choice["prompt_token_ids"] = None
        return self._chunk(choice, number)

    def _chunk(self, choice: dict[str, Any], number: int) -> bytes:
        if not self._has_usage:
            return self._head.event(choices=[choice])
        counted = usage(prompt=self._prompt_tokens, output=number)
        return self._head.event(choices=[choice], usage=counted)


def last_events(head: Head, ask: Ask, *, prompt: int, output: int) -> bytes:
    """What ends a stream: the usage, if it was asked for, and `[DONE]`."""
    if not ask.include_usage:
        return DONE
    return head.event(choices=[], usage=usage(prompt=prompt, output=output)) + DONE


def whole_answer(head: Head, outputs: list[Output], *, prompt: int, output: int) -> bytes:
    """The body of an answer that is not streamed."""
    is_chat = head.api == "chat"
    choices = []
    for index, one in enumerate(outputs):
        text = one.text(1, one.tokens)
        said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        choices.append(
            {"index": index}
            | said
            | {
                "logprobs": None,
                "finish_reason": one.finish_reason,
                "stop_reason": one.stop_reason,
            }
        )
    body = head.values("chat.completion" if is_chat else "text_completion")
    body |= {"choices": choices, "usage": usage(prompt=prompt, output=output)}
    return json.dumps(body).encode()
