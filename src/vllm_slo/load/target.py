"""`HttpTarget`: drives workloads at a server over HTTP, a round at a time."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Literal

from vllm_slo.errors import SettingsError
from vllm_slo.load.attempt import Attempt
from vllm_slo.load.endpoint import Endpoint
from vllm_slo.load.exchange import Client
from vllm_slo.load.process import many_files
from vllm_slo.load.warmup import Warmth, WarmUp, has_settled, warm_up_batch
from vllm_slo.load.wire import WireClient
from vllm_slo.measure.run import EngineInfo, Observer, Round, Run
from vllm_slo.settings import Settings
from vllm_slo.traffic.workload import Workload

_PROGRESS_EVERY_S = 0.25

Progress = Callable[[int, int], None]


class HttpTarget:
    """A running server as a `Target`: one round a call, in an event loop of its own.

    `client` is "wire" (plain HTTP/1.1, the light one) or "httpx" (TLS, HTTP/2, proxies).
    `request_timeout_s` counts from when a request was sent, `round_timeout_s` from time zero.
    `progress(done, planned)` is called during a round, four times a second at most, and at its
    end. The server is warmed up before its first round of each kind of workload.

    Ctrl-C ends a round at once: what was recorded so far is then in `partial`, a `Run` whose
    unfinished requests are failed ones.

    Raises:
        SettingsError: `client` is unknown, or cannot reach such an endpoint.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        settings: Settings,
        engine: EngineInfo,
        observers: Sequence[Observer] = (),
        client: Literal["wire", "httpx"] = "wire",
        request_timeout_s: float = 600.0,
        round_timeout_s: float = 3600.0,
        progress: Progress | None = None,
        warm_up: WarmUp | None = None,
    ) -> None:
        if client not in ("wire", "httpx"):
            raise SettingsError(f'the client must be "wire" or "httpx", not {client!r}')
        for name, value in (("request", request_timeout_s), ("round", round_timeout_s)):
            if not 0 < value < float("inf"):
                raise SettingsError(f"{name}_timeout_s must be a number of seconds, not {value!r}")
        self.endpoint = endpoint
        self.settings = settings
        self.engine = engine
        self.observers = tuple(observers)
        self.partial: Run | None = None
        self._client_name = client
        self._request_timeout_s = request_timeout_s
        self._round_timeout_s = round_timeout_s
        self._progress = progress
        self._warm_up = warm_up or WarmUp()
        self._warmths: dict[tuple[object, ...], Warmth] = {}
        self._new_client()  # refuses an endpoint that this client cannot reach

    def run(self, workload: Workload) -> Run:
        """Drives one round of `workload` to its end and returns it as a one-round `Run`.

        The measured window is the whole round, from the first `scheduled` to the last `finished`.

        Raises:
            SettingsError: an open-loop workload with a request that has no arrival time.
            SloError: whatever an observer raises; the round is then in `partial`.
        """
        self.partial = None
        warmth = self._warmths.get(_kind(workload)) or self.warm_up(workload)
        attempt = self._attempt(workload)
        try:
            self._carry(
                attempt,
                timeout_s=self._round_timeout_s,
                observers=self.observers,
                progress=self._progress,
            )
        except BaseException:
            self.partial = self._as_run(workload, attempt.as_round(warmth=warmth))
            raise
        return self._as_run(workload, attempt.as_round(warmth=warmth))

    def warm_up(self, workload: Workload) -> Warmth:
        """Sends requests of the workload's shape until step time has settled; counts none."""
        how = self._warm_up
        sent, is_settled = 0, how.max_batches == 0
        deadline_s = monotonic() + how.max_s
        before = None
        for number in range(how.max_batches):
            left_s = deadline_s - monotonic()
            if is_settled or left_s <= 0:
                break
            attempt = self._attempt(warm_up_batch(workload, how, number=number))
            self._carry(attempt, timeout_s=min(left_s, self._round_timeout_s))
            records = attempt.records()
            sent += len(records)
            if not any(record.ok for record in records):
                break  # the round itself will say why
            is_settled = before is not None and has_settled(
                before, records, tolerance=how.tolerance
            )
            before = records
        warmth = Warmth(requests=sent, is_settled=is_settled)
        self._warmths[_kind(workload)] = warmth
        return warmth

    def _new_client(self) -> Client:
        if self._client_name == "wire":
            return WireClient(self.endpoint, request_timeout_s=self._request_timeout_s)
        from vllm_slo.load.client_httpx import HttpxClient  # httpx takes 0.2 s to import

        return HttpxClient(self.endpoint, request_timeout_s=self._request_timeout_s)

    def _attempt(self, workload: Workload) -> Attempt:
        return Attempt(workload, endpoint=self.endpoint, client=self._new_client())

    def _as_run(self, workload: Workload, one: Round) -> Run:
        return Run(workload=workload, settings=self.settings, engine=self.engine, rounds=(one,))

    def _carry(
        self,
        attempt: Attempt,
        *,
        timeout_s: float,
        observers: Sequence[Observer] = (),
        progress: Progress | None = None,
    ) -> None:
        import uvloop

        tell = _at_times(progress, planned=len(attempt.exchanges))
        with many_files(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(attempt.carry(timeout_s=timeout_s, observers=observers, on_tick=tell))
        if progress is not None:
            progress(attempt.done, len(attempt.exchanges))


def _kind(workload: Workload) -> tuple[object, ...]:
    return (workload.name, workload.params, workload.concurrency)


def _at_times(progress: Progress | None, *, planned: int) -> Callable[[int], None]:
    told_s = monotonic()

    def tell(done: int) -> None:
        nonlocal told_s
        now = monotonic()
        if progress is not None and now - told_s >= _PROGRESS_EVERY_S:
            told_s = now
            progress(done, planned)

    return tell
