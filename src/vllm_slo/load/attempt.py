"""One round at one endpoint: prepared, carried out, and read off as a `Round`."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from vllm_slo.errors import SettingsError
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Client, Exchange
from vllm_slo.load.process import first_turn, quiet_heap
from vllm_slo.load.schedule import Schedule
from vllm_slo.load.stream import record_from_reads
from vllm_slo.load.warmup import Warmth
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import ClientFacts, Observer, Round
from vllm_slo.traffic.workload import PlannedRequest, Workload

# Opened before time zero in an open loop; more are opened as they are needed.
_OPEN_LOOP_CONNECTIONS = 256


class Attempt:
    """A round of `workload`, every request's bytes prepared, to be carried out once.

    Raises:
        SettingsError: an open-loop request without an arrival time, or one before time zero.
    """

    def __init__(self, workload: Workload, *, endpoint: Endpoint, client: Client) -> None:
        self.workload = workload
        self._endpoint = endpoint
        self._client = client
        self._observed: dict[str, Any] = {}
        self._schedule = Schedule(
            client,
            [client.prepare(endpoint.body(workload, r)) for r in workload.requests],
            arrivals_s=[] if workload.is_closed_loop else _arrivals_s(workload),
            concurrency=workload.concurrency,
        )

    @property
    def exchanges(self) -> Sequence[Exchange]:
        return self._schedule.exchanges

    @property
    def done(self) -> int:
        return self._schedule.done

    async def carry(
        self, *, timeout_s: float, observers: Sequence[Observer], on_tick: Callable[[int], None]
    ) -> None:
        """Opens connections, begins the observers, and drives the round to its end.

        Every observer that began is ended, whatever happens. When cancelled, what is on its way
        is ended as "interrupted".
        """
        connections = self.workload.concurrency or _OPEN_LOOP_CONNECTIONS
        try:
            await self._client.open(min(connections, len(self.exchanges)))
            with quiet_heap(), ExitStack() as watching:
                for observer in observers:
                    observer.begin()
                    watching.callback(self._end, observer)
                with first_turn():
                    await self._schedule.run(timeout_s=timeout_s, on_tick=on_tick)
        except asyncio.CancelledError:
            self._schedule.stop("interrupted")
            raise
        finally:
            await self._client.close()

    def _end(self, observer: Observer) -> None:
        for name, value in observer.end().items():
            if name == "warnings":
                self._observed[name] = (*self._observed.get(name, ()), *_texts(value))
            elif name in self._observed:
                raise ValueError(f"two observers give {name!r} of one round")
            else:
                self._observed[name] = value

    def records(self) -> list[RequestRecord]:
        """One record for each request of the plan that was due, in the plan's order."""
        pairs = zip(self.workload.requests, self.exchanges, strict=True)
        return [self._record(planned, one) for planned, one in pairs if one.ended_s is not None]

    def _record(self, planned: PlannedRequest, exchange: Exchange) -> RequestRecord:
        zero_s = self._schedule.zero_s
        ended_s = (exchange.ended_s or zero_s) - zero_s
        if exchange.scheduled_s is not None:
            scheduled_s = exchange.scheduled_s - zero_s
        else:
            scheduled_s = ended_s if planned.arrival_s is None else planned.arrival_s
        return record_from_reads(
            [(at_s - zero_s, body) for at_s, body in exchange.reads],
            api=self._endpoint.api,
            status=exchange.status,
            planned_prompt_tokens=planned.input_tokens,
            planned_output_tokens=planned.output_tokens,
            scheduled_s=scheduled_s,
            sent_s=max(scheduled_s, ended_s)
            if exchange.sent_s is None
            else exchange.sent_s - zero_s,
            index=planned.index,
            class_name=planned.class_name,
            ended_s=ended_s,
            broken=exchange.broken,
            location=exchange.location,
            exact_prompt=self._endpoint.has_exact_prompts,
        )

    def as_round(self, *, warmth: Warmth) -> Round:
        """The records, the window from the first `scheduled` to the last `finished`, the facts."""
        records = self.records()
        scheduled_s = [r.scheduled_s for r in records]
        finished_s = [r.finished_s for r in records if r.finished_s is not None]
        observed = dict(self._observed)
        return Round(
            seed=self.workload.seed,
            records=records,
            window_s=(min(scheduled_s, default=0.0), max(finished_s, default=0.0)),
            client=self._client_facts(warmth),
            warnings=(*self._warnings(), *observed.pop("warnings", ())),
            **observed,
        )

    def _client_facts(self, warmth: Warmth) -> ClientFacts:
        sent = [
            (one.scheduled_s, one.sent_s)
            for one in self.exchanges
            if one.scheduled_s is not None and one.sent_s is not None
        ]
        lags_s = [sent_s - scheduled_s for scheduled_s, sent_s in sent]
        is_open = not self.workload.is_closed_loop
        return ClientFacts(
            send_lag_p99_s=float(np.quantile(lags_s, 0.99)) if lags_s else 0.0,
            loop_lag_max_s=self._schedule.loop_lag_max_s,
            loop_stalled_share=self._stalled_share(),
            offered_rps=_rate([s for s, _ in sent]) if is_open else None,
            achieved_rps=_rate([s for _, s in sent]) if is_open else None,
            warmup_requests=warmth.requests,
            warmup_settled=warmth.is_settled,
            exact_prompts=self._endpoint.has_exact_prompts,
        )

    def _stalled_share(self) -> float:
        ends_s = [one.ended_s for one in self.exchanges if one.ended_s is not None]
        lasted_s = max(ends_s, default=self._schedule.zero_s) - self._schedule.zero_s
        return min(1.0, self._schedule.loop_stalled_s / lasted_s) if lasted_s > 0 else 0.0

    def _warnings(self) -> list[str]:
        warnings = []
        resent = sum(one.was_resent for one in self.exchanges)
        if resent:
            warnings.append(
                f"{resent} requests were sent twice: the server cut the idle connection that they"
                " left on, before any answer"
            )
        if not self._endpoint.has_exact_prompts:
            warnings.append(
                "chat: prompts are texts in the server's template, so their lengths in tokens are"
                " not the planned ones and were not checked"
            )
        return warnings


def _arrivals_s(workload: Workload) -> list[float]:
    arrivals_s = []
    for request in workload.requests:
        if request.arrival_s is None or not 0.0 <= request.arrival_s < float("inf"):
            raise SettingsError(
                f"workload {workload.name!r}, request {request.index}: arrival_s is"
                f" {request.arrival_s!r}. Give every request an arrival time in seconds from time"
                " zero, or the workload a concurrency"
            )
        arrivals_s.append(request.arrival_s)
    return arrivals_s


def _rate(times_s: Sequence[float]) -> float | None:
    """Starts per second, from the first to the last; `None` where that takes no time."""
    span_s = max(times_s) - min(times_s) if times_s else 0.0
    return (len(times_s) - 1) / span_s if span_s > 0.0 else None


def _texts(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)  # type: ignore[arg-type]
