from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import EngineInfo, Round, Run, ServerFacts
from vllm_slo.settings import Settings
from vllm_slo.slo.row import Row
from vllm_slo.slo.thresholds import Thresholds
from vllm_slo.traffic.workload import Workload

TOKENS = 11


def record(ttft_ms: float, *, tpot_ms: float = 10.0, class_name: str = "all") -> RequestRecord:
    """A request of 11 tokens, one an event; a TTFT that is NaN makes it a failed one."""
    failed = bool(np.isnan(ttft_ms))
    events = ttft_ms / 1e3 + np.arange(TOKENS) * tpot_ms / 1e3
    return RequestRecord(
        class_name=class_name,
        planned_prompt_tokens=512,
        planned_output_tokens=TOKENS,
        scheduled_s=0.0,
        sent_s=0.0,
        event_s=np.empty(0) if failed else events,
        event_tokens=np.empty(0, dtype=np.int64) if failed else np.ones(TOKENS, dtype=np.int64),
        finished_s=None if failed else float(events[-1]),
        prompt_tokens=None if failed else 512,
        output_tokens=None if failed else TOKENS,
        error="connection reset" if failed else None,
    )


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A run out of TTFTs in milliseconds, round by round."""

    def make(
        rounds: Sequence[Sequence[float]],
        *,
        tpot_ms: float = 10.0,
        preemptions: Sequence[int | None] = (),
        classes: Sequence[str] = ("all",),
        window_s: float = 10.0,
    ) -> Run:
        counts = list(preemptions) or [None] * len(rounds)
        return Run(
            workload=Workload(name="uniform", plan=lambda _: [], concurrency=8),
            settings=Settings(max_num_seqs=8),
            engine=EngineInfo(target="sim", device="d", model="m", vllm_version="0.32.0"),
            rounds=tuple(
                Round(
                    seed=seed,
                    records=[
                        record(ms, tpot_ms=tpot_ms, class_name=classes[i % len(classes)])
                        for i, ms in enumerate(one)
                    ],
                    window_s=(0.0, window_s),
                    server=ServerFacts(preemptions=count),
                )
                for seed, (one, count) in enumerate(zip(rounds, counts, strict=True))
            ),
        )

    return make


@pytest.fixture
def make_row() -> Callable[..., Row]:
    """A row out of its limits as TOML."""

    def make(limits: str, *, more: str = "") -> Row:
        text = (
            '[meta]\ndevice = "d"\nmodel = "m"\nprovenance = "target"\n'
            f'[[row]]\nscenario = "uniform"\n{more}\n[row.limits]\n{limits}\n'
        )
        return Thresholds.parse(text, Path("t.toml")).rows[0]

    return make


@pytest.fixture
def make_queue() -> Callable[..., Run]:
    """Rounds of an open loop in a server with `slots`, `in_flight` requests at once on average.

    Poisson arrivals at 10 a second; whatever they find, a request's TTFT is 90 to 100 ms.
    """

    def make(in_flight: float, *, slots: int) -> Run:
        rounds = []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            arrivals = np.cumsum(rng.exponential(0.1, 300))
            decode_s = 0.1 * in_flight - 0.095
            records = []
            for arrival in arrivals.tolist():
                first = arrival + 0.090 + 0.010 * rng.random()
                events = first + np.linspace(0.0, decode_s, TOKENS)
                one = record(100.0)
                records.append(
                    replace(
                        one,
                        scheduled_s=arrival,
                        sent_s=arrival,
                        event_s=events,
                        finished_s=float(events[-1]),
                    )
                )
            rounds.append(
                Round(seed=seed, records=records, window_s=(0.0, 100.0), server=ServerFacts())
            )
        return Run(
            workload=Workload(name="uniform", plan=lambda _: []),
            settings=Settings(max_num_seqs=slots),
            engine=EngineInfo(target="sim", device="d", model="m", vllm_version="0.32.0"),
            rounds=tuple(rounds),
        )

    return make
