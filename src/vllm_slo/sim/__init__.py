"""The embedded engine: vLLM's scheduler and a device's step times, in virtual time."""

from vllm_slo.sim.clients import FrontEnd
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.simulate import Simulated, simulate
from vllm_slo.sim.target import SimTarget, open_sim

__all__ = [
    "FrontEnd",
    "SchedulerConfig",
    "SimTarget",
    "Simulated",
    "open_sim",
    "simulate",
]
