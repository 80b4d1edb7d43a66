"""One boot per distinct settings, in a stable order, and a new server for a dead one."""

import pytest

from vllm_slo._pytest.servers import ServerPool
from vllm_slo.errors import BootError
from vllm_slo.settings import Settings

SWEEP = """
@at(8, 16)
def test_{name}(vllm_server): pass
"""
BUILT_ON_SERVE = """
@pytest.fixture(scope="session", ids=str, params=[Settings(max_num_seqs=n) for n in (16, 8)])
def server_by_seqs(request, serve):
    return serve(request.param)

def test_plain(): pass

def test_built(server_by_seqs): pass
"""


def ran(result):
    """The tests in the order in which they ran: `file::test[id]`."""
    lines = result.stdout.str().splitlines()
    return [line.split(" ")[0] for line in lines if "::test_" in line and "%]" in line]


def test_settings_are_booted_once_over_files_and_fixtures(suite):
    (suite.path / "test_it.py").unlink()
    suite.tests(test_a=SWEEP.format(name="a"), test_b=BUILT_ON_SERVE, test_c=SWEEP.format(name="c"))
    result = suite.run("-v")
    result.assert_outcomes(passed=7)
    assert ["seqs8", "seqs16"] == suite.boots()
    assert [
        "test_a.py::test_a[seqs8]",
        "test_c.py::test_c[seqs8]",
        "test_b.py::test_built[seqs8]",
        "test_a.py::test_a[seqs16]",
        "test_c.py::test_c[seqs16]",
        "test_b.py::test_built[seqs16]",
        "test_b.py::test_plain",
    ] == ran(result)


def test_tests_without_a_server_keep_their_order_and_parameters_stay_theirs(suite):
    suite.tests(
        test_it="""
@pytest.mark.parametrize("settings", [Settings(max_num_seqs=n) for n in (2, 1, 2)], ids=str)
def test_of_settings(settings): pass

def test_between(): pass

@at(4)
def test_served(vllm_server): pass

def test_last(): pass
"""
    )
    result = suite.run("-v")
    assert [
        "test_it.py::test_of_settings[seqs2_0]",
        "test_it.py::test_of_settings[seqs1]",
        "test_it.py::test_of_settings[seqs2_1]",
        "test_it.py::test_between",
        "test_it.py::test_served[seqs4]",
        "test_it.py::test_last",
    ] == ran(result)


def test_a_failed_test_first_keeps_its_server_together(suite):
    suite.tests(
        test_it="""
@at(8, 16)
@pytest.mark.parametrize("bad", [False, True])
def test_some(vllm_server, bad):
    assert not (bad and vllm_server.settings.max_num_seqs == 16)
"""
    )
    run = ["--slo-target=sim", "-v"]
    suite.pytester.runpytest_inprocess(*run).assert_outcomes(passed=3, failed=1)
    (suite.path / "boots.jsonl").unlink()
    result = suite.pytester.runpytest_inprocess(*run, "--failed-first")
    assert "test_it.py::test_some[True-seqs16]" == ran(result)[0]
    assert ["seqs16", "seqs8"] == suite.boots()
    last = suite.pytester.runpytest_inprocess(*run, "--last-failed")
    assert ["test_it.py::test_some[True-seqs16]"] == ran(last)


def test_a_dead_server_is_replaced_for_whoever_holds_it(suite):
    suite.tests(
        test_it="""
@at(4)
def test_kills(vllm_server):
    vllm_server.target.is_dead = True

@at(4)
def test_holds_a_live_one(vllm_server):
    assert vllm_server.alive()
"""
    )
    suite.run().assert_outcomes(passed=2)
    assert ["seqs4", "seqs4"] == suite.boots()


def test_a_server_that_dies_under_load_fails_the_test_and_names_the_cause(suite):
    suite.script("breaks_in_round=2, breaks_with='dies'").rows({"uniform": "ttft_p99_ms = 1000"})
    suite.tests(test_z="@at(4)\ndef test_next(vllm_server, load):\n    load(TRAFFIC)\n")
    result = suite.run("--slo-inconclusive=pass")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "INCONCLUSIVE: uniform * the server died in round 2: out of luck (server log: logs/*)",
            "  20 of 80 requests failed:",
            "    20 x the connection was reset",
            "server log: logs/seqs4.log",
        ]
    )
    assert ["seqs4", "seqs4"] == suite.boots()


