"""The pytest plugin: hooks and primitive fixtures, and nothing else."""

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from vllm_slo._pytest.options import add_options
from vllm_slo._pytest.state import STATE, SloSession

if TYPE_CHECKING:
    from vllm_slo._pytest.checking import Slo
    from vllm_slo._pytest.gpu import Gpu
    from vllm_slo._pytest.loading import Load
    from vllm_slo.settings import Settings
    from vllm_slo.targets import Served


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    from vllm_slo._pytest.outcome import Gatherer

    if config.option.help or config.option.version or config.option.markers:
        return  # they run no test, and must survive an option that makes no sense
    session = SloSession.from_pytest_config(config)
    config.stash[STATE] = session
    config.pluginmanager.register(Gatherer(session.collected), "vllm-slo-gatherer")


def pytest_report_header(config: pytest.Config) -> list[str]:
    from vllm_slo._pytest.header import header_lines

    return header_lines(config.stash[STATE])


def pytest_sessionstart(session: pytest.Session) -> None:
    from vllm_slo._pytest.servers import Ordering

    session.config.pluginmanager.register(Ordering(), "vllm-slo-ordering")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    from vllm_slo._pytest.outcome import shorten

    report = yield
    shorten(report)
    return report


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items[:1]:
        item.config.stash[STATE].ran_everything = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    from vllm_slo._pytest.preflight import check_before_boot

    state = session.config.stash[STATE]
    if not session.config.option.collectonly and not state.is_worker:
        check_before_boot(state, session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    from vllm_slo._pytest.preflight import check_before_test

    check_before_test(item.config.stash[STATE], item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    from vllm_slo._pytest.outcome import attach

    report = yield
    attach(item, call, report)
    return report


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> Any:
    from vllm_slo._pytest.outcome import status_of

    return status_of(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    from vllm_slo._pytest.ending import finish

    finish(session.config.stash[STATE], session)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    from vllm_slo._pytest.ending import take_over

    take_over(node.config.stash[STATE], getattr(node, "workeroutput", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    from vllm_slo._pytest.ending import print_results

    print_results(config.stash[STATE], terminalreporter)


@pytest.fixture(scope="session")
def serve(pytestconfig: pytest.Config) -> "Iterator[Callable[[Settings], Served]]":
    """Gives a running server with the settings that it is called with.

    One server lives at a time; the same settings give the same server while it lives.
    """
    pool = pytestconfig.stash[STATE].pool
    yield pool.serve
    pool.close()


@pytest.fixture(scope="session")
def vllm_server(request: pytest.FixtureRequest, serve: "Callable[[Settings], Served]") -> "Served":
    """A running server with the `Settings` of the test's indirect parameter, else the defaults."""
    from vllm_slo.settings import Settings

    return serve(getattr(request, "param", Settings()))


@pytest.fixture
def load(request: pytest.FixtureRequest) -> "Load":
    """Runs a workload at the test's server, in rounds, until its verdict is settled."""
    from vllm_slo._pytest.loading import Load

    return Load(request.config.stash[STATE], request)


@pytest.fixture
def slo(request: pytest.FixtureRequest) -> "Slo":
    """Judges a run by the row of the threshold file for this device and model."""
    from vllm_slo._pytest.checking import Slo

    return Slo(request.config.stash[STATE], request)


@pytest.fixture(scope="session")
def gpu(pytestconfig: pytest.Config) -> "Gpu":
    """What NVML saw of a run's rounds: memory, SM utilisation, clocks, power, processes."""
    from vllm_slo._pytest.gpu import Gpu

    return Gpu.of_session(pytestconfig.stash[STATE])
