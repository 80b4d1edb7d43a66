"""`vllm-slo sim serve` as a process: how it starts, says it is late, and ends."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from vllm_slo.cli import main
from vllm_slo.device import RooflineModel
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.serve.ask import read_ask
from vllm_slo.sim.serve.fields import Fields
from vllm_slo.sim.serve.outlet import Outlet
from vllm_slo.sim.serve.service import Service


@contextmanager
def _process(*arguments: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "vllm_slo.cli", "sim", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_says_that_it_is_simulated_and_where(metronome: Path):
    settings = ["--max-num-seqs", "3", "--no-async-scheduling", "--max-num-batched-tokens", "64"]
    with _process(*settings, "--max-model-len", "99", VLLM_API_KEY="secret") as (process, line):
        label, url = line.split(": ")
        assert "SIMULATED a100-80gb with llama-3-8b" == label
        bearer = {"Authorization": "Bearer secret"}
        models = httpx.get(f"{url.strip()}/v1/models", headers=bearer).json()
        assert 99 == models["data"][0]["max_model_len"]
        assert 401 == httpx.get(f"{url.strip()}/v1/models").status_code
        process.terminate()
        assert 0 == process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_it_streams(metronome: Path, number: signal.Signals):
    options = ["--device", str(metronome), "--num-gpu-blocks-override", "1000"]
    with _process(*options) as (process, line):
        url = line.split()[-1]
        body = {"prompt": "a", "max_tokens": 5000, "stream": True}
        with (
            httpx.Client() as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert "t5" in next(line for line in lines if "t5" in line)
            process.send_signal(number)
            with pytest.raises(httpx.HTTPError):  # the stream is cut
                list(lines)
        assert 0 == process.wait(10)
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
        # On a busy machine it may have been late, and says so; it says nothing else.
        assert [] == [line for line in said if "WARNING fell behind: " not in line]


def test_a_port_that_is_taken_is_one_clear_error(capsys: pytest.CaptureFixture[str], served: Any):
    port = served.base_url.rsplit(":", 1)[1]
    assert 2 == main(["sim", "serve", "--port", port])
    said = capsys.readouterr().err
    assert f"cannot serve on 127.0.0.1, port {port}" in said
    assert "--port 0 takes any free one" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "abacus"], "abacus"),
        (["--model", "gpt-9"], "gpt-9"),
        (["--max-num-seqs", "0"], "max_num_seqs must be a whole number >= 1"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "8"], "max_num_batched_tokens (8)"),
        (["--num-gpu-blocks-override", "3"], "cannot hold one request"),
        (["--port", "70000"], "port must be"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization must be"),
        (["--mean-output-tokens", "0"], "mean_output_tokens must be"),
        (["--mean-output-tokens", "nan"], "mean_output_tokens must be"),
        (["--watermark", "2"], "watermark must be"),
        (["--host", "192.0.2.1"], "cannot serve on 192.0.2.1"),
        (["--host", "no.such.host.invalid"], "cannot serve on no.such.host.invalid"),
    ],
)
def test_bad_settings_are_one_clear_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
):
    assert 2 == main(["sim", "serve", "--port", "0", *arguments])
    assert words in capsys.readouterr().err


def test_steps_that_cannot_be_held_are_counted(serve: Callable[..., Any], tmp_path: Path):
    hasty = tmp_path / "hasty.toml"
    zeros = ("weights", "token", "activation", "kv", "fixed", "head", "head_row", "decode")
    text = "\n".join(f"{name} = 0" for name in (*zeros, "prefill_token", "prefill_pair"))
    hasty.write_text(f"[roofline]\nhost = 0.0001\n{text}\n")
    served = serve(options={"device": str(hasty)}, max_num_seqs=256, max_num_batched_tokens=4096)
    # A step takes a ten-thousandth of a millisecond: no server holds this.
    served.complete(["a"] * 200, max_tokens=300)
    health = served.health()
    assert health["late_steps"] > 0
    assert health["lost_s"] > 0
    text = served.client.get("/metrics").text
    assert (
        f'late_steps_total{{model_name="llama-3-8b",engine="0"}} {health["late_steps"]}.0' in text
    )


class _Never:
    """A waker that leaves it to the test to wake."""

    callback: Callable[[], None]

    def set(self, due_s: float, callback: Callable[[], None]) -> None:
        self.callback = callback


@pytest.mark.parametrize(("late_s", "lines"), [(0.004, 3), (0.0, 0)])
def test_falling_behind_is_said_in_the_log_every_few_seconds(
    caplog: pytest.LogCaptureFixture, late_s: float, lines: int
):
    names = ("weights", "token", "activation", "kv", "fixed", "head", "head_row", "decode")
    names += ("prefill_token", "prefill_pair")
    model = RooflineModel(host=20.0, **dict.fromkeys(names, 0.0))
    config = SchedulerConfig(num_gpu_blocks=600, max_model_len=8192, async_scheduling=False)
    now, waker = [0.0], _Never()
    service = Service(config, model, model_name="m", device="d", waker=waker, clock=lambda: now[0])

    async def send(message: object) -> None: ...

    ask = read_ask(Fields({"prompt": "a", "max_tokens": 800}), api="completions", served=("m",))
    service.submit(ask, Outlet(send), request_id="x", received_s=0.0)
    waker.callback()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 801):  # 16 seconds
            now[0] = 0.02 * step + late_s
            waker.callback()
    assert lines == len([one for one in caplog.messages if one.startswith("fell behind: ")])
    service.say_pace()
    assert lines + bool(lines) == len(caplog.messages)  # the rest, at the end
    if lines:
        assert "250 of the last 250 steps" in caplog.messages[0]
        assert "the worst by 4.0 ms, 0.000 s lost for good" in caplog.messages[0]
