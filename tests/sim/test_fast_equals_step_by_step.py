"""Implicit decodes and quiet steps change nothing: every record, counter and time is the same."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.fidelity.cases import Arrival, Case, cases
from vllm_slo.device import RooflineModel
from vllm_slo.measure.record import RequestRecord
from vllm_slo.sim.clients import FrontEnd
from vllm_slo.sim.implicit import ImplicitDecodes
from vllm_slo.sim.scheduler import VllmV1Scheduler
from vllm_slo.sim.simulate import Simulated, simulate
from vllm_slo.traffic.workload import CLASS_PREFIX, OWN, PlannedRequest, Segment

DEVICE = RooflineModel(host=0.5, weights=9.6, token=0.0525, activation=0.0045, kv=8.0e-5)


def tokens_of(arrival: Arrival) -> int:
    return sum(tokens for _, tokens in arrival.prompt)


def planned(case: Case, *, gap_s: float) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index=index,
            input_tokens=tokens_of(arrival),
            output_tokens=min(arrival.max_tokens, case.config.max_model_len - tokens_of(arrival)),
            arrival_s=arrival.step * gap_s,
            priority=arrival.priority,
            segments=tuple(
                Segment(key=(OWN, index) if key < 0 else (CLASS_PREFIX, key), tokens=tokens)
                for key, tokens in arrival.prompt
            ),
        )
        for index, arrival in enumerate(case.arrivals)
    ]


def run(requests, case, scheduler, **how) -> tuple[list[RequestRecord], Simulated]:
    records: list[RequestRecord] = []
    simulated = simulate(
        requests,
        config=case.config,
        device=DEVICE,
        on_record=records.append,
        scheduler=scheduler(case.config),
        **how,
    )
    return records, simulated


def plain(record: RequestRecord) -> dict[str, object]:
    fields = {name: getattr(record, name) for name in record.__slots__}
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in fields.items()
    }


@given(
    case=cases(),
    gap_s=st.sampled_from([0.0, 0.0003, 0.011, 0.0117, 0.3]),
    concurrency=st.none() | st.integers(1, 16),
    front_end=st.sampled_from([FrontEnd(), FrontEnd(request_s=0.0013, response_s=0.0007)]),
    max_num_queued_reqs=st.none() | st.integers(0, 12),
)
def test_every_record_is_the_same(case, gap_s, concurrency, front_end, max_num_queued_reqs):
    case = replace(case, config=replace(case.config, max_num_queued_reqs=max_num_queued_reqs))
    requests = planned(case, gap_s=gap_s)
    how = {"concurrency": concurrency, "front_end": front_end}
    slow, slow_counts = run(requests, case, VllmV1Scheduler, **how)
    fast, fast_counts = run(requests, case, ImplicitDecodes, **how)
    assert [plain(r) for r in slow] == [plain(r) for r in fast]
    assert slow_counts == fast_counts
