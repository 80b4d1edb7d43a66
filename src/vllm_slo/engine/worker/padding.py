"""`PaddingWorker`: vLLM's CPU worker, slowed to the modelled device. Runs inside the engine."""

import atexit
import contextlib
import gc
import os
from pathlib import Path
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from vllm_slo.device.profiles import device_model
from vllm_slo.engine.worker.account import AccountWriter
from vllm_slo.engine.worker.composition import StepReader
from vllm_slo.engine.worker.environment import ACCOUNT, DEVICE, MODEL, STEPS
from vllm_slo.engine.worker.pacing import Pacer
from vllm_slo.engine.worker.steplog import StepLog

_NICE = -10


class PaddingWorker(CPUWorker):  # type: ignore[misc]
    """Lets the tiny model run, then sleeps until the device would have finished the step.

    `execute_model` gives the output itself, or `None`: then `sample_tokens` gives it, and the two
    together are the step (both are so in vLLM 0.31 and 0.32, by model runner and step).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The CPU platform switches asynchronous scheduling off, so the device is synchronous.
        model = device_model(os.environ[DEVICE], model=os.environ[MODEL], scheduling="sync")
        steps = os.environ.get(STEPS)
        self._reader = StepReader()
        self._pacer = Pacer(
            model,
            host_ms=model.host,
            account=AccountWriter(Path(os.environ[ACCOUNT])),
            log=StepLog(Path(steps)) if steps else None,
        )
        atexit.register(self._pacer.close)
        _ask_for_priority()

    def compile_or_warm_up_model(self) -> Any:
        warmed = super().compile_or_warm_up_model()
        # What torch and vLLM have loaded stays: a full collection over it costs several steps.
        gc.collect()
        gc.freeze()
        return warmed

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if scheduler_output.total_num_scheduled_tokens:
            step, continues = self._reader.read(scheduler_output)
            self._pacer.begin(step, continues=continues)
        output = super().execute_model(scheduler_output, *args, **kwargs)
        if output is not None:
            self._pacer.finish()
        return output

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        output = super().sample_tokens(*args, **kwargs)
        self._pacer.finish()
        return output

    def shutdown(self) -> None:
        self._pacer.close()
        super().shutdown()


def _ask_for_priority() -> None:
    """Goes before other processes where the system allows: a GPU does not wait for them.

    The engine core, the device's host, is this same process. It sleeps most of the time; without
    the privilege all stays as it is, and what comes late is accounted for.

    A nice value decides who gets the larger share, not who goes first: a step that is due waits up
    to some milliseconds for its turn. With real-time priority it does not.

    Where the kernel groups processes by session (`kernel.sched_autogroup_enabled`, sched(7)) a
    nice value orders only the processes of one session, and the server's session has one of its
    own against all others.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError):
        # This thread alone, the engine core's own: what it starts is as other processes are.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")
