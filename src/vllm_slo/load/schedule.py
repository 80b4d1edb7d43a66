"""When requests start: at their planned times in an open loop, as slots come free in a closed."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from vllm_slo.load.exchange import Client, Exchange

# uvloop's timers count whole milliseconds of a cached clock: they may be up to two off. A start
# is waited for with a timer until this long before, and then turn by turn of the loop.
_SPIN_S = 0.002
STALL_S = 0.020
_TICK_S = 0.01


class Schedule:
    """Drives the requests of one round, prepared as bytes, to their end.

    `exchanges` are in the order of `requests`. `arrivals_s` are the planned starts, seconds from
    time zero, in an open loop; in a closed loop (`concurrency`) they are not read: a request is
    scheduled when a slot comes free, which is time zero for the first ones. Requests start in
    the order of their arrivals, or of the plan.
    """

    def __init__(
        self,
        client: Client,
        requests: Sequence[bytes],
        *,
        arrivals_s: Sequence[float],
        concurrency: int | None,
    ) -> None:
        self.zero_s = 0.0
        self.done = 0
        self.loop_lag_max_s = 0.0
        self.loop_stalled_s = 0.0
        self._timer: asyncio.TimerHandle
        self._tick_due_s = float("inf")
        self._client = client
        self.exchanges = [Exchange(request=request, on_end=self._ended) for request in requests]
        self._arrivals_s = arrivals_s
        self._concurrency = concurrency
        self._order = (
            sorted(range(len(requests)), key=arrivals_s.__getitem__)
            if concurrency is None
            else range(len(requests))
        )
        self._next = 0
        self._is_stopped = False
        self._drained = asyncio.Event()

    async def run(self, *, timeout_s: float, on_tick: Callable[[int], None]) -> None:
        """Starts the clock and returns when every exchange has ended, at `timeout_s` at the latest.

        `on_tick` gets the number of ended exchanges about every 10 ms; that timer is what
        `loop_lag_max_s` is taken from: the most that the loop was late for it. `loop_stalled_s`
        adds up all the times that it was late by more than `STALL_S`.
        """
        self.zero_s = monotonic()
        self._tick(on_tick)
        try:
            if not self.exchanges:
                return
            if self._concurrency is None:
                self._start_due()
            else:
                for _ in range(min(self._concurrency, len(self.exchanges))):
                    self._start(self.zero_s)
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        except TimeoutError:
            reason = f"timeout: the round was not over after {timeout_s:g} s"
            self.stop(reason)
            for exchange in self.exchanges:
                exchange.end(f"never sent: {reason}")
        finally:
            self._timer.cancel()

    def stop(self, reason: str) -> None:
        """Starts nothing more and ends what is on its way, with `reason` as its fault."""
        self._is_stopped = True
        self._client.abort(reason)

    def _ended(self, exchange: Exchange) -> None:
        self.done += 1
        if self.done == len(self.exchanges):
            self._drained.set()
        elif self._concurrency is not None and not self._is_stopped:
            self._start(exchange.ended_s or monotonic())

    def _start(self, scheduled_s: float) -> None:
        if self._is_stopped or self._next >= len(self.exchanges):
            return
        exchange = self.exchanges[self._order[self._next]]
        self._next += 1
        exchange.scheduled_s = scheduled_s
        self._client.send(exchange)

    def _start_due(self) -> None:
        while not self._is_stopped and self._next < len(self.exchanges):
            due_s = self.zero_s + self._arrivals_s[self._order[self._next]]
            wait_s = due_s - monotonic()
            if wait_s > 0.0:
                loop = asyncio.get_running_loop()
                if wait_s > _SPIN_S:
                    loop.call_later(wait_s - _SPIN_S, self._start_due)
                else:
                    loop.call_soon(self._start_due)
                return
            self._start(due_s)

    def _tick(self, on_tick: Callable[[int], None]) -> None:
        now = monotonic()
        lag_s = now - self._tick_due_s
        self.loop_lag_max_s = max(self.loop_lag_max_s, lag_s)
        if lag_s > STALL_S:
            self.loop_stalled_s += lag_s
        self._tick_due_s = now + _TICK_S
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick, on_tick)
        on_tick(self.done)
