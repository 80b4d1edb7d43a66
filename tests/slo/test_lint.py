import datetime
import json
import re
from pathlib import Path

import pytest

from vllm_slo.cli import main
from vllm_slo.errors import ThresholdsError
from vllm_slo.slo.lint import lint

REPO = Path(__file__).parents[2]
TODAY = datetime.date(2026, 3, 1)
META = '[meta]\ndevice = "{}"\nmodel = "llama-3-8b"\nprovenance = "{}"\n'
MEASURED = 'vllm_version = "0.31.0"\ndate = 2026-01-30\nsamples = 9\nseed = 0\nheadroom = 0.2\n'


@pytest.fixture
def write(tmp_path):
    def write(body, *, device="a100-80gb", provenance="measured") -> Path:
        path = tmp_path / device / "llama-3-8b.toml"
        path.parent.mkdir(exist_ok=True)
        of_kind = {"measured": MEASURED, "reported": 'source = "x"\n', "target": ""}
        path.write_text(META.format(device, provenance) + of_kind[provenance] + body)
        return path

    return write


def row(limits: str, *, seqs: int | None = 8, more: str = "", scenario: str = "uniform") -> str:
    settings = "" if seqs is None else f"settings = {{ max_num_seqs = {seqs} }}\n"
    return f'[[row]]\nscenario = "{scenario}"\n{settings}{more}\n[row.limits]\n{limits}\n'


def found(path, law, **more):
    return [one for one in lint([path], today=TODAY, **more) if one.law == law]


def test_the_reference_tables_are_found_inconsistent_row_by_row():
    path = REPO / "thresholds/a100-80gb/llama-3-8b.toml"
    littles = found(path, "littles-law")
    assert [
        "8 / 31 ms = 258 tok/s < 1,240",
        "16 / 32 ms = 500 tok/s < 2,180",
        "32 / 34 ms = 941 tok/s < 3,320",
        "64 / 38 ms = 1,684 tok/s < 3,580",
    ] == [re.search(r"\d+ / .*? < [\d,]+", one.text)[0] for one in littles]
    lines = path.read_text().splitlines()
    assert [True] * 4 == [lines[one.line - 1].startswith("output_tok_s = ") for one in littles]
    assert ["output_tok_s 1,240 > 1,087", "output_tok_s 2,180 > 2,174"] == [
        one.text.split(":")[0] for one in found(path, "roofline")
    ]
    assert {"warning"} == {one.severity for one in lint([path], today=TODAY)}


def test_the_same_tables_are_errors_where_their_throughput_gates(tmp_path):
    text = (REPO / "thresholds/a100-80gb/llama-3-8b.toml").read_text()
    path = tmp_path / "a100-80gb/llama-3-8b.toml"
    path.parent.mkdir()
    path.write_text(text.replace('advisory = ["output_tok_s"]\n', ""))
    errors = [one for one in lint([path], today=TODAY) if one.severity == "error"]
    assert 4 + 2 == len(errors)


@pytest.mark.parametrize(
    ("limits", "more", "expected"),
    [
        ("tpot_p50_ms = 10\noutput_tok_s = 801", "", ["8 / 10 ms = 800 tok/s < 801"]),
        ("tpot_p50_ms = 10\noutput_tok_s = 800", "", []),
        ("tpot_p50_ms = 10\noutput_tok_s = 500", "concurrency = 4", ["concurrency = 4"]),
        ("tpot_p50_ms = 10\noutput_tok_s = 500", "concurrency = 99", []),
        ("tpot_p99_ms = 10\noutput_tok_s = 1000", "", []),
    ],
)
def test_throughput_is_bounded_by_the_sequences_over_tpot(write, limits, more, expected):
    findings = found(write(row(limits, more=more)), "littles-law")
    assert [True] * len(expected) == [
        part in one.text for one, part in zip(findings, expected, strict=True)
    ]
    assert {"error"} >= {one.severity for one in findings}


def test_a_target_may_ask_for_a_throughput_that_takes_a_better_tpot_than_it_asks_for(write):
    body = row("tpot_p50_ms = 50\noutput_tok_s = 500")
    (finding,) = found(write(body, provenance="target"), "littles-law")
    assert "warning" == finding.severity
    assert "it takes a TPOT of 16.00 ms" in finding.text


@pytest.mark.parametrize("device", ["a100-80gb", "sim-a100-80gb", "emulated-a100-80gb"])
def test_nothing_is_quicker_than_reading_the_weights(write, device):
    path = write(row("tpot_p50_ms = 7\ntpot_p99_ms = 8", seqs=None), device=device)
    (finding,) = found(path, "roofline")
    assert (14, "error") == (finding.line, finding.severity)
    assert finding.text.startswith("tpot_p50_ms 7 ms < 7.36 ms")


def test_another_roofline_is_not_taken_for_this_one(write):
    body = row("tpot_p50_ms = 5\noutput_tok_s = 1500")
    body = body.replace("8 }", "8, tensor_parallel_size = 2 }")
    assert [] == found(write(body), "roofline")


def test_a_device_that_is_not_known_is_told(write):
    (finding,) = found(write(row("ttft_p99_ms = 9"), device="tpu-v9"), "roofline")
    assert (2, "warning") == (finding.line, finding.severity)
    assert "no device named 'tpu-v9'" in finding.text


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("ttft_p50_ms = 9\nttft_p99_ms = 8", ["ttft_p50_ms 9 ms > ttft_p99_ms 8 ms"]),
        ("e2e_p99_ms = 9\ne2e_p999_ms = 8", ["e2e_p99_ms 9 ms > e2e_p999_ms 8 ms"]),
        ("ttft_p50_ms = 9\nttft_p99_ms = 9\ntpot_p99_ms = 8", []),
        ("ttft_p50_ms = 9\nclass.a.ttft_p99_ms = 8", []),
    ],
)
def test_a_lower_quantile_is_not_above_a_higher_one(write, limits, expected):
    findings = found(write(row(limits)), "quantile-order")
    assert expected == [one.text.split(":")[0] for one in findings]