def test_an_observer_that_fails_while_the_server_lives_is_an_error(suite):
    suite.script("breaks_in_round=2, breaks_with='metrics'")
    result = suite.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["/metrics cannot be read: connection refused", "cut short: uniform seqs4, 80 requests *"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_failed_boot_is_not_tried_again_for_the_same_settings(suite):
    suite.script("refuses=(8,)").tests(test_it=SWEEP.format(name="a") + SWEEP.format(name="b"))
    result = suite.run()
    result.assert_outcomes(errors=2, passed=2)
    assert ["seqs8", "seqs16"] == suite.boots()
    text = result.stdout.str()
    assert 2 == text.count("whole log: less seqs8.log")
    assert "Traceback" not in text
    assert "servers.py" not in text
    result.stdout.fnmatch_lines(["ERROR test_it.py::test_a?seqs8? - *seqs8 died while booting"])


def test_a_server_that_does_not_end_is_said_and_spoils_the_status(suite):
    result = suite.script("stop_fails=True").run()
    assert 1 == result.ret
    result.stdout.fnmatch_lines(["*the server's processes 7 could not be ended*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*Traceback*")


def test_boots_and_stops_are_said_where_asked(suite):
    suite.tests(test_it=SWEEP.format(name="a"))
    result = suite.run("--slo-verbose-boots")
    result.stdout.fnmatch_lines(
        ["slo: boot 1: seqs8", "slo: stop: seqs8", "slo: boot 2: seqs16", "slo: stop: seqs16"]
    )


def test_a_fixture_that_makes_its_own_settings_is_loaded_too(suite):
    suite.tests(
        test_it="""
@pytest.fixture(scope="session")
def small(serve):
    return serve(Settings(max_num_seqs=2))

@at(4)
def test_other(vllm_server, load):
    assert 4 == load(TRAFFIC).settings.max_num_seqs

def test_small(small, load):
    assert 2 == load(TRAFFIC).settings.max_num_seqs

def test_called(serve, load):
    serve(Settings(max_num_seqs=3))
    assert 3 == load(TRAFFIC).settings.max_num_seqs
"""
    )
    suite.run().assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def test_it(load): load(TRAFFIC)", "*loads a server that it does not ask for"),
        (
            "@pytest.fixture\ndef two(serve):\n"
            "    return serve(Settings(max_num_seqs=2))\n"
            "@at(4)\ndef test_it(vllm_server, two, load): load(TRAFFIC)",
            "*holds servers with seqs2 and seqs4, and only one runs at a time",
        ),
        (
            "@at(4)\n@pytest.mark.parametrize('s', [Settings(max_num_seqs=2)])\n"
            "def test_it(vllm_server, s): pass",
            "*asks for servers with seqs2 and seqs4, and only one runs at a time",
        ),
    ],
)
def test_a_test_with_no_server_or_with_two_is_an_error(suite, body, message):
    result = suite.tests(test_it=body).run()
    assert 0 != result.ret
    (result.stdout if "load(" in body else result.stderr).fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_mistake_in_a_test_file_is_its_text_and_line(suite):
    suite.tests(test_bad="S = Settings(max_num_seqs=0)\n")
    result = suite.run()
    result.stdout.fnmatch_lines(
        ["*test_bad.py:8: SettingsError: max_num_seqs must be a whole number >= 1, not 0"]
    )
    result.stdout.no_fnmatch_line("*settings.py*")


def test_an_error_of_ours_in_a_teardown_has_no_traceback(suite):
    suite.tests(
        test_it="""
from vllm_slo import SloError
@pytest.fixture
def strict():
    yield
    raise SloError("mend this\\nlike that")

def test_it(strict): pass
"""
    )
    result = suite.run()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["mend this", "like that"])
    result.stdout.no_fnmatch_line("*raise SloError*")


def test_a_refused_boot_is_refused_again_without_growing():
    def refuse(_):
        raise BootError("no")

    pool = ServerPool(open_with=refuse, say=lambda _: None)
    raised = []
    for _ in range(2):
        with pytest.raises(BootError, match="no") as info:
            pool.serve(Settings())
        raised.append(info.value)
    assert raised[0] is not raised[1]
    assert [Settings()] == pool.boots
