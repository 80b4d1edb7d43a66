"""The simulator's HTTP face: vLLM's API, scheduler and metrics in wall time, without a GPU."""

from vllm_slo.sim.serve.options import ServeOptions
from vllm_slo.sim.serve.server import SimServer, serve

__all__ = ["ServeOptions", "SimServer", "serve"]
