"""`replay`: a recorded run of real vLLM, simulated and compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vllm_slo.device import device_model
from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.clients import FrontEnd
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.recording import Recording, read_recording
from vllm_slo.sim.simulate import simulate
from vllm_slo.traffic.workload import PlannedRequest

Figures = dict[str, float]


def replay(folder: str | Path, *, device: str | None = None) -> dict[str, object]:
    """Replays the recording in a folder on the layer profile beside it, or on `device`.

    Nothing is fitted: settings, KV blocks, arrivals and lengths are the recording's, times the
    profile's, and the recorded times are the engine's own, without an API server. Gives, as plain
    values, the mean, p50, p90 and p99 of TTFT and TPOT and the makespan, recorded and simulated,
    in seconds, and the relative errors.

    Raises:
        TraceError: a recording that cannot be read.
        ProfileError: a device or layer profile that cannot.
    """
    recording = read_recording(folder)
    is_async = recording.settings.async_scheduling is not False
    model = device_model(device or f"{folder}/", scheduling="async" if is_async else "sync")
    records: list[RequestRecord] = []
    simulated = simulate(
        [
            PlannedRequest(
                index=i,
                input_tokens=one.input_tokens,
                output_tokens=one.output_tokens,
                arrival_s=one.arrival_s,
            )
            for i, one in enumerate(recording.requests)
        ],
        config=SchedulerConfig.from_settings(
            recording.settings, num_gpu_blocks=recording.num_gpu_blocks
        ),
        device=model,
        on_record=records.append,
        front_end=FrontEnd(),
    )
    real, ours = _recorded(recording), _simulated(records)
    return {
        "model": recording.model,
        "vllm_version": recording.vllm_version,
        "requests": len(recording.requests),
        "failed": sum(not record.ok for record in records),
        "recorded": real,
        "simulated": ours,
        "relative_error": {name: ours[name] / real[name] - 1.0 for name in real if real[name]},
        "preemptions": simulated.server.preemptions,
        "steps": simulated.steps,
        "warnings": list(model.warnings),
    }


def _recorded(recording: Recording) -> Figures:
    return _figures(
        ttft=[one.first_token_s - one.arrival_s for one in recording.requests],
        tpot=[
            (one.last_token_s - one.first_token_s) / (one.output_tokens - 1)
            for one in recording.requests
            if one.output_tokens > 1
        ],
        makespan=max(one.last_token_s for one in recording.requests),
    )


def _simulated(records: Sequence[RequestRecord]) -> Figures:
    return _figures(
        ttft=[record.ttft_s for record in records if record.ttft_s is not None],
        tpot=[record.tpot_s for record in records if record.tpot_s is not None],
        makespan=max(record.finished_s or 0.0 for record in records),
    )


def _figures(*, ttft: Sequence[float], tpot: Sequence[float], makespan: float) -> Figures:
    figures: Figures = {}
    samples: Mapping[str, Sequence[float]] = {"ttft": ttft, "tpot": tpot}
    for name, values in samples.items():
        if values:
            figures[f"{name}_mean_s"] = float(np.mean(values))
            for q in (50, 90, 99):
                figures[f"{name}_p{q}_s"] = float(np.quantile(values, q / 100))
    figures["makespan_s"] = makespan
    return figures
