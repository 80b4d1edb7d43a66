"""`replay`: a recorded run of real vLLM, simulated and compared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from vllm_slo.device import device_model
from vllm_slo.errors import TraceError
from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.recording import RecordedRequest, Recording, read_recording
from vllm_slo.sim.simulate import simulate
from vllm_slo.traffic.workload import PlannedRequest

Figures = dict[str, float]


def replay(
    folder: str | Path, *, device: str | None = None, num_gpu_blocks: int | None = None
) -> dict[str, object]:
    """Replays the recording in a folder on the layer profile beside it, or on `device`.

    Nothing is fitted: settings, KV blocks, arrivals and lengths are the recording's, times the
    profile's, and the recorded times are the engine's own, without an API server. Gives, as plain
    values, the mean, p50, p90 and p99 of TTFT and TPOT and the makespan, recorded and simulated,
    in seconds, and the relative errors; the settings, and what is in doubt as `warnings`. Requests
    without recorded tokens are simulated, since they load the engine, but not compared.

    Raises:
        TraceError: a recording that cannot be read, or of an engine that is not modelled.
        ProfileError: a device or layer profile that cannot be read.
    """
    recording = read_recording(folder, num_gpu_blocks=num_gpu_blocks)
    model = device_model(
        device or str(Path(folder).resolve()),
        scheduling="async" if recording.config.async_scheduling else "sync",
    )
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
        config=recording.config,
        device=model,
        on_record=records.append,
    )
    records.sort(key=lambda record: record.index)
    pairs = list(zip(recording.requests, records, strict=True))
    for recorded, record in pairs:
        if not record.ok:
            raise TraceError(
                f"{recorded.where}: the recorded engine served what the simulated one refuses: "
                f"{record.error}"
            )
    compared = [(one, record) for one, record in pairs if one.first_token_s is not None]
    real = _recorded([one for one, _ in compared])
    ours = _simulated([record for _, record in compared])
    return {
        "model": recording.model,
        "vllm_version": recording.vllm_version,
        "requests": len(pairs),
        "compared": len(compared),
        "recorded": real,
        "simulated": ours,
        "relative_error": {name: ours[name] / real[name] - 1.0 for name in real if real[name]},
        "preemptions": simulated.server.preemptions,
        "steps": simulated.steps,
        "settings": asdict(recording.config),
        "warnings": [*_left_out(recording, len(compared)), *recording.warnings, *model.warnings],
    }


def _recorded(requests: Sequence[RecordedRequest]) -> Figures:
    ttft, tpot, makespan = [], [], 0.0
    for one in requests:
        assert one.first_token_s is not None
        assert one.last_token_s is not None
        ttft.append(one.first_token_s - one.arrival_s)
        if one.output_tokens > 1:
            tpot.append((one.last_token_s - one.first_token_s) / (one.output_tokens - 1))
        makespan = max(makespan, one.last_token_s)
    return _figures(ttft=ttft, tpot=tpot, makespan=makespan)


def _simulated(records: Sequence[RequestRecord]) -> Figures:
    return _figures(
        ttft=[record.ttft_s for record in records if record.ttft_s is not None],
        tpot=[record.tpot_s for record in records if record.tpot_s is not None],
        makespan=max(float(record.event_s[-1]) for record in records),
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


def _left_out(recording: Recording, compared: int) -> list[str]:
    without = len(recording.requests) - compared
    if not without:
        return []
    return [f"{without} requests have no recorded tokens: simulated, not compared"]
