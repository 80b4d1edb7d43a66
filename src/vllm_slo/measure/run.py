"""`Run`: the records of one or more rounds, and the facts that say whether they can be trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from vllm_slo.measure.record import RequestRecord
from vllm_slo.settings import Settings
from vllm_slo.traffic.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's own counters over one round (differences), and gauges sampled during it."""

    preemptions: int | None = None
    kv_use_max: float | None = None
    running_max: int | None = None
    waiting_max: int | None = None
    queue_time_mean_s: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    iteration_tokens_mean: float | None = None
    prefix_cache_hit_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """How well the load generator kept its plan. Lags in seconds, rates in requests/s.

    `loop_stalled_share` is the share of the round in which the event loop stood still for more
    than 20 ms at a time; `None` where only the longest such time is known.

    `exact_prompts` is False where prompts are texts, whose length in tokens is not the plan's.
    """

    send_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    loop_stalled_share: float | None = None
    offered_rps: float | None = None
    achieved_rps: float | None = None
    warmup_requests: int = 0
    warmup_settled: bool = True
    exact_prompts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationFacts:
    """The padding worker's account: an overrun is a step that could not be held to its time."""

    steps: int
    overruns: int
    worst_overrun_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """NVML over one round: memory in MiB, utilisation and clocks as means, power in watts."""

    samples: int
    memory_used_mib_max: float
    sm_utilisation_percent: float
    sm_clock_mhz_min: float
    sm_clock_mhz_max: float
    power_w_mean: float
    throttle_reasons: tuple[str, ...] = ()
    foreign_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One drained round: every planned request has a record.

    `window_s` is the measured window (start, end), seconds from the start of the round.
    `server_died` says why, where the server did not outlive the round.
    """

    seed: int
    records: Sequence[RequestRecord]
    window_s: tuple[float, float]
    client: ClientFacts = field(default_factory=ClientFacts)
    server: ServerFacts = field(default_factory=ServerFacts)
    emulation: EmulationFacts | None = None
    gpu: GpuFacts | None = None
    warnings: tuple[str, ...] = ()
    server_died: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What answered: `target` is sim, emulated, gpu or url; `device` a threshold folder's name."""

    target: str
    device: str
    model: str
    vllm_version: str
    server_log: str | None = None
    driver: str | None = None
    config: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The rounds of one workload on one server. Everything after a `Run` is the same for all."""

    workload: Workload
    settings: Settings
    engine: EngineInfo
    rounds: tuple[Round, ...]

    @property
    def records(self) -> list[RequestRecord]:
        return [record for one in self.rounds for record in one.records]

    @property
    def concurrency(self) -> int | None:
        """The closed-loop slots; `None` in an open loop, or where the server's are not known."""
        seqs = self.settings.max_num_seqs
        workload = self.workload if seqs is None else self.workload.for_server(seqs)
        return self.workload.concurrency or workload.concurrency

    def joined(self, other: "Run") -> "Run":
        """This run and the rounds of another of the same workload and server."""
        return replace(self, rounds=self.rounds + other.rounds)


class Target(Protocol):
    """What a workload is driven at: sim, emulated, gpu or a URL."""

    def run(self, workload: Workload) -> Run:
        """Drives one round of `workload` to its end and returns it as a one-round `Run`."""
        ...


class Observer(Protocol):
    """Watches one round from beside the client: server metrics, NVML, the padding worker's log."""

    def begin(self) -> None:
        """Called just before time zero of a round."""
        ...

    def end(self) -> Mapping[str, object]:
        """Called when the round has drained; gives fields of `Round`, such as `server`."""
        ...
