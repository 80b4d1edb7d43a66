"""How verdicts become outcomes of tests, lines of output and exit statuses."""

import pytest

FAILS = {"uniform": "ttft_p50_ms = 200\ntpot_p50_ms = 5"}
UNDECIDED = {"uniform": "ttft_p99_ms = 1000"}


def test_a_pass_is_a_pass_and_the_table_says_so(suite):
    result = suite.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*service-level objectives*", "uniform*PASS*"])
    assert 0 == result.ret


def test_a_fail_names_row_limit_measured_value_log_and_command(suite):
    result = suite.rows(FAILS).run("--slo-seed=3")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    failure = text[text.index("= FAILURES =") : text.index("= service-level objectives =")]
    lines = failure.splitlines()
    assert "FAIL: uniform (any settings): tpot p(50) < 5ms, measured 10.1" == lines[2]
    assert lines[3].startswith("  FAIL tpot p(50) < 5ms: measured 10.")
    assert [
        f"row: {suite.thresholds}:5",
        "server log: logs/seqs4.log",
        "run it again: pytest 'test_it.py::test_uniform[seqs4]' --slo-target=sim --slo-seed=3",
    ] == lines[4:7]
    assert "Traceback" not in text
    assert "checking.py" not in text
    result.stdout.fnmatch_lines(
        ["FAILED test_it.py::test_uniform* - *FAIL: uniform * measured 10.1"]
    )


def test_the_command_to_run_again_is_as_seen_from_where_pytest_was_called(suite, monkeypatch):
    folder = suite.path / "deeper"
    folder.mkdir()
    (suite.path / "test_it.py").rename(folder / "test_it.py")
    monkeypatch.chdir(folder)
    result = suite.rows(FAILS).run(
        f"--rootdir={suite.path}", f"-c={suite.path / 'tox.ini'}", f"--confcutdir={suite.path}"
    )
    result.stdout.fnmatch_lines(["run it again: pytest 'test_it.py::test_uniform*"])


def test_inconclusive_is_a_category_of_its_own(suite):
    result = suite.rows(UNDECIDED).run("--slo-rounds=5")
    assert 1 == result.ret
    result.stdout.fnmatch_lines(
        [
            "test_it.py I *",
            "*= INCONCLUSIVE =*",
            "*_ test_uniform?seqs4? _*",
            "INCONCLUSIVE: uniform (any settings): ttft p(99) < 1000ms, measured 102",
            "  INCONCLUSIVE ttft p(99) < 1000ms: measured *needs*",
            "run it again: *",
            "*= 1 inconclusive in *",
        ]
    )
    result.stdout.no_fnmatch_line("*= FAILURES =*")
    suite.run("--slo-rounds=5", "-v").stdout.fnmatch_lines(["*::test_uniform?seqs4? INCONCLUSIVE*"])


@pytest.mark.parametrize(("mode", "status"), [("fail", 1), ("skip", 0), ("pass", 0)])
def test_inconclusive_does_to_its_test_what_the_option_says(suite, mode, status):
    after = "@at(4)\ndef test_after(vllm_server): pass\n"
    suite.rows(UNDECIDED).tests(test_z=after)
    result = suite.run("--slo-rounds=5", f"--slo-inconclusive={mode}", "-x")
    assert status == result.ret
    counts = "1 passed, 1 inconclusive" if status == 0 else "1 inconclusive"
    result.stdout.fnmatch_lines(["*= INCONCLUSIVE =*", f"*= {counts} in *"])


def test_a_test_goes_on_after_an_inconclusive_check_that_passes(suite):
    suite.rows({**UNDECIDED, "other": FAILS["uniform"]}).tests(
        test_it="""
@at(4)
def test_two(vllm_server, load, slo):
    run = load(TRAFFIC)
    slo.check(run, row="uniform")
    slo.check(run, row="other")
"""
    )
    result = suite.run("--slo-rounds=5", "--slo-inconclusive=pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL: other*"])
    result.stdout.no_fnmatch_line("*1 inconclusive*")


