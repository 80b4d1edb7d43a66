"""`run_trace`: recorded production traffic through one simulated server, as a summary."""

from vllm_slo.device.profiles import REFERENCE_DEVICE, REFERENCE_MODEL, provenance
from vllm_slo.measure import Summary, summarise
from vllm_slo.settings import Settings
from vllm_slo.sim.target import open_sim
from vllm_slo.traffic.workload import Workload

_LATENCIES = ("ttft", "tpot", "e2e")
_OF_SERVER = ("output_tok_s", "total_tok_s", "preemptions", "kv_use_max")


def run_trace(
    workload: Workload,
    *,
    settings: Settings,
    device: str = REFERENCE_DEVICE,
    model: str = REFERENCE_MODEL,
) -> dict[str, object]:
    """One round of an open-loop workload on a simulated device: its figures as plain values.

    Latencies in milliseconds, rates a second. What is not the trace's, such as clipped lengths, is
    in `workload`; what the device's profile had to extrapolate is in `warnings`.

    Raises:
        TraceError, WorkloadError: traffic that makes no sense.
        ProfileError: no such device or model.
        SettingsError: settings that vLLM refuses.
    """
    run = open_sim(settings, device=device, model=model).run(workload)
    (one,) = run.rounds
    summary = summarise(run)
    served = [record for record in one.records if record.ok]
    return {
        "target": "sim",
        "device": device,
        "device_times": provenance(device, model=model).kind,
        "model": model,
        "vllm_version": run.engine.vllm_version,
        "workload": dict(workload.params),
        "requests": summary.requests,
        "failed": summary.failed,
        "failures": dict(summary.failures),
        "offered_rps": one.client.offered_rps,
        "duration_s": one.window_s[1] - one.window_s[0],
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in served),
        "output_tokens": sum(record.output_tokens or 0 for record in served),
        "latency_ms": {name: _latency(summary, name) for name in _LATENCIES},
        **{name: summary.value(name) for name in _OF_SERVER},
        "running_max": one.server.running_max,
        "waiting_max": one.server.waiting_max,
        "settings": dict(run.engine.config),
        "warnings": list(one.warnings),
    }


def _latency(summary: Summary, name: str) -> dict[str, float | int | None]:
    figures = ("mean", "p50", "p90", "p99", "max")
    values: dict[str, float | int | None] = {
        figure: summary.value(f"{name}_{figure}_ms") for figure in figures
    }
    return values | {"samples": summary.samples(f"{name}_p50_ms")}
