"""`Pacer`: holds each step of a fast engine to the time the modelled device would take."""

import time
from collections.abc import Callable

from vllm_slo.device.step import Step, StepTimeModel
from vllm_slo.engine.worker.account import AccountWriter
from vllm_slo.engine.worker.steplog import StepLog

# A step that ends this much after it was due was not emulated in time. Less is a late wake-up,
# which moves one token by as little, and nothing after it.
TOLERANCE_MS = 1.0
TOLERANCE_SHARE = 0.05


class Pacer:
    """Sleeps at the end of each step until it is due, and accounts for what was late.

    The model's time of a step includes `host_ms`, the time its host takes between two steps (T0).
    The emulating host works in that time too, so it must not be added on top of it: a step that
    directly follows another is due the modelled time after the other was due, whatever the host
    did meanwhile; a step after an idle time is due that long after its start, less the `host_ms`
    which scheduling it has already taken.

    So the device keeps a time line of its own. A step may end late all the same: the small model,
    or the host's work between steps, took longer than the step would have, or the process was
    woken late. Beyond the tolerance that is an overrun. The time line moves only by what a step
    is late by more than its own time: anything less the next steps make good.
    """

    def __init__(
        self,
        model: StepTimeModel,
        *,
        host_ms: float,
        account: AccountWriter,
        log: StepLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._host_s = host_ms / 1e3
        self._account = account
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._step: Step | None = None
        self._modelled_s = 0.0
        self._base = 0.0
        self._end = float("-inf")

    def begin(self, step: Step, *, continues: bool) -> None:
        """Starts the time of a step; `continues` says it directly follows the one before."""
        entered = self._clock() - self._host_s
        self._base = self._end if continues and self._end > float("-inf") else entered
        self._base = max(self._base, self._end)
        self._modelled_s = self._model.step_ms(step) / 1e3
        self._step = step

    def finish(self) -> None:
        """Sleeps until the step that `begin` started is due; nothing where none was."""
        if self._step is None:
            return
        step, self._step = self._step, None
        due = self._base + self._modelled_s
        now = self._clock()
        while now < due:
            self._sleep(due - now)
            now = self._clock()
        late_ms = (now - due) * 1e3
        tolerance = max(TOLERANCE_MS, TOLERANCE_SHARE * self._modelled_s * 1e3)
        is_late = late_ms > tolerance
        self._end = max(due, now - self._modelled_s)
        self._account.count(overrun_ms=late_ms if is_late else None)
        if self._log is not None:
            self._log.add(step, ms=(now - self._base) * 1e3, at_s=now)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
