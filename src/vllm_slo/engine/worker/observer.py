"""`EmulationObserver`: the padding worker's account over one round."""

from collections.abc import Mapping
from pathlib import Path

from vllm_slo.engine.worker.account import Account, read_account
from vllm_slo.measure.run import EmulationFacts


class EmulationObserver:
    """An `Observer` that gives `{"emulation": EmulationFacts}`: the difference over the round."""

    def __init__(self, accounting_path: Path) -> None:
        self._path = accounting_path
        self._before: Account | None = None

    def begin(self) -> None:
        self._before = read_account(self._path)

    def end(self) -> Mapping[str, object]:
        if self._before is None:
            raise RuntimeError("EmulationObserver.end called before begin")
        now, before = read_account(self._path), self._before
        if now.steps < before.steps:  # a server that was booted again counts from zero
            before = Account(steps=0, overruns=0)
        overruns = now.overruns - before.overruns
        late = now.late_ms[-overruns:] if overruns else ()
        facts = EmulationFacts(
            steps=now.steps - before.steps,
            overruns=overruns,
            worst_overrun_ms=max(late, default=0.0),
        )
        return {"emulation": facts}
