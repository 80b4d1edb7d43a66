"""Runs made by hand, for the tests of what is measured from them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from vllm_slo.measure import EngineInfo, RequestRecord, Round, Run, ServerFacts
from vllm_slo.settings import Settings
from vllm_slo.traffic import Poisson, Workload, uniform


def record(
    *,
    at: float = 0.0,
    ttft: float = 0.1,
    gaps: Sequence[float] = (0.02, 0.02, 0.02),
    tokens: Sequence[int] | None = None,
    knows_tokens: bool = True,
    **changes: Any,
) -> RequestRecord:
    """A request that starts at `at` and has its first token `ttft` later, then the gaps."""
    event_s = at + ttft + np.concatenate(([0.0], np.cumsum(gaps)))
    carried = np.ones(len(event_s), np.int64) if tokens is None else np.array(tokens)
    total = int(carried.sum())
    values: dict[str, Any] = {
        "planned_prompt_tokens": 10,
        "planned_output_tokens": total,
        "scheduled_s": at,
        "sent_s": at,
        "event_s": event_s,
        "event_tokens": carried if knows_tokens else None,
        "finished_s": float(event_s[-1]),
        "prompt_tokens": 10,
        "output_tokens": total,
        "finish_reason": "length",
    }
    return RequestRecord(**values | changes)


def failed(*, at: float = 0.0, error: str = "HTTP 503", planned: int = 4) -> RequestRecord:
    """A request that was refused at once."""
    return record(
        at=at,
        planned_output_tokens=planned,
        event_s=np.empty(0),
        event_tokens=np.empty(0, np.int64),
        finished_s=None,
        prompt_tokens=None,
        output_tokens=None,
        finish_reason=None,
        error=error,
    )


def run_of(
    *rounds: Sequence[RequestRecord],
    workload: Workload | None = None,
    settings: Settings | None = None,
    window_s: tuple[float, float] | None = None,
    target: str = "sim",
    **facts: Any,
) -> Run:
    """A run of these rounds, valid unless `facts` say otherwise."""
    known = {"server": ServerFacts(preemptions=0, kv_use_max=0.5, running_max=4)}
    made = []
    for seed, records in enumerate(rounds):
        end = max((r.finished_s or r.sent_s for r in records), default=0.0)
        made.append(
            Round(seed=seed, records=records, window_s=window_s or (0.0, end), **known | facts)
        )
    return Run(
        workload=workload or uniform(arrivals=Poisson(5)),
        settings=settings or Settings(max_num_seqs=64),
        engine=EngineInfo(target=target, device="d", model="m", vllm_version="0.32.0"),
        rounds=tuple(made),
    )


@pytest.fixture(name="record")
def record_fixture() -> Callable[..., RequestRecord]:
    return record


@pytest.fixture(name="failed")
def failed_fixture() -> Callable[..., RequestRecord]:
    return failed


@pytest.fixture(name="run_of")
def run_of_fixture() -> Callable[..., Run]:
    return run_of


@pytest.fixture
def random_run() -> Run:
    """Three rounds of all kinds of records: several classes, bundles, unknown tokens, failures."""
    rng = np.random.default_rng(11)
    rounds = []
    for _ in range(3):
        records = []
        for i in range(60):
            at = i * 0.1
            kind = rng.integers(0, 10)
            name = "short" if rng.random() < 0.5 else "long"
            gaps = rng.exponential(0.02, rng.integers(0, 30))
            if kind == 0:
                records.append(failed(at=at))
            elif kind == 1:
                records.append(
                    record(at=at, gaps=gaps, error="the stream was cut", finished_s=None)
                )
            elif kind == 2:
                records.append(record(at=at, gaps=gaps, knows_tokens=False, class_name=name))
            else:
                records.append(
                    record(
                        at=at,
                        ttft=rng.exponential(0.2),
                        gaps=gaps,
                        tokens=rng.integers(1, 4, len(gaps) + 1),
                        class_name=name,
                        sent_s=at + rng.exponential(0.001),
                    )
                )
        rounds.append(records)
    return run_of(*rounds)
