"""A target whose figures are set beforehand, for tests of what follows from them.

It answers any workload as a closed loop would, each request after `ttft_ms` and then a token every
`tpot_ms`, both with a seeded jitter of a few percent. Used in the conftest of an inner suite::

    from tests.plugin.scripted import Script
    SCRIPT = Script(ttft_ms=100)
    def pytest_sessionstart(session):
        SCRIPT.install(session.config)
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vllm_slo._pytest.state import STATE
from vllm_slo.errors import BootError, MetricsError
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import ClientFacts, EngineInfo, Round, Run, ServerFacts
from vllm_slo.settings import Settings
from vllm_slo.targets import Served


@dataclass(kw_only=True)
class Script:
    """How the servers of one session behave.

    `refuses` are the max_num_seqs whose boot fails. In round number `breaks_in_round` (from 1, over
    the session) the last half of the requests fail, and then `breaks_with` says how: the server
    `dies`, is `interrupted` by Ctrl-C, or cannot be asked for its `metrics`.
    """

    ttft_ms: float = 100.0
    tpot_ms: float = 10.0
    preemptions: int = 0
    prefix_hits: int = 0
    breaks_in_round: int = 0
    breaks_with: str = ""
    refuses: tuple[int, ...] = ()
    stop_fails: bool = False
    config: dict = field(default_factory=dict)
    rounds: int = 0

    def install(self, config) -> None:
        session = config.stash[STATE]
        session.pool.open_with = self.open
        self.progress = session.progress
        self._journal = Path(config.rootpath) / "boots.jsonl"

    def open(self, settings: Settings) -> Served:
        with self._journal.open("a") as file:
            file.write(json.dumps(str(settings)) + "\n")
        if settings.max_num_seqs in self.refuses:
            raise BootError(f"{settings} died while booting\nwhole log: less {settings}.log")
        engine = EngineInfo(
            target="sim",
            device="sim-a100-80gb",
            model="llama-3-8b",
            vllm_version="0.32.0",
            server_log=f"logs/{settings}.log",
            config=tuple(self.config.items()),
        )
        target = ScriptedTarget(self, settings, engine)
        return ScriptedServer(
            settings=settings, engine=engine, target=target, max_num_seqs=settings.max_num_seqs
        )


class ScriptedServer(Served):
    def alive(self) -> bool:
        return not self.target.is_dead

    def died_because(self) -> str | None:
        return f"out of luck (server log: {self.engine.server_log})"

    def close(self) -> None:
        if self.target.script.stop_fails:
            raise BootError("the server's processes 7 could not be ended\nkill -9 7")


class ScriptedTarget:
    def __init__(self, script: Script, settings: Settings, engine: EngineInfo) -> None:
        self.script = script
        self.settings = settings
        self.engine = engine
        self.partial: Run | None = None
        self.is_dead = False

    def run(self, workload) -> Run:
        self.script.rounds += 1
        breaks = self.script.rounds == self.script.breaks_in_round
        records = self._records(workload)
        self.script.progress(len(records), len(records))
        if breaks:
            half = len(records) // 2
            records[half:] = [failed(one) for one in records[half:]]
        ends = [one.finished_s for one in records if one.finished_s is not None]
        one = Round(
            seed=workload.seed,
            records=records,
            window_s=(0.0, max(ends)),
            client=ClientFacts(warmup_requests=4),
            server=ServerFacts(
                preemptions=self.script.preemptions,
                kv_use_max=0.5,
                running_max=workload.concurrency,
                prefix_cache_hit_tokens=self.script.prefix_hits,
            ),
        )
        run = Run(workload=workload, settings=self.settings, engine=self.engine, rounds=(one,))
        if breaks:
            self._break(run)
        return run

    def _break(self, run: Run) -> None:
        how = self.script.breaks_with
        self.partial = run
        if how == "interrupted":
            raise KeyboardInterrupt
        self.is_dead = how == "dies"
        raise MetricsError("/metrics cannot be read: connection refused")

    def _records(self, workload) -> list[RequestRecord]:
        rng = np.random.default_rng(workload.seed)
        free_at = np.zeros(workload.concurrency)
        records = []
        for request in workload.requests:
            slot = int(free_at.argmin())
            at = float(free_at[slot])
            ttft = self.script.ttft_ms / 1e3 * (1 + 0.02 * rng.random())
            gaps = self.script.tpot_ms / 1e3 * (1 + 0.02 * rng.random(request.output_tokens - 1))
            events = at + ttft + np.concatenate([[0.0], np.cumsum(gaps)])
            free_at[slot] = events[-1]
            records.append(
                RequestRecord(
                    index=request.index,
                    class_name=request.class_name,
                    planned_prompt_tokens=request.input_tokens,
                    planned_output_tokens=request.output_tokens,
                    scheduled_s=at,
                    sent_s=at,
                    event_s=events,
                    event_tokens=np.ones(len(events), dtype=np.int64),
                    finished_s=float(events[-1]),
                    prompt_tokens=request.input_tokens,
                    output_tokens=request.output_tokens,
                    finish_reason="length",
                )
            )
        return records


def failed(record: RequestRecord) -> RequestRecord:
    return replace(
        record,
        event_s=record.event_s[:1],
        event_tokens=np.ones(1, dtype=np.int64),
        finished_s=None,
        prompt_tokens=None,
        output_tokens=None,
        finish_reason=None,
        error="the connection was reset",
    )