def test_a_run_that_measured_something_else_is_never_pass(suite):
    suite.tests(
        test_it="""
@at(4)
def test_preempts(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform", expect_preemptions=True)
"""
    )
    result = suite.run()
    assert 1 == result.ret
    result.stdout.fnmatch_lines(["INVALID: uniform*", "  0 preemptions where some are expected*"])


@pytest.mark.parametrize(
    ("script", "rows", "status"),
    [
        ("", {"uniform": "ttft_p50_ms = 200"}, 0),
        ("", FAILS, 10),
        ("", UNDECIDED, 11),
        ("preemptions=3", FAILS, 12),
        ("refuses=(4,)", FAILS, 12),
        ("breaks_in_round=2, breaks_with='dies'", UNDECIDED, 12),
    ],
)
def test_exit_codes_tell_fail_from_inconclusive_from_broken(suite, script, rows, status):
    suite.script(script).rows(rows).tests(
        test_it="""
@at(4)
def test_uniform(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform", expect_preemptions=False)
"""
    )
    result = suite.run("--slo-exit-codes", "--slo-rounds=5")
    assert status == result.ret


TWO = """
@at(4)
@pytest.mark.parametrize("row", ["uniform", "other"])
def test_row(vllm_server, load, slo, row):
    slo.check(load(TRAFFIC), row=row{more})
"""


@pytest.mark.parametrize(
    ("second", "more", "status"),
    [
        ("tpot_p50_ms = 1", "", 10),
        ("ttft_p99_ms = 1000", ", expect_preemptions=row == 'uniform' and None", 11),
        ("ttft_p99_ms = 1000", ", expect_preemptions=None if row == 'uniform' else True", 12),
    ],
)
def test_the_gravest_outcome_gives_the_exit_code(suite, second, more, status):
    suite.rows({**UNDECIDED, "other": second}).tests(test_it=TWO.format(more=more))
    assert status == suite.run("--slo-exit-codes", "--slo-rounds=5").ret


def test_a_failure_of_another_kind_is_not_hidden_behind_inconclusive(suite):
    suite.rows(UNDECIDED).tests(test_other="def test_plain(): assert 1 == 2\n")
    assert 1 == suite.run("--slo-exit-codes", "--slo-rounds=5").ret


def test_exit_status_stays_pytests_by_default(suite):
    assert 1 == suite.rows(FAILS).run().ret


def test_an_expected_failure_is_no_fail_of_the_session(suite):
    suite.rows(FAILS).tests(
        test_it="""
@pytest.mark.xfail(strict=True)
@at(4)
def test_uniform(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform")
"""
    )
    result = suite.run("--slo-exit-codes")
    result.assert_outcomes(xfailed=1)
    assert 0 == result.ret


def test_a_missing_row_fails_with_the_lines_to_add(suite):
    suite.rows({"other": "ttft_p50_ms = 200"})
    result = suite.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{suite.thresholds}: no row for scenario uniform with seqs4; there are",
            "[[][[]row]]",
            'scenario = "uniform"',
            "settings = {max_num_seqs = 4}",
            "ttft_p99_ms = *",
            "or let a run write what it measures: pytest --slo-update",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_notes_stand_beside_the_verdict(suite):
    suite.tests(
        test_it="""
@at(4)
def test_uniform(vllm_server, load, slo):
    run, base = load(TRAFFIC), load(TRAFFIC)
    slo.note(cost_usd=1.25)
    slo.note_ratio(run, base, "tpot_p99_ms")
    slo.check(run, row="uniform")
"""
    )
    result = suite.run()
    result.stdout.fnmatch_lines(["*cost_usd: 1.25", "*tpot_p99_ms to uniform: 1.00"])


def test_a_test_that_judges_nothing_leaves_no_word(suite):
    suite.tests(
        test_it="""
@at(4)
def test_own_assertion(vllm_server, load):
    assert load(TRAFFIC).records
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*cut short*")
