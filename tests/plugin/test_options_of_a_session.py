"""Options: three sources, one clear error each, and nothing that boots or imports too early."""

import json
import subprocess
import sys

import pytest

HEAVY = "scipy numpy hypothesis vllm torch matplotlib uvloop httpx httptools rich tomlkit pynvml"


def test_command_line_beats_environment_beats_ini(suite, monkeypatch):
    suite.pytester.makeini(
        "[pytest]\naddopts = --import-mode=importlib\n"
        "slo_seed = 1\nslo_rounds = 7\nslo_budget = 15m\nslo_client =\n"
    )
    monkeypatch.setenv("SLO_SEED", "2")
    monkeypatch.setenv("SLO_ROUNDS", "6")
    monkeypatch.setenv("SLO_BUDGET", "")
    result = suite.run("--slo-seed=3")
    result.stdout.fnmatch_lines(
        [
            "slo: target=sim (--slo-target), rounds=6 (SLO_ROUNDS), budget=900.0 (ini slo_budget), "
            "seed=3 (--slo-seed)"
        ]
    )
    result.assert_outcomes(passed=1)


BAD = [
    ("seed", "x", "a whole number of at least 0"),
    ("seed", "-1", "a whole number of at least 0"),
    ("rounds", "0", "a whole number of at least 1"),
    ("rounds", "2.5", "a whole number of at least 1"),
    ("budget", "soon", "a time such as 90s, 15m or 2h"),
    ("budget", "nan", "a time such as 90s, 15m or 2h"),
    ("budget", "-5s", "a time such as 90s, 15m or 2h"),
    ("boot-timeout", "inf", "a time such as 90s or 10m"),
    ("request-timeout", "0", "a time such as 90s or 5m"),
    ("client", "curl", "one of wire, httpx"),
    ("inconclusive", "ignore", "one of fail, skip, pass"),
    ("sim-scheduler", "mine", "one of builtin, vllm"),
    ("target", "tpu", "auto, sim, emulated, gpu or a URL that starts with http"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), BAD)
