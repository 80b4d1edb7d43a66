"""The whole path on a server process of its own: boots, Ctrl-C, kills, and what is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.standin.fake import fake_environment

CONFTEST = """
from pathlib import Path
from vllm_slo.load.target import HttpTarget

class Told:
    rounds = 0

    def begin(self):  # time zero of a round
        Told.rounds += 1
        Path(f"round-{Told.rounds}").touch()

    def end(self):
        return {}

carry = HttpTarget._carry

def told(self, attempt, *, observers=(), **options):
    more = [Told()] if observers else []
    return carry(self, attempt, observers=[*observers, *more], **options)

HttpTarget._carry = told
"""
TESTS = """
import pytest
from vllm_slo import Settings
from vllm_slo.traffic import uniform

at_4 = pytest.mark.parametrize(
    "vllm_server", [Settings(max_num_seqs=4, max_model_len=512)], indirect=True, ids=str)

def traffic(requests):
    return uniform(input_tokens=8, output_tokens=8, requests=requests, concurrency=4)

@at_4
def test_uniform(vllm_server, load, slo):
    slo.check(load(traffic(16)), row="uniform")

@at_4
def test_after(vllm_server, load):
    assert vllm_server.alive()
    assert not [one.error for one in load(traffic(4)).records if one.error]
"""
THRESHOLDS = """
[meta]
device = "a100-80gb"
model = "tiny"
provenance = "target"
[[row]]
scenario = "uniform"
[row.limits]
ttft_p50_ms = 60000
tpot_p99_ms = 60000
"""


def until(condition, *, seconds=60.0):
    """Polls; the time only bounds a failure."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Live:
    """A suite whose pytest runs in a process of its own, on a stand-in for vLLM."""

    def __init__(self, path: Path, **behaviour) -> None:
        self.path = path
        self.engine = fake_environment(path / "engine", **behaviour)
        (path / "suite").mkdir()
        self.suite = path / "suite"
        (self.suite / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
        (self.suite / "conftest.py").write_text(CONFTEST)
        (self.suite / "test_live.py").write_text(TESTS)
        file = self.suite / "thresholds" / "a100-80gb" / "tiny.toml"
        file.parent.mkdir(parents=True)
        file.write_text(THRESHOLDS)
        self.process: subprocess.Popen | None = None

    def start(self, *arguments: str, **environ: str) -> None:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p"]
        command += ["no:hypothesispytest", "--slo-target=gpu"]
        command += [f"--slo-vllm={self.engine.python}", "--slo-device=a100-80gb"]
        command += ["--slo-model=shape:tiny", f"--slo-cache={self.path / 'cache'}"]
        self.process = subprocess.Popen(
            [*command, "--slo-rounds=2", "--slo-json=out/slo.json", *arguments],
            cwd=self.suite,
            env=dict(os.environ) | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait_for_round(self, number: int) -> None:
        assert until((self.suite / f"round-{number}").exists), self.process.communicate()[0]

    def output(self) -> str:
        return self.process.communicate(timeout=120)[0]

    def server_pids(self) -> list[int]:
        return [start["pid"] for start in self.engine.starts()]

    def report(self) -> dict:
        return json.loads((self.suite / "out" / "slo.json").read_text())


@pytest.fixture
def live(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    made = []

    def make(**behaviour) -> Live:
        made.append(Live(tmp_path, **behaviour))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def test_one_boot_serves_a_session_and_nothing_is_left(live):
    session = live()
    session.start("--junitxml=out/junit.xml", HF_TOKEN="hf_abcdefgh12345678")
    output = session.output()
    # Without a GPU to look at, what the gpu target measures is not valid: never PASS.
    assert "INVALID: uniform" in output
    assert "1 failed, 1 passed" in output or "1 passed, 1 inconclusive" in output
    assert f"1 server boot; logs: {session.suite / 'slo-report' / 'servers'}" in output
    assert "Traceback" not in output
    (pid,) = session.server_pids()
    assert not is_running(pid)
    report = session.report()
    assert (1, "gpu", 1) == (report["boots"], report["target"], report["exit_status"])
    (result,) = report["results"]
    assert 32 == sum(len(one["records"]) for one in result["run"]["rounds"])
    environ = session.engine.starts()[0]["environ"]
    assert "(set)" == environ["HF_TOKEN"] == environ["VLLM_API_KEY"]
    files = [*(session.suite / "out").iterdir(), *(session.suite / "slo-report").rglob("*.*")]
    assert 3 <= len(files)
    for file in files:
        assert "hf_abcdefgh12345678" not in file.read_text(errors="replace")
    assert "hf_abcdefgh12345678" not in output


def test_ctrl_c_in_a_round_stops_the_server_and_prints_what_was_measured(live):
    session = live(interval_s=0.02)
    session.start()
    session.wait_for_round(2)
    session.process.send_signal(signal.SIGINT)
    output = session.output()
    assert pytest.ExitCode.INTERRUPTED == session.process.returncode, output
    said = (
        r"cut short: uniform seqs4-len512, (\d+) requests in 2 rounds, not judged: ttft_p50_ms \d"
    )
    (requests,) = re.findall(said, output)
    assert 16 < int(requests) < 32
    assert "KeyboardInterrupt" in output
    assert not [pid for pid in session.server_pids() if is_running(pid)]
    assert pytest.ExitCode.INTERRUPTED == session.report()["exit_status"]


def test_nothing_outlives_a_killed_pytest(live):
    session = live(interval_s=0.02, orphan=True)
    session.start()
    session.wait_for_round(1)
    pids = [*session.server_pids(), *session.engine.orphans()]
    assert [True, True] == [is_running(pid) for pid in pids]
    session.process.kill()
    session.process.communicate()
    assert until(lambda: not any(is_running(pid) for pid in pids), seconds=5.0)


def test_a_server_killed_in_mid_round_fails_its_test_and_the_next_gets_a_new_one(live):
    session = live(interval_s=0.02)
    session.start("--slo-inconclusive=pass", "--slo-exit-codes")
    session.wait_for_round(2)
    os.kill(session.server_pids()[0], signal.SIGKILL)
    output = session.output()
    assert "1 failed, 1 passed" in output, output
    assert "uniform (any settings): the server died in round 2: " in output
    assert "killed by SIGKILL" in output
    log = session.suite / "slo-report" / "servers" / "1-seqs4-len512.log"
    assert f"server log: {log}" in output
    assert "2 server boots" in output
    (result,) = session.report()["results"]
    assert "PASS" != result["outcome"]
    assert result["failed_requests"] > 0
    assert "SIGKILL" in result["server_died"]
    assert session.process.returncode in (10, 12)
    assert not [pid for pid in session.server_pids() if is_running(pid)]


def test_a_boot_that_fails_is_told_once_a_test_and_tried_once(live):
    session = live(die="ValueError('the KV cache is too small')")
    session.start("--slo-exit-codes")
    output = session.output()
    assert 12 == session.process.returncode
    assert 2 == output.count("\nValueError: the KV cache is too small\n"), output
    assert 1 == output.count("last lines of its log")
    assert 1 == len(session.server_pids())
    assert "src/vllm_slo" not in output
