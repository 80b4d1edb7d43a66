"""What the comparisons on the emulated target share: a server, rounds on it, a machine's words."""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from vllm_slo.engine import EngineEnvironment, Server, boot
from vllm_slo.engine.metrics import MetricsObserver
from vllm_slo.engine.worker import EmulationObserver
from vllm_slo.load import Endpoint, HttpTarget
from vllm_slo.measure import EmulationFacts, Run, validate
from vllm_slo.settings import Settings

DEVICE = "a100-80gb"
MODEL = "llama-3-8b"
MAX_NUM_BATCHED_TOKENS = 2048

# A run with one of these shows the machine, and neither of the two that are compared.
DISTURBANCES = ("overruns", "event-loop lag", "send lag", "warm-up")
AGREES, DIFFERS, INCONCLUSIVE = 0, 1, 3  # exit statuses


@contextmanager
def emulated(
    settings: Settings, *, environment: EngineEnvironment, report_dir: Path
) -> Iterator[tuple[Server, HttpTarget]]:
    """A server on the emulated device, and our client at it."""
    with boot(
        settings,
        environment=environment,
        model=MODEL,
        report_dir=report_dir,
        target="emulated",
        device=DEVICE,
    ) as server:
        endpoint = Endpoint(
            base_url=server.base_url,
            model=server.model,
            vocab_size=server.vocab_size,
            api_key=server.api_key,
        )
        metrics = MetricsObserver(
            server.base_url, server.api_key, version=server.engine.vllm_version
        )
        target = HttpTarget(
            endpoint=endpoint,
            settings=settings,
            engine=server.engine,
            observers=[metrics, padding(server)],
        )
        yield server, target


def padding(server: Server) -> EmulationObserver:
    """The padding worker's account, over whatever is driven at the server meanwhile."""
    assert server.accounting_path is not None, "an emulated server has an account"
    return EmulationObserver(server.accounting_path)


def disturbances(run: Run) -> list[str]:
    """What disturbed the run, in the words of its validity check."""
    return [one.message for one in validate(run) if one.check in DISTURBANCES]


def overruns(rounds: Sequence[EmulationFacts]) -> str:
    """The steps that could not be held to their time, as a table says it."""
    steps = sum(one.steps for one in rounds)
    late = sum(one.overruns for one in rounds)
    return f"{late} of {steps} ({late / steps:.1%})" if steps else "unknown"


def machine() -> str:
    """The machine and the day, for a page that others will compare with."""
    cores = len(os.sched_getaffinity(0))
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{cores} cores ({model}), {datetime.now(UTC):%Y-%m-%d}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; every column but the first is of figures."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))
