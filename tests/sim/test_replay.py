"""A recorded run, replayed: a recording made by the simulator itself comes back without error."""

import json
from pathlib import Path

import pytest

from tests.device.test_layers import write_profile
from vllm_slo.cli import main
from vllm_slo.device import device_model
from vllm_slo.errors import ProfileError, TraceError
from vllm_slo.sim import SchedulerConfig, simulate
from vllm_slo.sim.replay import replay
from vllm_slo.traffic.workload import PlannedRequest

META = {
    "model": "some/model",
    "vllm_version": "0.32.0",
    "engine_kwargs": {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256},
    "kv_cache": {"num_gpu_blocks": 40, "block_size": 16, "enable_prefix_caching": True},
    "resolved_config": {"scheduler_config": {"async_scheduling": True, "policy": "fcfs"}},
}
ENGINE_CLOCK_S, WALL_CLOCK_S = 27_536.25, 1_787_267_980.5


def write_recording(folder: Path) -> Path:
    """A run that thrashes, as an engine with this profile would have recorded it."""
    write_profile(folder)
    (folder / "meta.json").write_text(json.dumps(META))
    plan = [
        PlannedRequest(
            index=i, input_tokens=20 + 7 * i, output_tokens=1 + 11 * (i % 10), arrival_s=0.01 * i
        )
        for i in range(24)
    ]
    records = []
    simulate(
        plan,
        config=SchedulerConfig(
            num_gpu_blocks=40, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64
        ),
        device=device_model(str(folder), scheduling="async"),
        on_record=records.append,
    )
    assert any(record.preemptions for record in records)
    lines = [
        {
            "request_id": f"bench-{record.index}",
            "input_toks": record.prompt_tokens,
            "output_toks": record.output_tokens,
            "arrival_time": WALL_CLOCK_S + record.scheduled_s,
            "queued_ts": ENGINE_CLOCK_S + record.scheduled_s,
            "first_token_ts": ENGINE_CLOCK_S + float(record.event_s[0]),
            "last_token_ts": ENGINE_CLOCK_S + float(record.event_s[-1]),
        }
        for record in records
    ]
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def edit_line(folder: Path, number: int, **changes: object) -> None:
    path = folder / "requests.jsonl"
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | changes)
    path.write_text("\n".join(lines))


def test_a_recording_by_the_simulator_comes_back(tmp_path, capsys):
    folder = write_recording(tmp_path)
    assert 0 == main(["sim", "replay", str(folder)])
    report = json.loads(capsys.readouterr().out)
    assert (24, 0, []) == (report["requests"], report["failed"], report["warnings"])
    assert report["preemptions"] > 0
    assert {
        f"{name}_{figure}_s"
        for name in ("ttft", "tpot")
        for figure in ("mean", "p50", "p90", "p99")
    } | {"makespan_s"} == set(report["relative_error"])
    # The wall clock is told in steps of 0.2 microseconds.
    assert max(abs(error) for error in report["relative_error"].values()) < 1e-4


def test_another_device_is_not_that_recording(tmp_path):
    report = replay(write_recording(tmp_path), device="a100-80gb")
    assert abs(report["relative_error"]["tpot_p50_s"]) > 0.1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input_toks": 0}, "requests.jsonl:3: input_toks must be a whole number >= 1, not 0"),
        ({"output_toks": 1.5}, "requests.jsonl:3: output_toks must be"),
        ({"arrival_time": None}, "requests.jsonl:3: arrival_time must be a number of seconds"),
        ({"last_token_ts": float("nan")}, "requests.jsonl:3: last_token_ts must be"),
        ({"first_token_ts": 0.0}, "requests.jsonl:3: .* are not in order"),
    ],
)
def test_a_bad_line_is_named(tmp_path, changes, reason):
    edit_line(write_recording(tmp_path), 3, **changes)
    with pytest.raises(TraceError, match=reason):
        replay(tmp_path)


def test_a_line_that_is_cut_is_named(tmp_path):
    path = write_recording(tmp_path) / "requests.jsonl"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(TraceError, match=r"requests.jsonl:24: is not JSON"):
        replay(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("requests.jsonl", "\n", "requests.jsonl: has no requests"),
        ("meta.json", "{", "meta.json: is not JSON"),
        ("meta.json", "{}", "meta.json: lacks engine_kwargs"),
        (
            "meta.json",
            json.dumps(META | {"engine_kwargs": {"tensor_parallel_size": 2}}),
            "tensor_parallel_size is 2: only one GPU is modelled",
        ),
        ("meta.json", json.dumps(META | {"kv_cache": {}}), "kv_cache.num_gpu_blocks must be"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, reason):
    (write_recording(tmp_path) / name).write_text(text)
    with pytest.raises(TraceError, match=reason):
        replay(tmp_path)


def test_a_folder_without_a_profile_says_so(tmp_path):
    (write_recording(tmp_path) / "dense.csv").unlink()
    with pytest.raises(ProfileError, match=r"dense.csv"):
        replay(tmp_path)
