"""Real vLLM: its environments, what each accepts, and servers that are booted from them."""

from vllm_slo.engine.booting import boot
from vllm_slo.engine.environment import EngineEnvironment, find, list_environments
from vllm_slo.engine.install import add
from vllm_slo.engine.models import Model, resolve_model
from vllm_slo.engine.probing import Argument, Probe, probe
from vllm_slo.engine.server import Server

__all__ = [
    "Argument",
    "EngineEnvironment",
    "Model",
    "Probe",
    "Server",
    "add",
    "boot",
    "find",
    "list_environments",
    "probe",
    "resolve_model",
]
