"""`Reply`: the answer to one HTTP request, token by token."""

from dataclasses import dataclass
from time import monotonic

from vllm_slo.sim.request import Request
from vllm_slo.sim.serve.answer import ChoiceEvents, Head, last_events, whole_answer
from vllm_slo.sim.serve.ask import Ask
from vllm_slo.sim.serve.golden import GoldenRecord
from vllm_slo.sim.serve.metrics import Times
from vllm_slo.sim.serve.outlet import Outlet
from vllm_slo.sim.serve.output import Output


@dataclass(slots=True, kw_only=True, eq=False)
class Choice:
    """One prompt of a request, in the engine."""

    request: Request
    reply: "Reply"
    output: Output
    events: ChoiceEvents | None
    record: GoldenRecord
    times: Times
    interval: int
    num_sent: int = 0


class Reply:
    """The answer to one HTTP request: its choices, and where its bytes go."""

    def __init__(self, ask: Ask, head: Head, outlet: Outlet) -> None:
        self.ask = ask
        self.head = head
        self.choices: list[Choice] = []
        self.num_unfinished = len(ask.prompts)
        self._outlet = outlet
        self._pending = b""
        self._carried: list[Choice] = []

    @property
    def is_done(self) -> bool:
        return not self.num_unfinished

    def take(self, choice: Choice, *, is_last: bool) -> bool:
        """Takes a choice's latest token; True if this is the first that waits to be flushed."""
        number = choice.request.num_output_tokens
        if is_last:
            self.num_unfinished -= 1
        if choice.events is None:
            return self.is_done
        # As vLLM's stream_interval: the first and the last token are sent at once.
        if not is_last and choice.num_sent and number - choice.num_sent < choice.interval:
            return False
        was_empty = not self._pending
        if not choice.num_sent:
            self._pending += choice.events.first()
        self._pending += choice.events.tokens(choice.num_sent + 1, number)
        choice.num_sent = number
        self._carried.append(choice)
        return was_empty

    def flush(self) -> None:
        """Sends what waits, and the end of the answer if it is done."""
        prompt = output = 0
        if self.is_done:
            prompt = sum(c.request.num_prompt_tokens for c in self.choices)
            output = sum(c.request.num_output_tokens for c in self.choices)
        if self.ask.stream:
            data = self._pending
            if self.is_done:
                data += last_events(self.head, self.ask, prompt=prompt, output=output)
        else:
            outputs = [c.output for c in self.choices]
            data = whole_answer(self.head, outputs, prompt=prompt, output=output)
            self._carried = self.choices
        sent_s = monotonic()
        for choice in self._carried:
            choice.record.sent_s.append(sent_s)
            choice.record.sent_tokens.append(choice.request.num_output_tokens)
        self._pending = b""
        self._carried = []
        self._outlet.write(data, is_last=self.is_done)
