from pathlib import Path

import pytest

from tests.standin.fake import FakeEnvironment, fake_environment
from vllm_slo.engine import Server, boot
from vllm_slo.settings import Settings


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def fake(tmp_path):
    """Makes a stand-in environment with the behaviour asked for."""

    def make(**behaviour) -> FakeEnvironment:
        return fake_environment(tmp_path / "engine", **behaviour)

    return make


@pytest.fixture
def boot_fake(tmp_path, cache_dir):
    """Boots a stand-in on the gpu target; what it boots is stopped at the end."""
    servers: list[Server] = []

    def start(environment: FakeEnvironment, settings: Settings | None = None, **options) -> Server:
        arguments = {
            "model": "shape:tiny",
            "target": "gpu",
            "report_dir": tmp_path / "report",
            "cache_dir": cache_dir,
            "boot_timeout_s": 60.0,
        }
        server = boot(
            settings or Settings(), environment=environment.python, **(arguments | options)
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def is_running(pid: int) -> bool:
    """Whether a process lives; one that is dead and not reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
