"""A recorded run, replayed: a recording made by the simulator itself comes back without error."""

import json
from pathlib import Path

import pytest

from tests.device.test_layers import MODEL, write_profile
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


def meta(**resolved: object) -> str:
    """A meta.json whose resolved_config has these sections in place of its own."""
    return json.dumps(META | {"resolved_config": META["resolved_config"] | resolved})


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
    assert (24, 24, []) == (report["requests"], report["compared"], report["warnings"])
    assert ("0.32.0", "some/model") == (report["vllm_version"], report["model"])
    asked = {"num_gpu_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    assert asked == {name: report["settings"][name] for name in asked}
    assert report["preemptions"] > 0
    assert {
        f"{name}_{figure}_s"
        for name in ("ttft", "tpot")
        for figure in ("mean", "p50", "p90", "p99")
    } | {"makespan_s"} == set(report["relative_error"])
    # The wall clock is told in steps of 0.2 microseconds.
    assert max(abs(error) for error in report["relative_error"].values()) < 1e-4


def errors(folder: Path, **how: object) -> dict[str, float]:
    return replay(folder, **how)["relative_error"]


def test_an_engine_twice_as_slow_is_seen_to_be(tmp_path):
    """The same arrivals; every token after them took twice as long."""
    path = write_recording(tmp_path) / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in ("first_token_ts", "last_token_ts"):
            row[name] += row[name] - row["queued_ts"]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = errors(tmp_path)
    for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s"):
        assert found[name] == pytest.approx(-0.5, abs=1e-4), name


def test_a_request_that_waits_for_the_step_in_progress_has_waited_since_it_came(tmp_path):
    """queued_ts is the engine's: it is late where a step is running, and TTFT is not shorter."""
    path = write_recording(tmp_path) / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[1:]:
        late = min(0.02, row["first_token_ts"] - row["queued_ts"])
        row["queued_ts"] += late
    path.write_text("\n".join(map(json.dumps, rows)))
    assert max(map(abs, errors(tmp_path).values())) < 1e-4


def test_a_clock_that_was_set_is_said(tmp_path):
    edit_line(write_recording(tmp_path), 3, arrival_time=WALL_CLOCK_S + 3600)
    (warning,) = replay(tmp_path)["warnings"]
    assert "queued 3.6e+03 s after their arrival_time" in warning


def test_a_first_token_before_its_request_is_refused(tmp_path):
    path = write_recording(tmp_path) / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["arrival_time"] = row.pop("queued_ts")
    path.write_text("\n".join(map(json.dumps, rows)))
    edit_line(tmp_path, 3, arrival_time=ENGINE_CLOCK_S + 3600)
    with pytest.raises(TraceError, match=r"requests.jsonl:3: its first token came before"):
        replay(tmp_path)


def test_one_clock_needs_no_queued_ts(tmp_path):
    path = write_recording(tmp_path) / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["arrival_time"] = row.pop("queued_ts")
    path.write_text("\n".join(map(json.dumps, rows)))
    assert max(map(abs, errors(tmp_path).values())) < 1e-4


def test_two_clocks_without_queued_ts_cannot_be_brought_together(tmp_path):
    for number in range(1, 25):
        edit_line(tmp_path if number > 1 else write_recording(tmp_path), number, queued_ts=None)
    with pytest.raises(TraceError, match=r"requests.jsonl: .* two clocks, .* no queued_ts"):
        replay(tmp_path)


def test_requests_without_recorded_tokens_load_the_engine_and_are_not_compared(tmp_path):
    edit_line(write_recording(tmp_path), 5, first_token_ts=None, last_token_ts=None)
    report = replay(tmp_path)
    assert (24, 23) == (report["requests"], report["compared"])
    assert ["1 requests have no recorded tokens: simulated, not compared"] == report["warnings"]
    # The others are what they were, for the engine they shared was as busy.
    assert max(map(abs, report["relative_error"].values())) < 1e-4


def test_what_a_recording_lacks_is_said(tmp_path):
    write_recording(tmp_path)
    edit_line(
        tmp_path,
        24,
        **dict.fromkeys(("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")),
    )
    bare = {"engine_kwargs": {"max_num_seqs": 8}, "num_requests": 30}
    (tmp_path / "meta.json").write_text(json.dumps(bare))
    report = replay(tmp_path, num_gpu_blocks=40)
    assert ("unknown", 23) == (report["vllm_version"], report["requests"])
    texts = (
        "max_num_batched_tokens: taken to be vLLM's default",
        "no resolved_config.scheduler_config",
        "has 24 requests, the run had 30",
        "1 requests without times are left out",
    )
    assert len(texts) == len(report["warnings"])
    for text, warning in zip(texts, report["warnings"], strict=True):
        assert text in warning


def test_the_profile_says_where_it_was_extrapolated(tmp_path):
    write_recording(tmp_path)
    rows = (tmp_path / "per_sequence.csv").read_text().splitlines()
    few = [row for row in rows if not row.split(",")[1].isdigit() or int(row.split(",")[1]) < 8]
    (tmp_path / "per_sequence.csv").write_text("\n".join(few) + "\n")
    (warning,) = replay(tmp_path)["warnings"]
    assert "measured up to 2; extrapolated" in warning


@pytest.mark.parametrize(
    ("version", "is_async", "reserves"),
    [("0.13.0", False, False), ("0.14.0", True, False), ("0.19.0rc1", True, True)],
)
def test_a_recording_that_does_not_say_so_is_scheduled_as_its_vllm_did_by_default(
    tmp_path, version, is_async, reserves
):
    write_recording(tmp_path)
    bare = {name: META[name] for name in ("engine_kwargs", "kv_cache")}
    (tmp_path / "meta.json").write_text(json.dumps(bare | {"vllm_version": version}))
    settings = replay(tmp_path)["settings"]
    assert is_async is settings["async_scheduling"]
    assert reserves is settings["scheduler_reserve_full_isl"]


def test_another_device_is_not_that_recording(tmp_path):
    report = replay(write_recording(tmp_path), device="a100-80gb")
    assert abs(report["relative_error"]["tpot_p50_s"]) > 0.1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"input_toks": 0},
            "requests.jsonl:3: input_toks must be a whole number from 1 to .*, not 0",
        ),
        ({"output_toks": 1.5}, "requests.jsonl:3: output_toks must be"),
        ({"arrival_time": "8"}, "requests.jsonl:3: arrival_time must be a number of seconds"),
        ({"arrival_time": 10**400}, "requests.jsonl:3: arrival_time must be a number of seconds"),
        ({"arrival_time": None, "queued_ts": None}, "requests.jsonl:3: needs its arrival_time"),
        ({"first_token_ts": None}, "requests.jsonl:3: has one of first_token_ts, last_token_ts"),
        ({"output_toks": 250}, "requests.jsonl:3: .* what the simulated one refuses"),
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
        ("meta.json", '{\n"a"', "meta.json:2: is not JSON"),
        ("meta.json", "[]", "meta.json: is not a JSON object"),
        ("meta.json", "{}", "meta.json: lacks engine_kwargs"),
        (
            "meta.json",
            json.dumps(META | {"engine_kwargs": {"tensor_parallel_size": 2}}),
            "tensor_parallel_size is 2: only one GPU is modelled",
        ),
        ("meta.json", meta(parallel_config={"pipeline_parallel_size": 2}), "only one GPU"),
        ("model.json", json.dumps(MODEL | {"tensor_parallel_size": 4}), "only one GPU is modelled"),
        ("meta.json", meta(speculative_config={"method": "ngram"}), "speculative decoding"),
        ("meta.json", meta(scheduler_config={"policy": "sjf"}), "scheduling_policy must be"),
        ("meta.json", meta(scheduler_config={"max_num_seqs": "8"}), "max_num_seqs must be"),
        ("meta.json", meta(scheduler_config={"max_num_seqs": 128}), "meta.json: max_num_batched"),
        ("meta.json", json.dumps(META | {"kv_cache": {}}), "--num-gpu-blocks N"),
        ("meta.json", json.dumps(META | {"kv_cache": {"block_size": 0}}), "block_size must be"),
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
