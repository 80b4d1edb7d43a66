"""Under pytest-xdist: workers measure, the controller tells and writes."""

import json

import pytest

SWEEP = """
@at(2, 4)
@pytest.mark.parametrize("row", ["uniform", "other"])
def test_sweep(vllm_server, load, slo, row):
    slo.check(load(TRAFFIC), row=row)
"""
ROWS = {"uniform": "ttft_p50_ms = 200", "other": "tpot_p50_ms = 5", "unused": "tpot_p50_ms = 5"}


@pytest.fixture
def sweep(suite):
    return suite.rows(ROWS).tests(test_it=SWEEP)


def test_results_of_all_workers_come_together(sweep):
    sweep.rows({**ROWS, "open": "ttft_p99_ms = 1000"}).tests(
        test_open="@at(2)\ndef test_open(vllm_server, load, slo):\n"
        '    slo.check(load(TRAFFIC), row="open")\n'
    )
    result = sweep.run_apart(
        *("-n2", "--dist=loadgroup", "--slo-rounds=5", "--slo-exit-codes"),
        *("--slo-json=slo.json", "--benchmark-json=b.json"),
    )
    assert 10 == result.ret
    result.assert_outcomes(passed=2, failed=2)
    lines = result.stdout.lines
    assert 1 == len([line for line in lines if "service-level objectives" in line])
    result.stdout.fnmatch_lines(
        [
            "FAIL: other (any settings): tpot p(50) < 5ms, measured 10.1",
            "run it again: pytest 'test_it.py::test_sweep[[]other-seqs?[]]' --slo-target=sim*",
            "*= INCONCLUSIVE =*",
            "INCONCLUSIVE: open *",
            f"{sweep.thresholds}:*: no test used row unused (any settings)",
            "*1 inconclusive*",
        ]
    )
    result.stdout.no_fnmatch_line("*without --dist loadgroup*")
    report = json.loads((sweep.path / "slo.json").read_text())
    boots = sweep.boots()
    assert (5, len(boots), 10) == (
        len(report["results"]),
        report["boots"],
        report["exit_status"],
    )
    assert {200} == {
        sum(len(one["records"]) for one in result["run"]["rounds"]) for result in report["results"]
    }
    assert {"seqs2", "seqs4"} == set(boots)
    # pytest-benchmark switches itself off in workers, and says so.
    assert not (sweep.path / "b.json").exists()


def test_an_update_is_written_once_by_the_controller(sweep):
    sweep.thresholds.unlink()
    big = "TRAFFIC = uniform(input_tokens=16, output_tokens=8, requests=160, concurrency=4)\n"
    result = sweep.tests(test_it=big + SWEEP).run_apart("-n2", "--slo-update")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["slo: pytest-xdist without --dist loadgroup: each worker opens *"])
    assert 1 == result.stdout.str().count(" threshold updates ")
    assert 4 == sweep.thresholds.read_text().count("[[row]]")
    assert [sweep.thresholds] == list(sweep.thresholds.parent.iterdir())


def test_workers_may_not_share_a_machine_that_is_measured(sweep):
    (sweep.path / "conftest.py").write_text("")
    sweep.thresholds.parent.rename(sweep.path / "thresholds" / "a100-80gb")
    moved = sweep.path / "thresholds" / "a100-80gb" / "llama-3-8b.toml"
    moved.write_text(moved.read_text().replace("sim-a100-80gb", "a100-80gb"))
    result = sweep.run_apart("-n2", "--slo-device=a100-80gb", "--slo-exit-codes", target="gpu")
    assert 12 == result.ret
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(
        [
            "--slo-target=gpu measures wall-clock time, and 2 pytest-xdist workers would *",
            "run the SLO tests in one process: -n 0 *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    assert not (sweep.path / "slo-report").exists()


def test_a_missing_threshold_file_is_an_error_of_each_test_before_it_boots(sweep):
    sweep.thresholds.unlink()
    result = sweep.run_apart("-n1")
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["*no thresholds for device sim-a100-80gb and model llama-3-8b*"])
    assert [] == sweep.boots()


def test_tests_of_one_server_are_one_group(sweep):
    """What --dist loadgroup goes by; xdist 3.8.0 does not see it under pytest 9.2."""
    sweep.script(
        extra="""
def pytest_collection_finish(session):
    for item in session.items:
        mark = item.get_closest_marker("xdist_group")
        print(item.name, "in", mark.args[0] if mark else None)
"""
    ).tests(test_plain="def test_plain(): pass\n")
    result = sweep.run("--collect-only", "--strict-markers")
    result.stdout.fnmatch_lines_random(
        [
            "test_sweep[[]uniform-seqs2[]] in seqs2",
            "test_sweep[[]other-seqs2[]] in seqs2",
            "test_sweep[[]other-seqs4[]] in seqs4",
            "test_plain in None",
        ]
    )
    sweep.run("--collect-only", "--strict-markers", "-p", "no:xdist").stdout.fnmatch_lines_random(
        ["test_sweep[[]other-seqs4[]] in None"]
    )
