"""What a session writes: JSON, JUnit XML, the GitHub summary, entries of pytest-benchmark."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from vllm_slo.measure.serialise import run_from_dict

SECRET = "hf_0123456789abcdef"


def strict(path):
    """JSON without NaN and Infinity, which Python's reader takes and others refuse."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_json_has_every_row_verdict_and_record(suite):
    suite.rows({"uniform": "ttft_p50_ms = 200\nttft_p99_ms = 1000\ntpot_p50_ms = 5"})
    result = suite.run("--slo-json=deep/er/slo.json", "--slo-rounds=5", "--slo-seed=2")
    path = suite.path / "deep" / "er" / "slo.json"
    result.stdout.fnmatch_lines([f"JSON report: {path}"])
    report = strict(path)
    assert (1, "sim", 1, 1) == (
        report["version"],
        report["target"],
        report["boots"],
        report["exit_status"],
    )
    assert (2, 5, "deep/er/slo.json") == tuple(
        report["options"][name] for name in ("seed", "rounds", "json")
    )
    (result,) = report["results"]
    assert ("test_it.py::test_uniform[seqs4]", "uniform", "FAIL", 5, 200) == tuple(
        result[name] for name in ("nodeid", "row", "outcome", "rounds", "requests")
    )
    assert ["PASS", "INCONCLUSIVE", "FAIL"] == [one["outcome"] for one in result["limits"]]
    low, high = result["limits"][1]["interval"]
    assert 100 < low < 103
    assert high is None  # no upper bound: JSON has no infinity
    run = run_from_dict(result["run"])
    assert [2000, 2001, 2002, 2003, 2004] == [one.seed for one in run.rounds]
    assert 200 == len(run.records)
    assert {8} == {len(record.event_s) for record in run.records}
    assert [path] == list(path.parent.iterdir())


def test_json_says_a_report_even_of_nothing(suite):
    suite.tests(test_it="def test_plain(): pass\n").run("--slo-json=slo.json")
    report = strict(suite.path / "slo.json")
    assert ([], 0, 0) == (report["results"], report["boots"], report["exit_status"])


def test_a_report_that_fails_at_the_end_spoils_neither_table_nor_status(suite):
    suite.script(
        extra="""
def pytest_sessionfinish(session):
    import shutil
    shutil.rmtree(session.config.rootpath / "out")
    (session.config.rootpath / "out").touch()
import pytest
pytest_sessionfinish = pytest.hookimpl(tryfirst=True)(pytest_sessionfinish)
"""
    )
    result = suite.run("--slo-json=out/slo.json")
    assert 1 == result.ret
    result.stdout.fnmatch_lines(["uniform*PASS*", "*not written: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_no_secret_is_in_any_report(suite, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("SLO_API_KEY", "key-" + SECRET)
    summary = suite.path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    suite.script("config={'api_key': '" + SECRET + "', 'block_size': 16}").tests(
        test_it="""
import os
@at(4)
def test_uniform(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform")
def test_prints_it(slo):
    print("key-" + os.environ["HF_TOKEN"])
"""
    )
    result = suite.run("--slo-json=slo.json", "--junitxml=junit.xml", "--benchmark-json=b.json")
    result.assert_outcomes(passed=2)
    for name in ("slo.json", "junit.xml", "summary.md", "b.json"):
        text = (suite.path / name).read_text()
        assert text
        assert SECRET not in text
    assert SECRET not in result.stdout.str()
    assert "block_size" in (suite.path / "slo.json").read_text()


def test_junit_has_the_figures_as_properties(suite):
    suite.rows({"uniform": "tpot_p50_ms = 5"}).run("--junitxml=junit.xml")
    case = ElementTree.parse(suite.path / "junit.xml").find(".//testcase")
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert ("FAIL", "seqs4") == (
        properties["slo.uniform.outcome"],
        properties["slo.uniform.settings"],
    )
    assert 100 < float(properties["slo.uniform.ttft_p50_ms"]) < 102
    assert "tpot p(50) < 5ms" in case.find("failure").text


def test_github_gets_a_table(suite, monkeypatch):
    summary = suite.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    suite.rows({"uniform": "ttft_p50_ms = 200\ntpot_p50_ms = 5"}).run()
    lines = summary.read_text().splitlines()
    assert "before" == lines[0]
    assert "### vLLM SLOs: SIMULATED sim-a100-80gb, llama-3-8b, vLLM 0.32.0" == lines[1]
    assert "| uniform | seqs4 | ttft p(50) &lt; 200ms | 101 | 200 | ✅ PASS |" == lines[5]
    assert "| uniform | seqs4 | tpot p(50) &lt; 5ms | 10.1 | 200 | ❌ FAIL |" == lines[6]
    assert lines[8].startswith("- **FAIL** uniform (any settings): tpot p(50) &lt; 5ms: 200 of 200")


def test_a_summary_that_cannot_be_written_is_said(suite, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(suite.path))
    result = suite.run()
    assert 1 == result.ret
    result.stdout.fnmatch_lines(["*not written: Is a directory"])


def test_benchmark_entries_compare_across_runs(suite):
    rows = {"uniform": "ttft_p50_ms = 200", "other": "tpot_p50_ms = 50"}
    suite.rows(rows).tests(
        test_it="""
@at(4)
def test_uniform(vllm_server, load, slo):
    run = load(TRAFFIC)
    slo.note(cost_usd=2.5)
    slo.check(run, row="uniform")
    slo.check(run, row="other")
"""
    )
    suite.run("--benchmark-json=1.json").assert_outcomes(passed=1)
    suite.script("ttft_ms=150").run("--benchmark-json=2.json").assert_outcomes(passed=1)
    (entry,) = json.loads((suite.path / "1.json").read_text())["benchmarks"]
    assert (200, "slo ttft", "test_it.py::test_uniform[seqs4]") == (
        entry["stats"]["rounds"],
        entry["group"],
        entry["fullname"],
    )
    assert 0.100 < entry["stats"]["min"] < entry["stats"]["median"] < entry["stats"]["max"] < 0.103
    assert ("uniform", "PASS", 2.5, "other") == tuple(
        entry["extra_info"][name] for name in ("row", "outcome", "cost_usd", "other.row")
    )
    assert 10 < entry["extra_info"]["tpot_p50_ms"] < 10.3
    (suite.path / "elsewhere").mkdir()
    compared = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", "../1.json", "../2.json"],
        cwd=suite.path / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "slo ttft': 2 tests" in compared
    assert 2 == compared.count("test_uniform[seqs4]")


@pytest.mark.parametrize(
    "arguments", [[], ["--benchmark-json=b.json", "--benchmark-disable"], ["-p", "no:benchmark"]]
)
def test_no_entries_where_none_are_asked_for(suite, arguments):
    result = suite.run(*arguments)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*benchmark: 1 tests*")
    result.stdout.no_fnmatch_line("*Name (time in*")


def test_the_gpu_fixture_says_why_there_is_nothing_to_see(suite):
    suite.tests(
        test_it="""
@at(4)
def test_gpu(vllm_server, load, gpu):
    assert "the sim target runs on no GPU" == gpu.absent
    assert [] == gpu.facts(load(TRAFFIC))
"""
    )
    suite.run().assert_outcomes(passed=1)
    suite.tests(test_it="def test_a(gpu): assert gpu.absent\ndef test_b(gpu): pass\n")
    result = suite.run("--slo-device=a100-80gb", target="gpu")
    result.assert_outcomes(passed=2)
    assert 1 == result.stdout.str().count("no GPU figures: ")