def test_more_sequences_raise_throughput_and_tpot(write):
    falling = row("tpot_p50_ms = 20\noutput_tok_s = 200")
    falling += row("tpot_p50_ms = 15\noutput_tok_s = 150", seqs=16)
    findings = found(write(falling), "monotony")
    assert ["tpot_p50_ms falls from 20 ", "output_tok_s falls from 200 "] == [
        one.text.split("(")[0] for one in findings
    ]
    assert {"warning"} == {one.severity for one in findings}
    within_noise = row("tpot_p50_ms = 20") + row("tpot_p50_ms = 19.5", seqs=16)
    assert [] == found(write(within_noise), "monotony")
    of_others = row("tpot_p50_ms = 20") + row("tpot_p50_ms = 15", seqs=16, scenario="mixed")
    assert [] == found(write(of_others), "monotony")


def test_ttft_rises_only_where_the_closed_loop_grows_too(write):
    grows = row("ttft_p99_ms = 200", more="concurrency = 8")
    grows += row("ttft_p99_ms = 100", seqs=16, more="concurrency = 16")
    assert 1 == len(found(write(grows), "monotony"))
    fixed = grows.replace("concurrency = 8", "concurrency = 16")
    assert [] == found(write(fixed), "monotony")


def test_what_a_row_accepts_is_no_error(write):
    limits = "tpot_p50_ms = 10\noutput_tok_s = 801"
    path = write(row(limits, more="accept = ['littles-law']"))
    (finding,) = found(path, "littles-law")
    assert "accepted" == finding.severity


def test_rows_measured_with_an_older_vllm_or_another_driver_are_stale(write):
    path = write(row("ttft_p99_ms = 9", more='driver = "570"'))
    assert [] == found(path, "provenance", vllm_version="0.31.9", driver="570")
    (finding,) = found(path, "provenance", vllm_version="0.32.0", driver="580")
    assert (
        "measured with vLLM 0.31.0, now it is 0.32.0 and measured with driver 570, now it is 580; "
        "it is 30 days old, of 2026-01-30"
    ) == finding.text
    newer = row("ttft_p99_ms = 9", seqs=16, more='vllm_version = "0.40.1"')
    (finding,) = found(write(row("ttft_p99_ms = 9") + newer), "provenance")
    assert "now it is 0.40.1" in finding.text


def test_reported_rows_are_told_with_their_age(write):
    path = write(row("ttft_p99_ms = 9", more="date = 2026-02-01"), provenance="reported")
    (finding,) = found(path, "provenance")
    assert finding.text.endswith("it is 28 days old, of 2026-02-01")


def test_rows_that_nobody_uses_are_told(write):
    path = write(row("ttft_p99_ms = 9") + row("ttft_p99_ms = 9", seqs=16))
    used = {"a100-80gb/llama-3-8b": {"uniform max_num_seqs=16"}}
    assert ["uniform max_num_seqs=8"] == [one.row for one in found(path, "unused", used=used)]
    assert [] == found(path, "unused", used={"h100/llama-3-8b": set()})


def test_a_malformed_file_is_a_finding_and_the_others_are_still_checked(write, tmp_path):
    write(row("tftt_p99_ms = 9"), device="h100-80gb")
    write(row("ttft_p50_ms = 9\nttft_p99_ms = 8"))
    findings = [one for one in lint([tmp_path], today=TODAY) if one.severity == "error"]
    assert [("quantile-order", 15), ("schema", 15)] == [(one.law, one.line) for one in findings]


def test_a_file_that_no_session_would_find_is_told(write, tmp_path):
    path = write(row("ttft_p99_ms = 9"))
    moved = path.rename(tmp_path / "other.toml")
    (finding,) = found(moved, "schema")
    assert "move it to a100-80gb/llama-3-8b.toml" in finding.text


def test_nothing_to_lint_is_an_error(tmp_path):
    with pytest.raises(ThresholdsError, match="has no threshold files"):
        lint([tmp_path], today=TODAY)
    with pytest.raises(ThresholdsError, match="no such file"):
        lint([tmp_path / "x.toml"], today=TODAY)


def test_the_command_says_file_line_numbers_and_law(write, capsys):
    path = write(row("ttft_p50_ms = 9\nttft_p99_ms = 8"))
    assert 1 == main(["lint", str(path)])
    text = capsys.readouterr().out
    assert f"{path}:15: error: row uniform max_num_seqs=8: ttft_p50_ms 9 ms > ttft_p99" in text
    assert "[quantile-order]\n1 errors, 0 warnings, 0 accepted\n" in text


def test_warnings_count_where_they_are_asked_to(write, capsys, tmp_path):
    path = write(row("ttft_p99_ms = 9") + row("ttft_p99_ms = 9", seqs=16))
    report = tmp_path / "slo.json"
    results = [{"row_title": "uniform max_num_seqs=8", "thresholds": str(path)}]
    report.write_text(json.dumps({"results": results}))
    arguments = ["lint", str(path), "--used", str(report)]
    assert [0, 1] == [main(arguments), main([*arguments, "--strict"])]
    assert "row uniform max_num_seqs=16: no test used it" in capsys.readouterr().out


def test_a_report_that_is_none_is_one_clear_error(write, capsys):
    path = write(row("ttft_p99_ms = 9"))
    assert 2 == main(["lint", str(path), "--used", str(path)])
    assert "is no report of a session" in capsys.readouterr().err
