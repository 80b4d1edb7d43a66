"""A trace of a production service's form through one simulated A100."""

import json

import pytest

from vllm_slo.cli import main
from vllm_slo.measure import summarise
from vllm_slo.settings import Settings
from vllm_slo.sim import open_sim
from vllm_slo.traffic import trace

# Made up, in the form of the Azure LLM inference trace of 2023: long prompts, short answers, and
# a burst in the third minute.
ARRIVALS_S = [*range(0, 120, 3), *(120 + 0.1 * i for i in range(60)), *range(130, 240, 3)]


def write_trace(path):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i, at in enumerate(ARRIVALS_S):
        clock = f"2023-11-16 18:{int(at) // 60:02d}:{at % 60:010.7f}"
        lines.append(f"{clock},{200 + 397 * i % 3900},{1 + 89 * i % 700}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_runs_to_its_end_at_the_rate_that_is_asked_for(tmp_path):
    path = write_trace(tmp_path / "service.csv")
    whole = open_sim(Settings()).run(trace(path))
    assert (len(ARRIVALS_S), 0) == (len(whole.records), summarise(whole).failed)
    assert ARRIVALS_S[-1] < whole.rounds[0].window_s[1] < ARRIVALS_S[-1] + 20
    half = open_sim(Settings()).run(trace(path, rate_scale=0.5))
    assert 2 * ARRIVALS_S[-1] < half.rounds[0].window_s[1]
    # The burst is what makes the tail, and half the rate takes much of it away.
    assert summarise(whole).value("ttft_p99_ms") > 3 * summarise(half).value("ttft_p99_ms")


def test_requests_too_long_for_the_model_fail_and_the_others_are_served(tmp_path):
    path = write_trace(tmp_path / "service.csv")
    run = open_sim(Settings(max_model_len=2048)).run(trace(path))
    fits = [r.planned_prompt_tokens + r.planned_output_tokens <= 2048 for r in run.records]
    assert fits == [record.ok for record in run.records]
    assert {400} == {record.status for record in run.records if not record.ok}


def run_command(capsys, *arguments: object) -> dict:
    assert 0 == main(["sim", "trace", *map(str, arguments)])
    return json.loads(capsys.readouterr().out)


def test_the_command_prints_what_the_trace_asked_for_and_got(tmp_path, capsys):
    path = write_trace(tmp_path / "service.csv")
    report = run_command(capsys, path, "--rate-scale", 0.5, "--max-num-seqs", 16)
    assert ("sim", "a100-80gb", "measured") == (
        report["target"],
        report["device"],
        report["device_times"],
    )
    assert (len(ARRIVALS_S), 0) == (report["requests"], report["failed"])
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert sum(int(row[1]) for row in rows) == report["prompt_tokens"]
    assert sum(int(row[2]) for row in rows) == report["output_tokens"]
    assert report["offered_rps"] == pytest.approx((len(rows) - 1) / (2 * ARRIVALS_S[-1]))
    assert (16, 16) == (report["settings"]["max_num_seqs"], report["running_max"])
    # The same figures as in Python, in which the target is at hand.
    settings = Settings(max_num_seqs=16)
    summary = summarise(open_sim(settings).run(trace(path, rate_scale=0.5)))
    for name in ("ttft", "tpot", "e2e"):
        for figure in ("mean", "p50", "p90", "p99", "max"):
            value = report["latency_ms"][name][figure]
            assert summary.value(f"{name}_{figure}_ms") == value


def test_the_command_says_which_lengths_it_cut_and_what_was_refused(tmp_path, capsys):
    path = write_trace(tmp_path / "service.csv")
    refused = run_command(capsys, path, "--max-model-len", 2048)
    assert refused["failed"] == sum(refused["failures"].values()) > 0
    assert all(reason.startswith("HTTP 400") for reason in refused["failures"])
    cut = run_command(
        capsys, path, "--max-model-len", 2048, "--max-input-tokens", 1000, "--requests", 50
    )
    assert (50, 0) == (cut["requests"], cut["failed"])
    assert 0 < cut["workload"]["clipped_inputs"] < 50


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rate-scale", "0"], "rate_scale must be"),
        (["--start-s", "9999"], "no request between"),
        (["--device", "abacus"], "no device named 'abacus'"),
        (["--max-num-seqs", "0"], "max_num_seqs must be"),
        (["--gpu-memory-utilization", "2"], "gpu_memory_utilization must be"),
    ],
)
def test_what_makes_no_sense_is_one_error(tmp_path, capsys, arguments, reason):
    path = write_trace(tmp_path / "service.csv")
    assert 2 == main(["sim", "trace", str(path), *arguments])
    captured = capsys.readouterr()
    assert "" == captured.out
    assert reason in captured.err


def test_a_bad_line_of_a_trace_is_named(tmp_path, capsys):
    path = write_trace(tmp_path / "service.csv")
    lines = path.read_text().splitlines()
    lines[6] = lines[6].replace(",", ",-", 1)
    path.write_text("\n".join(lines))
    assert 2 == main(["sim", "trace", str(path)])
    assert "line 7: ContextTokens must be" in capsys.readouterr().err
