"""The overlay alone carries the worker: run in an interpreter of its own, vLLM stood in for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_slo.engine.worker import WORKER_CLS, overlay
from vllm_slo.engine.worker.account import read_account
from vllm_slo.errors import ProfileError

STAND_IN = '''
class CPUWorker:
    """Answers as vLLM's does: nothing from execute_model, the output from sample_tokens."""

    def __init__(self, *args, **kwargs):
        self.arguments = (args, kwargs)

    def execute_model(self, scheduler_output):
        return None if scheduler_output.total_num_scheduled_tokens else "nothing to run"

    def sample_tokens(self, grammar_output):
        return "tokens"

    def shutdown(self):
        print("down")
'''

DRIVE = """
import importlib, json, sys
from types import SimpleNamespace as N

module, _, name = sys.argv[1].rpartition(".")
worker = getattr(importlib.import_module(module), name)("config", rank=0)
assert worker.arguments == (("config",), {"rank": 0})

def output(new=(), cached=(), counts=None, finished=()):
    return N(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=N(
            req_ids=[c[0] for c in cached],
            num_computed_tokens=[c[1] for c in cached],
            num_output_tokens=[c[2] for c in cached],
        ),
        num_scheduled_tokens=counts or {},
        total_num_scheduled_tokens=sum((counts or {}).values()),
        finished_req_ids=set(finished),
    )

new = N(req_id="a", prompt_token_ids=[1] * 40, num_computed_tokens=0)
assert worker.execute_model(output([new], counts={"a": 40})) is None
assert worker.sample_tokens(None) == "tokens"
assert worker.execute_model(output(cached=[("a", 40, 1)], counts={"a": 1})) is None
assert worker.sample_tokens(None) == "tokens"
assert worker.execute_model(output(finished=["a"])) == "nothing to run"
worker.shutdown()
import vllm_slo
heavy = {"scipy", "httpx", "pytest", "hypothesis", "prometheus_client"} & set(sys.modules)
print(json.dumps({"file": vllm_slo.__file__, "heavy": sorted(heavy)}))
"""


def drive(variables: dict[str, str], tmp_path: Path) -> dict[str, object]:
    package = tmp_path / "stand-in" / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    (package / "cpu_worker.py").write_text(STAND_IN)
    path = os.pathsep.join([variables["PYTHONPATH"], str(tmp_path / "stand-in")])
    answer = subprocess.run(
        [sys.executable, "-c", DRIVE, WORKER_CLS],
        env={"PATH": os.environ["PATH"], **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("down\n")
    facts: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return facts


def test_the_worker_runs_from_the_overlay_with_numpy_at_most(tmp_path: Path) -> None:
    variables = overlay(
        tmp_path / "overlay",
        device="a100-80gb",
        model="llama-3-8b",
        accounting_path=tmp_path / "account",
        steps_path=tmp_path / "steps.jsonl",
    )
    facts = drive(variables, tmp_path)
    assert facts["file"] == str(tmp_path / "overlay" / "vllm_slo" / "__init__.py")
    assert facts["heavy"] == []
    assert read_account(tmp_path / "account").steps == 2
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(s["decodes"], s["decode_context"], s["prefills"], s["sampled"]) for s in steps] == [
        (0, 0, [[40, 0]], 1),
        (1, 41, [], 1),
    ]


def test_the_overlay_may_carry_a_users_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        "[roofline]\nhost = 0.1\nweights = 0.1\ntoken = 0\nactivation = 0\nkv = 0\n"
    )
    variables = overlay(
        Path("overlay"), device="mine.toml", model="any", accounting_path=Path("account")
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    drive(variables, tmp_path)
    assert read_account(tmp_path / "account").steps == 2


def test_nothing_of_the_suite_leaks_through_the_path(tmp_path: Path) -> None:
    variables = overlay(
        tmp_path / "overlay", device="a100-80gb", model="llama-3-8b", accounting_path=tmp_path / "a"
    )
    assert variables["PYTHONPATH"] == str(tmp_path / "overlay")
    assert [path.name for path in (tmp_path / "overlay").iterdir()] == ["vllm_slo"]


def test_an_unknown_device_is_refused_before_anything_boots(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no device named 'a1000'"):
        overlay(
            tmp_path / "overlay", device="a1000", model="llama-3-8b", accounting_path=tmp_path / "a"
        )
    assert not (tmp_path / "overlay").exists()
