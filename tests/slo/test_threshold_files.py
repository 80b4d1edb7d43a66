import tomllib
from pathlib import Path

import pytest

from vllm_slo.errors import ThresholdsError
from vllm_slo.settings import Settings
from vllm_slo.slo.thresholds import Thresholds, find

REPO = Path(__file__).parents[2]
META = '[meta]\ndevice = "d"\nmodel = "m"\nprovenance = "target"\n'
ROW = '[[row]]\nscenario = "uniform"\nsettings = { max_num_seqs = 8 }\n[row.limits]\n'


def parse(body: str, meta: str = META) -> Thresholds:
    return Thresholds.parse(meta + body, Path("t.toml"))


def error_of(body: str, meta: str = META) -> str:
    with pytest.raises(ThresholdsError) as caught:
        parse(body, meta)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("ttft_p99_ms = 852", "ttft p(99) < 852ms"),
        ("tpot_p50_ms = 31.5", "tpot p(50) < 31.5ms"),
        ("e2e_p99_ms = 1234567.8", "e2e p(99) < 1234567.8ms"),
        ("itl_p999_ms = 900", "itl p(99.9) < 900ms"),
        ("e2e_p5_ms = 10", "e2e p(5) < 10ms"),
        ("output_tok_s = 1240", "output >= 1,240 tok/s"),
        ("total_tok_s = 1240.5", "total >= 1240.5 tok/s"),
        ("goodput = 0.99", "goodput >= 0.99"),
        ("preemptions = 0", "preemptions <= 0 a round"),
        ("preemptions = { min = 1 }", "preemptions >= 1 a round"),
        ("preemptions_per_minute = 12", "preemptions <= 12/min"),
        ("sm_utilisation_percent = 58", "sm utilisation >= 58%"),
        ("class.long.ttft_p99_ms = 900", "ttft{class:long} p(99) < 900ms"),
    ],
)
def test_a_limit_reads_as_k6_writes_thresholds(written, text):
    (limit,) = parse(ROW + written).rows[0].limits
    assert text == limit.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ROW + "ttft_p99_ms = nan", "t.toml:9: row uniform max_num_seqs=8: limits.ttft_p99_ms"),
        (ROW + "ttft_p99_ms = inf", "must be a finite number, not inf"),
        (ROW + "ttft_p99_ms = -1", "must not be negative: -1"),
        (ROW + "ttft_p99_ms = 0", "must be more than 0"),
        (ROW + 'ttft_p99_ms = "1"', "must be a number, not '1'"),
        (ROW + "ttft_p99_ms = true", "must be a number, not True"),
        (ROW + "ttft_p99_ms = { max = 3 }", "limits.ttft_p99_ms.max has one direction only"),
        (ROW + "ttft_p99_ms = { most = 3 }", "limits.ttft_p99_ms.most is not a known key"),
        (ROW + "tftt_p99_ms = 1", "tftt_p99_ms is not a known limit: did you mean ttft_p99_ms?"),
        (ROW + "ttft_p99_s = 1", "ttft_p99_s is not a known limit: did you mean ttft_p99_ms?"),
        (ROW + "ttft_p100_ms = 1", "ttft_p100_ms names no percentile: write p1 to p99"),
        (ROW + "ttft_p0_ms = 1", "names no percentile"),
        (ROW + "ttft_p990_ms = 1", "leave the 0 out"),
        (ROW + "ttft_p99_ms = 1" + "0" * 400, "t.toml:9: row uniform max_num_seqs=8: limits.ttft"),
        (ROW + "ttft_p99_ms = 1" + "0" * 5000, "t.toml:1: has a number of too many digits"),
        (ROW.replace("8 }", "8, x = nan }") + "goodput = 0.9", "settings.x must be a finite"),
        (
            ROW.replace("8 }", "8, x = [{ y = 2026-01-01 }] }") + "goodput = 0.9",
            "t.toml:7: row uniform max_num_seqs=8,x=",
        ),
        (ROW + "goodput = 99", "must be at most 0.99999, not 99"),
        (ROW + "preemptions = { min = 3, max = 2 }", "has a min above its max"),
        (ROW + "preemptions = {}", "limits.preemptions is empty"),
        (ROW + "class.long.output_tok_s = 3", "limits.class.long.output_tok_s is a figure of the"),
        (ROW + "class.long = 3", "limits.class.long must be a table"),
        (ROW, "t.toml:8: row uniform max_num_seqs=8: limits is empty"),
        ('[[row]]\nscenario = "x"', "t.toml:5: row x (any settings): limits is missing"),
        ('[[row]]\nscenario = "x"\nlimits = 3', "t.toml:7: row x (any settings): limits must be"),
        ("[[row]]\nlimits.goodput = 0.9", "scenario is missing"),
        ("[[row]]\nscenario = 3", "scenario must be text in quotes, not 3"),
        ("[row]\nscenario = 'x'", "row must be an array of tables"),
        ("rows = 1", "t.toml:5: meta.rows is not a known key"),
        (
            ROW + "goodput = 0.9\n[[rows]]\n",
            "t.toml:10: rows is not a known key: did you mean row?",
        ),
        (
            ROW.replace("max_num_seqs", "max_num_seq") + "goodput = 0.9",
            "did you mean max_num_seqs?",
        ),
        (ROW.replace("= 8", "= 0") + "goodput = 0.9", "must be a whole number >= 1, not 0"),
        (
            ROW.replace("= { max_num_seqs = 8 }", "= 8") + "goodput = 0.9",
            "settings must be a table",
        ),
        (
            ROW.replace("[row.", "advisory = 1\n[row.") + "goodput = 0.9",
            "advisory must be true, or",
        ),
        (
            ROW.replace("[row.", "advisory = ['ttft_p99']\n[row.") + "ttft_p99_ms = 9",
            "advisory names 'ttft_p99', which is none of this row's limits: did you mean",
        ),
        (
            ROW.replace("[row.", "accept = ['littleslaw']\n[row.") + "ttft_p99_ms = 9",
            "accept names 'littleslaw', which is none of the lint rules: did you mean littles-law?",
        ),
        (ROW.replace("[row.", "concurrency = 0\n[row.") + "goodput = 0.9", "concurrency must be a"),
        (
            ROW + "goodput = 0.9\n" + ROW + "goodput = 0.8",
            "t.toml:10: row uniform max_num_seqs=8: is there twice, first in line 5",
        ),
        (ROW + "ttft_p99_ms = 1\nttft_p99_ms = 2", "t.toml:10: is not valid TOML"),
        (ROW + "ttft_p99_ms =", "t.toml:9: is not valid TOML"),
        ('[[row]]\nscenario = "uni', "t.toml:6: is not valid TOML"),
    ],
)
def test_a_fault_names_file_line_row_and_key(body, expected):
    assert expected in error_of(body)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ("", "t.toml:1: meta is missing"),
        (META.replace('device = "d"\n', ""), "t.toml:1: meta.device is missing"),
        (META.replace("target", "guessed"), "t.toml:4: meta.provenance must be one of reported,"),
        (META.replace('provenance = "target"\n', ""), "meta.provenance is missing"),
        (META.replace("target", "reported"), "source is missing: limits that are reported need"),
        (META.replace("target", "measured"), "vllm_version is missing: limits that are measured"),
        (META + "headroom = -0.1\n", "t.toml:5: meta.headroom must be a share from 0 to 100"),
        (META + 'date = "soon"\n', "t.toml:5: meta.date must be a date such as 2026-01-31"),
        (META + "devices = 1\n", "t.toml:5: meta.devices is not a known key: did you mean device?"),
    ],
)
def test_a_fault_of_the_header_is_one_clear_error(meta, expected):
    assert expected in error_of(ROW + "goodput = 0.9", meta)


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path):
    with pytest.raises(ThresholdsError, match=r"none\.toml: cannot be read: No such file"):
        Thresholds.load(tmp_path / "none.toml")
    with pytest.raises(ThresholdsError, match="cannot be read: Is a directory"):
        Thresholds.load(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(META.encode() + b"# caf\xe9\n")
    with pytest.raises(ThresholdsError, match=r"latin\.toml:5: is not UTF-8 \(byte 0xe9\)"):
        Thresholds.load(latin)


def test_a_half_written_file_is_refused_wherever_it_was_cut():
    path = REPO / "thresholds/a100-80gb/llama-3-8b.toml"
    whole = path.read_text(encoding="utf-8")
    for end in range(0, whole.index("[[row]]"), 7):
        with pytest.raises(ThresholdsError, match=r"llama-3-8b\.toml:"):
            Thresholds.parse(whole[:end], path).row("uniform", Settings(max_num_seqs=8))


def test_deep_nesting_is_an_error_and_no_crash():
    assert "nested too deep" in error_of("x = " + "[" * 5000)


def test_a_row_matches_a_run_that_has_more_settings_than_it_names():
    thresholds = parse(ROW + "goodput = 0.9")
    run = Settings(max_num_seqs=8, max_model_len=2048, extra={"seed": 3})
    assert thresholds.rows[0] == thresholds.row("uniform", run)


def test_the_row_that_names_most_of_the_settings_wins():
    thresholds = parse(
        ROW
        + "goodput = 0.9\n"
        + ROW.replace("8 }", "8, max_num_batched_tokens = 'unlimited', seed = 3 }")
        + "goodput = 0.8"
    )
    wide = Settings(max_num_seqs=8, max_num_batched_tokens="unlimited", extra={"seed": 3})
    narrow = Settings(max_num_seqs=8, max_num_batched_tokens=512)
    assert (0.8, 0.9) == tuple(
        thresholds.row("uniform", settings).limits[0].value for settings in (wide, narrow)
    )


def test_two_rows_that_match_equally_well_are_an_error():
    thresholds = parse(
        ROW + "goodput = 0.9\n" + ROW.replace("max_num_seqs", "max_model_len") + "goodput = 0.8"
    )
    with pytest.raises(ThresholdsError, match=r"t.toml:10: .* line 5 .* and line 10 .* match"):
        thresholds.row("uniform", Settings(max_num_seqs=8, max_model_len=8))


def test_a_missing_row_comes_with_lines_that_can_be_added_as_they_are():
    thresholds = parse(ROW + "ttft_p99_ms = 300\noutput_tok_s = 99.5")
    settings = Settings(max_num_seqs=16, max_model_len=2048)
    with pytest.raises(ThresholdsError) as caught:
        thresholds.row("uniform", settings)
    message = str(caught.value)
    lines = message[message.index("[[row]]") : message.index("\nor let")]
    assert [
        {
            "scenario": "uniform",
            "settings": {"max_num_seqs": 16},
            "limits": {"ttft_p99_ms": 300, "output_tok_s": 99.5},
        }
    ] == tomllib.loads(lines)["row"]
    grown = parse(ROW + "ttft_p99_ms = 300\noutput_tok_s = 99.5\n" + lines)
    assert grown.rows[1] == grown.row("uniform", settings)


def test_a_missing_row_is_proposed_with_what_was_measured():
    with pytest.raises(ThresholdsError, match=r"(?s)with 20% headroom.*ttft_p99_ms = 149\n"):
        parse(ROW + "goodput = 0.9").row(
            "mixed", Settings(max_num_seqs=16), figures={"ttft_p99_ms": 123.4}
        )


def test_rows_that_no_test_used_are_told():
    thresholds = parse(ROW + "goodput = 0.9\n" + ROW.replace("8", "9") + "goodput = 0.9")
    assert [thresholds.rows[1]] == thresholds.unused({"uniform max_num_seqs=8"})


def test_a_row_for_a_scenario_that_does_not_exist_is_an_error():
    thresholds = parse(ROW + "goodput = 0.9")
    thresholds.check_scenarios({"uniform"})
    with pytest.raises(ThresholdsError, match=r"t.toml:5: .*no test has .*did you mean uniforms?"):
        thresholds.check_scenarios({"uniforms", "mixed"})


def test_a_row_may_have_another_provenance_than_its_file():
    meta = META.replace('"target"', '"reported"\nsource = "a document"\n')
    row = parse(ROW.replace("[row.", "provenance='target'\n[row.") + "goodput = 0.9", meta).rows[0]
    assert ("target", None) == (row.provenance.kind, row.provenance.source)


def test_no_file_for_a_device_lists_those_there_are():
    with pytest.raises(ThresholdsError, match=r"(?s)device h100-80gb .* a100-80gb/llama-3-8b\n"):
        find(REPO / "thresholds", "h100-80gb", "llama-3-8b")
    with pytest.raises(ThresholdsError, match="no such folder"):
        find(REPO / "nothing", "h100-80gb", "llama-3-8b")
    with pytest.raises(ThresholdsError, match="cannot name a threshold file"):
        find(REPO / "thresholds", "..", "llama-3-8b")


def test_a_file_in_another_devices_place_is_an_error(tmp_path):
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100/m.toml").write_text(META + ROW + "goodput = 0.9")
    with pytest.raises(ThresholdsError, match=r"m.toml:2: meta.device is 'd', and .* says 'h100'"):
        find(tmp_path, "h100", "m")


def test_the_reported_tables_are_checked_in_whole_and_throughput_does_not_gate():
    rows = find(REPO / "thresholds", "a100-80gb", "llama-3-8b").rows
    tables = [row for row in rows if row.provenance.kind == "reported"]
    assert [
        ("uniform", {"max_num_seqs": 8}, [112, 168, 31, 42, 1240]),
        ("uniform", {"max_num_seqs": 16}, [221, 387, 32, 51, 2180]),
        ("uniform", {"max_num_seqs": 32}, [418, 852, 34, 89, 3320]),
        ("uniform", {"max_num_seqs": 64}, [836, 3241, 38, 487, 3580]),
        ("mixed", {"max_num_seqs": 32}, [562, 3698, 51, 924]),
        ("chunk", {"max_num_batched_tokens": 512, "max_num_seqs": 64}, [245, 58]),
        ("chunk", {"max_num_batched_tokens": 1024, "max_num_seqs": 64}, [441, 72]),
        ("chunk", {"max_num_batched_tokens": 2048, "max_num_seqs": 64}, [715, 84]),
        ("chunk", {"max_num_batched_tokens": "unlimited", "max_num_seqs": 64}, [3241, 95]),
    ] == [(r.scenario, dict(r.settings), [limit.value for limit in r.limits]) for r in tables]
    assert {"output_tok_s"} == {
        limit.name for row in rows for limit in row.limits if limit.advisory
    }
