"""The whole path on `sim`: real settings, real workloads, virtual time."""

import json
import re

import pytest

SWEEP = """
@pytest.fixture(scope="session", ids=str, params=[
    Settings(max_num_seqs=n, max_num_batched_tokens=2048, max_model_len=1024) for n in (4, 16)])
def server_by_seqs(request, serve):
    return serve(request.param)

def test_uniform(server_by_seqs, load, slo):
    slo.check(load(uniform(input_tokens=128, output_tokens=32)), row="uniform")
"""


@pytest.fixture
def simulated(suite):
    suite.pytester.makeconftest("")
    return suite.tests(test_it=SWEEP)


def test_limits_are_measured_written_and_then_held(simulated):
    simulated.thresholds.unlink()
    simulated.run("--slo-update").assert_outcomes(passed=2)
    first = simulated.thresholds.read_text()
    assert 2 == first.count("[[row]]")
    result = simulated.run("--slo-json=slo.json")
    result.assert_outcomes(passed=2)
    report = json.loads((simulated.path / "slo.json").read_text())
    few, many = (one["figures"] for one in report["results"])
    # What the reference tables show: more sequences, a later p99 of the first token, more tokens.
    assert few["ttft_p99_ms"] < many["ttft_p99_ms"]
    assert few["output_tok_s"] < many["output_tok_s"]
    assert "SIMULATED" in result.stdout.str()


def test_one_limit_at_a_third_fails_its_row_alone(simulated):
    simulated.thresholds.unlink()
    simulated.run("--slo-update").assert_outcomes(passed=2)
    text = simulated.thresholds.read_text()
    limit = re.search(r"ttft_p99_ms = ([\d.]+)", text)
    third = f"ttft_p99_ms = {float(limit[1]) / 3:.3g}"
    simulated.thresholds.write_text(text.replace(limit[0], third, 1))
    result = simulated.run("--slo-exit-codes")
    assert 10 == result.ret
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL: uniform max_model_len=*max_num_seqs=4: ttft p(99) < *ms, measured *",
            "run it again: pytest *",
        ]
    )


def test_the_same_seed_gives_the_same_report(simulated):
    simulated.rows({"uniform": "ttft_p50_ms = 9000"})
    reports = []
    for seed in (1, 1, 2):
        simulated.run(f"--slo-seed={seed}", "--slo-rounds=5", "--slo-json=slo.json")
        text = (simulated.path / "slo.json").read_text()
        reports.append([one["run"]["rounds"] for one in json.loads(text)["results"]])
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]