@pytest.mark.parametrize("source", ["line", "environment", "ini"])
def test_a_bad_value_names_its_source_and_what_is_allowed(
    suite, monkeypatch, name, value, allowed, source
):
    key = f"slo_{name.replace('-', '_')}"
    arguments = []
    if source == "line":
        arguments, named = [f"--slo-{name}={value}"], f"--slo-{name}"
    elif source == "environment":
        monkeypatch.setenv(key.upper(), value)
        named = key.upper()
    else:
        suite.pytester.makeini(f"[pytest]\n{key} = {value}\n")
        named = f"ini {key}"
    result = suite.pytester.runpytest_inprocess(*arguments)
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([f"ERROR: {named}: '{value}' is not {allowed}"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("name", ["SLO_UPDATE", "SLO_EXIT_CODES"])
def test_a_switch_in_the_environment_is_true_or_false(suite, monkeypatch, name):
    monkeypatch.setenv(name, "maybe")
    suite.run().stderr.fnmatch_lines([f"ERROR: {name}: 'maybe' is not true or false"])
    monkeypatch.setenv(name, "no")
    suite.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("name", ["json", "device", "report", "thresholds", "model"])
def test_an_empty_value_on_the_command_line_is_an_error(suite, name):
    result = suite.run(f"--slo-{name}=")
    result.stderr.fnmatch_lines([f"ERROR: --slo-{name}: the value is empty"])


@pytest.mark.parametrize("ask", ["--help", "--markers", "--version"])
def test_help_survives_a_broken_configuration(suite, monkeypatch, ask):
    monkeypatch.setenv("SLO_ROUNDS", "many")
    suite.pytester.makeini("[pytest]\nslo_target = tpu\n")
    result = suite.pytester.runpytest_inprocess("--slo-client=curl", ask)
    assert 0 == result.ret
    if ask == "--help":
        result.stdout.fnmatch_lines(["vLLM service-level objectives:", "*--slo-target=TARGET*"])
        result.stdout.fnmatch_lines(["*--slo-client=wire|httpx*", "*--slo-exit-codes*"])


def test_a_url_is_shown_without_its_password(suite):
    result = suite.pytester.runpytest_inprocess(
        "--slo-target=http://ann:hunter2@127.0.0.1:9", "--slo-device=a100-80gb", "-k", "nothing"
    )
    result.stdout.fnmatch_lines(["slo: target http://127.0.0.1:9, device a100-80gb*"])
    assert "hunter2" not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize(
    "arguments",
    [
        ["-q"],
        ["-qq"],
        ["-v"],
        ["--no-header"],
        ["-p", "no:terminal"],
        ["-p", "no:benchmark"],
        ["-p", "no:xdist"],
        ["-p", "no:capture"],
        ["-s"],
        ["--tb=no"],
        ["--tb=line"],
        ["-p", "no:junitxml"],
        ["-W", "error"],
        ["--strict-markers"],
        ["--slo-verbose-boots", "-p", "no:terminal"],
    ],
    ids=" ".join,
)
def test_it_lives_with_other_options_and_missing_plugins(suite, arguments):
    suite.rows({"uniform": "ttft_p50_ms = 200"})
    assert 0 == suite.run(*arguments).ret
    suite.rows({"uniform": "tpot_p50_ms = 5"})
    assert 1 == suite.run(*arguments).ret


def test_exitfirst_stops_and_says_nothing_about_unused_rows(suite):
    suite.rows({"uniform": "tpot_p50_ms = 5", "other": "tpot_p50_ms = 50"}).tests(
        test_z="@at(8)\ndef test_z(vllm_server): pass\n"
    )
    result = suite.run("-x")
    result.assert_outcomes(failed=1)
    assert ["seqs4"] == suite.boots()
    result.stdout.no_fnmatch_line("*no test used*")


def test_an_unused_row_is_reported_where_all_tests_ran(suite):
    suite.rows({"uniform": "ttft_p50_ms = 200", "other": "tpot_p50_ms = 50"})
    said = f"{suite.thresholds}:9: no test used row other (any settings)"
    suite.run().stdout.fnmatch_lines([said])
    suite.tests(test_plain="def test_plain(): pass\n")
    for left_out in (["-k", "uniform"], ["test_it.py"], ["test_it.py::test_uniform"]):
        result = suite.run(*left_out)
        result.assert_outcomes(passed=1, deselected=left_out[0] == "-k")
        assert said not in result.stdout.str()


def test_a_test_that_did_not_reach_its_check_leaves_its_row_in_peace(suite):
    suite.rows({"uniform": "ttft_p50_ms = 200", "other": "tpot_p50_ms = 50"}).tests(
        test_z="def test_skipped(slo): pytest.skip('not today')\n"
    )
    suite.run().stdout.no_fnmatch_line("*no test used*")


@pytest.mark.parametrize("spoil", ["missing", "malformed", "elsewhere"])
def test_a_threshold_file_that_cannot_be_read_is_one_error_before_any_boot(suite, spoil):
    if spoil == "missing":
        suite.thresholds.unlink()
        message = f"ERROR: {suite.thresholds}: no thresholds for device sim-a100-80gb and *"
    elif spoil == "malformed":
        suite.rows({"uniform": "ttft_p99_ms = nan"})
        message = f"ERROR: {suite.thresholds}:8: *ttft_p99_ms*"
    else:
        message = "ERROR: *nowhere: no such folder of threshold files*"
    arguments = ["--slo-thresholds=nowhere"] if spoil == "elsewhere" else []
    result = suite.run(*arguments)
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([message])
    assert [] == suite.boots()
    result.stdout.no_fnmatch_line("*Traceback*")
    assert 0 == suite.run(*arguments, "--collect-only").ret
    # Where nothing is judged, nothing is missing.
    suite.tests(test_it="def test_plain(): pass\n")
    suite.run(*arguments).assert_outcomes(passed=1)


def test_a_malformed_file_is_found_before_an_update_too(suite):
    suite.rows({"uniform": "ttft_p99_ms = nan"})
    result = suite.run("--slo-update")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    assert [] == suite.boots()


@pytest.mark.parametrize("path", ["a-file/report.json", "."])
def test_a_report_that_cannot_be_written_is_an_error_at_the_start(suite, path):
    (suite.path / "a-file").touch()
    result = suite.run(f"--slo-json={path}")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --slo-json: * cannot be written: *"])
    assert [] == suite.boots()


def test_collection_boots_nothing_and_imports_nothing_heavy(suite):
    """In a process of its own; Hypothesis's plugin, which imports it, is another matter."""
    suite.pytester.makeconftest(
        f"""
import json, sys
def pytest_unconfigure():
    loaded = [name for name in {HEAVY.split()} if name in sys.modules]
    open("loaded.json", "w").write(json.dumps(loaded))
"""
    )
    (suite.path / "test_it.py").write_text("def test_trivial(): pass\n")
    others = ("-p", "no:hypothesispytest")
    result = suite.run_apart("--collect-only", *others, target="gpu")
    result.stdout.fnmatch_lines(["*<Function test_trivial>*", "*1 test collected*"])
    assert [] == json.loads((suite.path / "loaded.json").read_text())
    suite.run_apart(*others, target="gpu").assert_outcomes(passed=1)
    assert [] == json.loads((suite.path / "loaded.json").read_text())


def test_collecting_slo_tests_boots_binds_and_asks_nothing(suite):
    """Any socket, process or look at a device would raise."""
    suite.pytester.makeconftest(
        """
import sys
NEVER = ("socket.bind", "socket.connect", "subprocess.Popen", "os.posix_spawn", "os.fork")
def pytest_collection(session):
    def hook(event, arguments):
        text = str(arguments[0]) if arguments else ""
        if event in NEVER or event == "open" and text.startswith("/dev/nvidia"):
            raise RuntimeError(f"{event} {text}")
    sys.addaudithook(hook)
"""
    )
    result = suite.run_apart("--collect-only", "--slo-json=x/y.json", target="gpu")
    assert 0 == result.ret
    result.stdout.fnmatch_lines(["*<Function test_uniform?seqs4?>*"])
    assert not (suite.path / "x").exists()
    assert not (suite.path / "slo-report").exists()


def test_importing_the_plugin_costs_pytest_and_little_else():
    """What it loads beyond pytest itself, in modules: a bound that numpy alone would break."""
    count = "import sys, pytest; before = set(sys.modules); import vllm_slo.plugin; "
    count += "print(len(set(sys.modules) - before))"
    out = subprocess.run(
        [sys.executable, "-c", count], capture_output=True, text=True, check=True
    ).stdout
    assert int(out) < 60
