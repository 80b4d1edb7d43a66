"""`Ask`: what a request to `/v1/completions` or `/v1/chat/completions` asks for."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Literal

from vllm_slo.sim.serve.fields import Fields
from vllm_slo.sim.serve.refusal import RefusedError, malformed

Api = Literal["completions", "chat"]
# A prompt's tokens: ids as they came, or the words of a text.
Tokens = Sequence[int] | Sequence[str]

DEFAULT_MAX_TOKENS = 16  # of `/v1/completions`; a chat goes on to max_model_len
MAX_PROMPTS = 1024  # VLLM_MAX_COMPLETION_PROMPTS

_UNSUPPORTED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("n", (None, 1)),
    ("best_of", (None, 1)),
    ("echo", (None, False)),
    ("logprobs", (None, False)),
    ("top_logprobs", (None, 0)),
    ("prompt_logprobs", (None,)),
    ("logprob_token_ids", (None, [])),
    ("suffix", (None, "")),
    ("prompt_embeds", (None, [])),
    ("use_beam_search", (None, False)),
    ("structured_outputs", (None,)),
    ("guided_json", (None,)),
    ("guided_regex", (None,)),
    ("guided_choice", (None,)),
    ("guided_grammar", (None,)),
    ("response_format", (None, {"type": "text"})),
    ("return_token_ids", (None, False)),
    ("truncate_prompt_tokens", (None,)),
    ("tool_choice", (None, "none", "auto")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, checked; `prompts` has one entry for each choice of the answer.

    `max_tokens` is `None` where a chat leaves it to the model's length.
    """

    api: Api
    prompts: tuple[Tokens, ...]
    max_tokens: int | None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stream_interval: int = 1
    priority: int = 0


def read_ask(fields: Fields, *, api: Api, served: Sequence[str]) -> Ask:
    """Reads the body of a request to a server of the models named `served`.

    Sampling parameters that change which tokens come, and not how many, are taken and have no
    effect.

    Raises:
        RefusedError: malformed, for another model, or asking for what is not simulated.
    """
    stream = fields.truth("stream")
    options = fields.nested("stream_options")
    if fields.raw("stream_options") and not stream:
        raise RefusedError(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    prompts = (_chat_prompt(fields),) if api == "chat" else _completion_prompts(fields)
    max_tokens = fields.whole("max_tokens")
    if api == "chat":
        newer = fields.whole("max_completion_tokens")
        max_tokens = max_tokens if newer is None else newer
    elif max_tokens is None:
        max_tokens = DEFAULT_MAX_TOKENS
    stop = fields.texts("stop")
    if "" in stop:
        raise RefusedError("stop cannot contain an empty string.", param="stop")
    model = fields.text("model")
    if model and model not in served:
        raise RefusedError(
            f"The model `{model}` does not exist.",
            status=HTTPStatus.NOT_FOUND,
            error_type="NotFoundError",
            param="model",
        )
    for name, harmless in _UNSUPPORTED:
        fields.refuse(name, unless=harmless)
    include_usage = options.truth("include_usage")
    return Ask(
        api=api,
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=fields.whole("min_tokens", least=0) or 0,
        ignore_eos=fields.truth("ignore_eos"),
        stop=stop,
        include_stop_str_in_output=fields.truth("include_stop_str_in_output"),
        stream=stream,
        include_usage=include_usage,
        # As vLLM's `should_include_usage`: continuous usage is part of usage.
        continuous_usage=include_usage and options.truth("continuous_usage_stats"),
        stream_interval=fields.whole("stream_interval", least=1) or 1,
        priority=fields.whole("priority") or 0,
    )


def output_limit(ask: Ask, prompt_tokens: int, *, max_model_len: int) -> int:
    """The most tokens that may be generated after a prompt.

    Raises:
        RefusedError: the prompt is empty or too long, or the numbers asked for contradict; in the
            words of vLLM 0.32 (`renderers/params.py`, `v1/engine/input_processor.py`,
            `sampling_params.py`).
    """
    asked = ask.max_tokens
    if asked is not None and asked > max_model_len:
        raise RefusedError(
            f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            param="max_tokens",
        )
    if prompt_tokens > max_model_len:
        at_least = "at least " if prompt_tokens == max_model_len + 1 else ""
        raise RefusedError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {at_least}{prompt_tokens} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    room = max_model_len - prompt_tokens
    limit = room if asked is None else min(asked, room)
    if prompt_tokens == 0:
        raise RefusedError("The decoder prompt cannot be empty")
    if asked is not None and asked < 1:
        raise RefusedError(f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
    if room == 0:
        raise RefusedError(
            f"The decoder prompt (length {prompt_tokens}) plus the number of requested output "
            f"tokens (at least 1) is longer than the maximum model length of {max_model_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens "
            "(prompt + requested output tokens)."
        )
    if ask.min_tokens > limit:
        raise RefusedError(
            f"min_tokens must be less than or equal to max_tokens={limit}, got {ask.min_tokens}.",
            param="min_tokens",
        )
    return limit


def _completion_prompts(fields: Fields) -> tuple[Tokens, ...]:
    prompt = fields.raw("prompt")
    if prompt is None or prompt == "":
        raise RefusedError(
            "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt"
        )
    if isinstance(prompt, str):
        return (prompt.split(),)
    if isinstance(prompt, list):
        if _are_ids(prompt):
            return (prompt,)
        if len(prompt) > MAX_PROMPTS:
            raise RefusedError(
                f"prompt list length {len(prompt)} exceeds the maximum allowed count of "
                f"{MAX_PROMPTS}.",
                param="prompt",
            )
        if all(isinstance(one, str) for one in prompt):
            return tuple(one.split() for one in prompt)
        if all(isinstance(one, list) and _are_ids(one) for one in prompt):
            return tuple(prompt)
    raise malformed(
        "prompt",
        "union_type",
        "Input should be a string, a list of token ids (whole numbers >= 0), or a list of one of "
        "the two",
        prompt,
    )


def _are_ids(values: list[object]) -> bool:
    return set(map(type, values)) <= {int} and (not values or min(values) >= 0)  # type: ignore[type-var, operator]


def _chat_prompt(fields: Fields) -> Tokens:
    """Each message as its role and its words, then the role that is to answer."""
    messages = fields.raw("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise malformed("messages", "list_type", "Input should be a list of messages", messages)
    if not messages:
        raise RefusedError("The messages cannot be empty", param="messages")
    return [*chain.from_iterable(map(_message_words, messages)), "assistant"]


def _message_words(message: dict[str, object]) -> list[str]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise malformed("messages.role", "string_type", "Input should be a valid string", role)
    parts: list[object] = content if isinstance(content, list) else [{"text": content or ""}]
    words = [role]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise malformed(
                "messages.content",
                "string_type",
                "Input should be a text or a list of text parts: other media are not simulated",
                part,
            )
        words += text.split()
    return words
