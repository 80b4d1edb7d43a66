"""`Service`: takes requests, runs them on the engine, and hands out their tokens."""

import logging
import random
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from itertools import count
from time import monotonic, time

from vllm_slo.device.step import StepTimeModel
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request
from vllm_slo.sim.serve.answer import ChoiceEvents, Head
from vllm_slo.sim.serve.ask import Ask, Tokens, output_limit
from vllm_slo.sim.serve.engine import Engine, ServedScheduler, StepDone, Waker
from vllm_slo.sim.serve.golden import GoldenLog, GoldenRecord, prompt_crc32
from vllm_slo.sim.serve.metrics import ServerMetrics, Times
from vllm_slo.sim.serve.outlet import Outlet
from vllm_slo.sim.serve.output import natural_end, plan_output
from vllm_slo.sim.serve.prefix import block_hashes
from vllm_slo.sim.serve.refusal import RefusedError
from vllm_slo.sim.serve.reply import Choice, Reply

_log = logging.getLogger("vllm_slo.sim.serve")
_LOOK_EVERY_S = 5.0
# As many late steps as no one need hear of: the emulated target's limit is a share of 1 % too.
_LATE_STEPS = 2
_LATE_SHARE = 0.01


class Service:
    """The server behind its HTTP face. Lives on one event loop, whose `waker` drives it.

    `mean_output_tokens` lets answers end by themselves, after a geometric number of tokens with
    that mean, drawn from `seed`; `None` is a model that goes on for as long as it is let.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        model: StepTimeModel,
        *,
        model_name: str,
        device: str,
        waker: Waker,
        clock: Callable[[], float] = monotonic,
        stream_interval: int = 1,
        mean_output_tokens: float | None = None,
        seed: int = 0,
        golden_size: int = 10_000,
    ) -> None:
        self.config = config
        self.model_name = model_name
        self.device = device
        self.metrics = ServerMetrics(config, model_name=model_name, device=device)
        self.golden = GoldenLog(golden_size)
        self.engine = Engine(
            ServedScheduler(config),
            model,
            waker=waker,
            clock=clock,
            on_admit=self._note_admitted,
            on_step=self._hand_out,
        )
        self._stream_interval = stream_interval
        self._mean_output_tokens = mean_output_tokens
        self._random = random.Random(seed)
        self._numbers = count()
        self._choices: dict[int, Choice] = {}
        self._clock = clock
        self._look_again_s = clock() + _LOOK_EVERY_S
        self._looked = (0, 0)

    def check_admission(self) -> None:
        """As vLLM's `check_admission`, before a request is looked at closely.

        Raises:
            RefusedError: one more would exceed max_num_queued_reqs, waiting and running together.
        """
        most = self.config.max_num_queued_reqs
        if most is not None and len(self._choices) + 1 > most:
            self.metrics.rejections += 1
            raise RefusedError(
                "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                error_type="Service Unavailable",
            )

    def submit(self, ask: Ask, outlet: Outlet, *, request_id: str, received_s: float) -> Reply:
        """Gives a request to the engine; its tokens go to `outlet`.

        Raises:
            RefusedError: it cannot be served; nothing of it was begun.
        """
        limits = [
            output_limit(ask, len(tokens), max_model_len=self.config.max_model_len)
            for tokens in ask.prompts
        ]
        head = Head(id=request_id, created=int(time()), model=self.model_name, api=ask.api)
        reply = Reply(ask, head, outlet)
        now = self._clock()
        for index, (tokens, limit) in enumerate(zip(ask.prompts, limits, strict=True)):
            self._begin(reply, index, tokens, limit, received_s=received_s, now=now)
        for choice in reply.choices:
            self.engine.add(choice.request)
        return reply

    def abort(self, reply: Reply) -> None:
        """Gives up what is left of an answer whose client has gone."""
        for choice in reply.choices:
            if self._choices.pop(choice.request.request_id, None) is not None:
                self.engine.abort(choice.request)
                choice.record.finish_reason = "abort"
                choice.record.finished_s = monotonic()

    def health(self) -> dict[str, object]:
        """How well this server keeps the device's times, for `/golden/health`."""
        pace = self.engine.pace
        running, waiting, usage = self.engine.gauges()
        return {
            "device": self.device,
            "model": self.model_name,
            "steps": pace.steps,
            "late_steps": pace.late_steps,
            "worst_late_ms": pace.worst_late_s * 1e3,
            "lost_s": pace.lost_s,
            "worst_hand_out_ms": pace.worst_hand_out_s * 1e3,
            "running": running,
            "waiting": waiting,
            "kv_cache_usage": usage,
            "warnings": list(getattr(self.engine.model, "warnings", ())),
        }

    def _begin(
        self,
        reply: Reply,
        index: int,
        tokens: Tokens,
        limit: int,
        *,
        received_s: float,
        now: float,
    ) -> None:
        ask, number = reply.ask, next(self._numbers)
        natural = natural_end(self._mean_output_tokens, self._random)
        output = plan_output(ask, limit=limit, natural=natural)
        is_cached = self.config.enable_prefix_caching
        request = Request(
            number,
            num_prompt_tokens=len(tokens),
            max_tokens=output.tokens,
            arrival_time=received_s,
            priority=ask.priority,
            shared_hashes=(
                block_hashes(tokens, block_size=self.config.block_size) if is_cached else ()
            ),
        )
        record = GoldenRecord(
            id=reply.head.id,
            choice=index,
            api=ask.api,
            stream=ask.stream,
            received_s=received_s,
            prompt_tokens=len(tokens),
            prompt_crc32=prompt_crc32(tokens),
            max_tokens=limit,
            priority=ask.priority,
        )
        events = None
        if ask.stream:
            events = ChoiceEvents(reply.head, ask, output, choice=index, prompt_tokens=len(tokens))
        choice = Choice(
            request=request,
            reply=reply,
            output=output,
            events=events,
            record=record,
            times=Times(received_s=received_s, queued_s=now),
            interval=max(self._stream_interval, ask.stream_interval),
        )
        reply.choices.append(choice)
        self._choices[number] = choice
        self.golden.add(record)

    def _hand_out(self, step: StepDone) -> None:
        """Sends each token of a step, and counts what vLLM counts."""
        now = self._clock()
        gaps: Counter[float] = Counter()
        computed = 0
        ready: list[Reply] = []
        finished = set(step.finished)
        for request in step.sampled:
            choice = self._choices[request.request_id]
            times = choice.times
            if request.num_output_tokens == 1:
                cached = choice.record.cached_tokens
                computed += request.num_prompt_tokens - cached
                self.metrics.prefilled(
                    tokens=request.num_prompt_tokens,
                    cached=cached,
                    ttft_s=now - times.received_s,
                )
                times.first_token_s = now
            else:
                gaps[now - times.last_token_s] += 1
            times.last_token_s = now
            choice.record.token_s.append(now)
            if choice.reply.take(choice, is_last=request in finished):
                ready.append(choice.reply)
        self.metrics.iteration(
            prompt_tokens=computed,
            generated=len(step.sampled),
            preempted=len(step.output.preempted),
            gaps=gaps,
        )
        for request in step.finished:
            self._finish(self._choices.pop(request.request_id), now)
        for reply in ready:
            reply.flush()
        if now >= self._look_again_s:
            self.say_pace()

    def _note_admitted(self, request: Request, cached: int) -> None:
        choice = self._choices[request.request_id]
        choice.record.cached_tokens = cached
        self.metrics.scheduled(tokens=request.num_prompt_tokens, cached=cached)

    def _finish(self, choice: Choice, now: float) -> None:
        request, record = choice.request, choice.record
        choice.times.scheduled_s = request.scheduled_s or 0.0
        record.finished_s = now
        record.finish_reason = choice.output.finish_reason
        record.preemptions = request.num_preemptions
        self.metrics.request_done(
            choice.times,
            now_s=now,
            reason=choice.output.finish_reason,
            prompt_tokens=request.num_prompt_tokens,
            cached=record.cached_tokens,
            generated=request.num_output_tokens,
            max_tokens=record.max_tokens,
            preemptions=request.num_preemptions,
        )

    def say_pace(self) -> None:
        """Says in the log if more steps than a few were late since this was last asked."""
        pace = self.engine.pace
        steps, late = pace.steps - self._looked[0], pace.late_steps - self._looked[1]
        self._look_again_s = self._clock() + _LOOK_EVERY_S
        self._looked = (pace.steps, pace.late_steps)
        if late > max(_LATE_STEPS, _LATE_SHARE * steps):
            _log.warning(
                "fell behind: %d of the last %d steps came later than the modelled device's "
                "(since the start: the worst by %.1f ms, %.3f s lost for good): this machine is "
                "too slow for this load, or busy",
                late,
                steps,
                pace.worst_late_s * 1e3,
                pace.lost_s,
            )
