import os
from importlib import import_module
from pathlib import Path

import pytest

# In-process runs forget what they imported themselves, and numpy cannot be imported twice.
for _name in (
    "numpy.fft",
    "numpy.random",
    "scipy.special",
    "rich.table",
    "vllm_slo.engine",
    "vllm_slo.load",
    "vllm_slo.slo",
    "vllm_slo._pytest.checking",
    "vllm_slo._pytest.gpu",
    "vllm_slo._pytest.header",
    "vllm_slo._pytest.ending",
    "vllm_slo._pytest.loading",
    "vllm_slo.report.document",
    "vllm_slo.report.github",
    "vllm_slo.report.table",
):
    import_module(_name)

ROOT = Path(__file__).parents[2]
LIMITS = "ttft_p50_ms = 200\ntpot_p50_ms = 20\noutput_tok_s = 10"


@pytest.fixture(autouse=True)
def our_environment_alone(monkeypatch):
    """No SLO option of whoever runs the tests, and no summary of the workflow they run in."""
    for name in [n for n in os.environ if n.startswith(("SLO_", "GITHUB_", "PYTEST_XDIST"))]:
        monkeypatch.delenv(name)
    for name in ("CI", "BUILD_NUMBER"):  # by which pytest prints more
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Suite:
    """A small suite of SLO tests in a folder of its own, on a scripted target."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        pytester.makeini("[pytest]\naddopts = --import-mode=importlib\nfilterwarnings = error\n")
        self.script()
        self.rows({"uniform": LIMITS})

    @property
    def thresholds(self) -> Path:
        return self.path / "thresholds" / "sim-a100-80gb" / "llama-3-8b.toml"

    def script(self, text: str = "", *, extra: str = "") -> "Suite":
        self.pytester.makeconftest(
            "from tests.plugin.scripted import Script\n"
            f"SCRIPT = Script({text})\n"
            "def pytest_sessionstart(session):\n"
            "    SCRIPT.install(session.config)\n" + extra
        )
        return self

    def rows(self, limits: dict[str, str], *, provenance: str = "target") -> "Suite":
        """A threshold file with a row per scenario, for any settings."""
        rows = "".join(
            f'[[row]]\nscenario = "{name}"\n[row.limits]\n{text}\n' for name, text in limits.items()
        )
        meta = f'device = "sim-a100-80gb"\nmodel = "llama-3-8b"\nprovenance = "{provenance}"\n'
        if provenance == "measured":
            meta += 'vllm_version = "0.32.0"\ndate = 2026-01-02\n'
            meta += "samples = 200\nseed = 0\nheadroom = 0.2\n"
        self.thresholds.parent.mkdir(parents=True, exist_ok=True)
        self.thresholds.write_text(f"[meta]\n{meta}{rows}")
        return self

    def tests(self, **files: str) -> "Suite":
        """Test files by name; each starts with the imports and the traffic that tests share."""
        head = (
            "import pytest\n"
            "from vllm_slo import Settings\n"
            "from vllm_slo.traffic import uniform, mixed\n"
            "TRAFFIC = uniform(input_tokens=16, output_tokens=8, requests=40, concurrency=4)\n"
            "def at(*seqs):\n"
            "    return pytest.mark.parametrize('vllm_server',\n"
            "        [Settings(max_num_seqs=n) for n in seqs], indirect=True, ids=str)\n"
        )
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(head + text)
        return self

    def run(self, *arguments: str, target: str = "sim") -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(
            f"--slo-target={target}", "-p", "no:cacheprovider", *arguments
        )

    def run_apart(self, *arguments: str, target: str = "sim") -> pytest.RunResult:
        return self.pytester.runpytest_subprocess(
            f"--slo-target={target}", "-p", "no:hypothesispytest", *arguments
        )

    def boots(self) -> list[str]:
        journal = self.path / "boots.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        return [line.strip('"') for line in lines]


ONE_TEST = """
@at(4)
def test_uniform(vllm_server, load, slo):
    slo.check(load(TRAFFIC), row="uniform")
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(pytester).tests(test_it=ONE_TEST)
