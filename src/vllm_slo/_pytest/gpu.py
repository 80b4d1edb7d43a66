"""The `gpu` fixture: NVML's view of a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_slo._pytest.state import SloSession

if TYPE_CHECKING:
    from vllm_slo.measure.run import GpuFacts, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`absent` says why there is no GPU to look at; `None` where there is one."""

    absent: str | None

    @classmethod
    def of_session(cls, session: SloSession) -> "Gpu":
        """Asks NVML once; says once why there is nothing to see."""
        if session.spec.kind in ("sim", "emulated"):
            return cls(absent=f"the {session.spec.kind} target runs on no GPU")
        from vllm_slo.engine.nvml import nvml_status

        absent = nvml_status()
        if absent is not None:
            session.note(absent)
        return cls(absent=absent)

    def facts(self, run: "Run") -> "list[GpuFacts]":
        """The samples of each round, summarised; empty where there is no GPU."""
        return [one.gpu for one in run.rounds if one.gpu is not None]
