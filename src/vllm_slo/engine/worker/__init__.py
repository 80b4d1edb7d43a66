"""The padding worker: real vLLM on a CPU, held to the pace of a modelled device."""

from vllm_slo.engine.worker.observer import EmulationObserver
from vllm_slo.engine.worker.overlay import WORKER_CLS, overlay

__all__ = ["WORKER_CLS", "EmulationObserver", "overlay"]
