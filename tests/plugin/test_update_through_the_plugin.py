"""`--slo-update`, from runs to the threshold file."""

import tomllib

import pytest


@pytest.fixture
def suite(suite):
    """With rounds that are large enough for a p99 to be proposed."""
    return suite.tests(
        test_it="""
TRAFFIC = uniform(input_tokens=16, output_tokens=8, requests=160, concurrency=4)
@at(4)
def test_uniform(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform")
"""
    )


def rows(suite):
    return tomllib.loads(suite.thresholds.read_text())["row"]


def test_a_file_that_is_not_there_is_written(suite):
    suite.thresholds.unlink()
    result = suite.run("--slo-update", "--slo-seed=4")
    result.assert_outcomes(passed=1)
    (row,) = rows(suite)
    assert ("uniform", {"max_num_seqs": 4}, 4, 0.2, 4000) == (
        row["scenario"],
        row["settings"],
        row["concurrency"],
        row["headroom"],
        row["seed"],
    )
    assert 120 < row["limits"]["ttft_p99_ms"] < 125  # 102 and a fifth
    assert ("measured", "0.32.0") == (row["provenance"], row["vllm_version"])
    result.stdout.fnmatch_lines(
        ["*- threshold updates -*", "--- /dev/null", f"+++ {suite.thresholds}", "+[[][[]row]]"]
    )
    suite.run().assert_outcomes(passed=1)


def test_a_limit_is_tightened_and_the_comment_stays(suite):
    suite.rows({"uniform": "ttft_p50_ms = 900  # ours\ntpot_p50_ms = 10.5"}, provenance="measured")
    result = suite.run("--slo-update")
    result.assert_outcomes(passed=1)
    text = suite.thresholds.read_text()
    assert "ttft_p50_ms = 122  # ours" in text
    assert "tpot_p50_ms = 10.5" in text  # 10.1 and a fifth would be looser
    result.stdout.fnmatch_lines(["-ttft_p50_ms = 900  # ours", "+ttft_p50_ms = 122  # ours"])


@pytest.mark.parametrize("allow", [False, True])
def test_a_limit_is_loosened_only_where_allowed(suite, allow):
    suite.rows({"uniform": "tpot_p50_ms = 5"}, provenance="measured")
    result = suite.run("--slo-update", *(["--slo-allow-loosen"] if allow else []))
    result.assert_outcomes(passed=int(allow), failed=int(not allow))
    assert allow == ("tpot_p50_ms = 5\n" not in suite.thresholds.read_text())


@pytest.mark.parametrize(
    ("script", "test", "why"),
    [
        ("", "uniform", "the run is INCONCLUSIVE"),
        ("preemptions=2", "uniform', expect_preemptions=False) #", "the run is not valid"),
    ],
)
def test_nothing_is_written_from_a_run_that_cannot_be_trusted(suite, script, test, why):
    suite.script(script).rows({"uniform": "ttft_p99_ms = 9000"}, provenance="measured")
    suite.tests(
        test_it=f"@at(4)\ndef test_it(vllm_server, load, slo):\n"
        f"    slo.check(load(TRAFFIC), row='{test}')\n"
    )
    before = suite.thresholds.read_text()
    result = suite.run("--slo-update", "--slo-rounds=5")
    assert 1 == result.ret
    assert before == suite.thresholds.read_text()
    result.stdout.fnmatch_lines([f"uniform (any settings): not written: {why}*"])


def test_a_run_of_which_one_round_was_lost_proposes_nothing(suite):
    suite.script("breaks_in_round=5, breaks_with='dies'").thresholds.unlink()
    result = suite.run("--slo-update")
    assert 1 == result.ret
    assert not suite.thresholds.exists()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not written: *the server died in round 5*"])


def test_a_new_row_that_cannot_be_written_is_inconclusive(suite):
    suite.thresholds.unlink()
    result = suite.run("--slo-update", "--slo-rounds=1", "--slo-exit-codes")
    assert 11 == result.ret
    assert not suite.thresholds.exists()
    result.stdout.fnmatch_lines(
        [
            "INCONCLUSIVE: no row judges uniform, and no limits were written: *",
            "*= 1 inconclusive *",
        ]
    )


def test_the_update_needs_a_place_that_can_be_written(suite):
    suite.thresholds.unlink()
    suite.thresholds.parent.rmdir()
    suite.thresholds.parent.touch()
    result = suite.run("--slo-update")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --slo-update: * cannot be written: *"])
    assert [] == suite.boots()
