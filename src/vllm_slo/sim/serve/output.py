"""`Output`: the text of a simulated answer, and where it ends."""

import math
import random
from dataclasses import dataclass

from vllm_slo.sim.serve.ask import Ask


def word(number: int) -> str:
    """The text of an answer's token; the first is 1. An answer has as many words as tokens."""
    return "t1" if number == 1 else f" t{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """`tokens` tokens, the last of which ends the answer for `finish_reason`.

    `texts` is what each token adds to the streamed text, where that is not `word` of each; then
    `stop_reason` is the stop string, if one was met. The token that is the end of sequence has
    the empty text.
    """

    tokens: int
    finish_reason: str
    stop_reason: str | None = None
    texts: tuple[str, ...] | None = None

    def text(self, first: int, last: int) -> str:
        """The text of the tokens from `first` to `last`, counted from 1."""
        if self.texts is not None:
            return "".join(self.texts[first - 1 : last])
        if self.finish_reason == "stop" and last == self.tokens:
            last -= 1
        return "".join(map(word, range(first, last + 1)))


def natural_end(mean_tokens: float | None, source: random.Random) -> int | None:
    """The number of the token that ends an answer by itself: geometric, `mean_tokens` on average.

    `None` is a model that goes on for as long as it is let.
    """
    if mean_tokens is None:
        return None
    if mean_tokens <= 1:
        return 1
    return 1 + int(math.log(1.0 - source.random()) / math.log1p(-1 / mean_tokens))


def plan_output(ask: Ask, *, limit: int, natural: int | None) -> Output:
    """Where an answer of at most `limit` tokens ends.

    `natural` is the number of the token at which the model would end by itself, if it ever
    would; `min_tokens` and `ignore_eos` put that off as in vLLM. Stop strings are looked for in
    what follows the first `min_tokens` tokens (`v1/engine/detokenizer.py`, 0.32.0).
    """
    tokens, reason = limit, "length"
    if natural is not None and not ask.ignore_eos:
        natural = max(natural, ask.min_tokens + 1)
        if natural <= limit:
            tokens, reason = natural, "stop"
    if not ask.stop:
        return Output(tokens=tokens, finish_reason=reason)
    words = tokens - (reason == "stop")
    return _stopped(ask, words) or Output(
        tokens=tokens,
        finish_reason=reason,
        texts=_held_back(ask, [word(n) for n in range(1, words + 1)], whole=None, tokens=tokens),
    )


def _stopped(ask: Ask, words: int) -> Output | None:
    """The answer that the first stop string ends; `None` if none comes."""
    whole = ""
    texts: list[str] = []
    for number in range(1, words + 1):
        texts.append(word(number))
        whole += texts[-1]
        if number <= ask.min_tokens:
            continue
        found: list[tuple[int, int, str]] = []
        for rank, stop in enumerate(ask.stop):
            at = whole.find(stop, max(0, len(whole) - len(texts[-1]) - len(stop) + 1))
            if at >= 0:
                found.append((at + len(stop), rank, stop))
        if not found:
            continue
        end, _, stop = min(found)
        kept = whole[: end if ask.include_stop_str_in_output else end - len(stop)]
        return Output(
            tokens=number,
            finish_reason="stop",
            stop_reason=stop,
            texts=_held_back(ask, texts, whole=kept, tokens=number),
        )
    return None


def _held_back(ask: Ask, texts: list[str], *, whole: str | None, tokens: int) -> tuple[str, ...]:
    """What is streamed with each token: characters that may begin a stop string wait."""
    held = 0 if ask.include_stop_str_in_output else max(map(len, ask.stop)) - 1
    text, given = "", 0
    pieces = []
    for piece in texts + [""] * (tokens - len(texts)):
        text += piece
        until = max(given, len(text) - held)
        pieces.append(text[given:until])
        given = until
    text = text if whole is None else whole
    given -= len(pieces[-1])
    pieces[-1] = text[given:]
    return tuple(pieces)
