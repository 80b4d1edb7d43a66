"""`simulate`: requests through a simulated server, from the plan to the records."""

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_slo.device.step import StepTimeModel
from vllm_slo.measure.run import ServerFacts
from vllm_slo.sim.admission import Admission
from vllm_slo.sim.clients import Clients, FrontEnd
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.implicit import ImplicitDecodes
from vllm_slo.sim.loop import EngineLoop, OnRecord
from vllm_slo.sim.step import Scheduler
from vllm_slo.traffic.workload import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation has counted; the records went to `on_record`."""

    server: ServerFacts
    steps: int
    end_s: float


def simulate(
    requests: Iterable[PlannedRequest],
    *,
    config: SchedulerConfig,
    device: StepTimeModel,
    on_record: OnRecord,
    concurrency: int | None = None,
    scheduler: Scheduler | None = None,
    front_end: FrontEnd | None = None,
    stream_interval: int = 1,
) -> Simulated:
    """Runs requests to their end in virtual time; gives each record to `on_record` as it ends.

    `requests` are read as they are sent and records are not kept, so memory follows the requests
    that are alive. A `concurrency` makes it a closed loop; otherwise requests come in order of
    `arrival_s`. `scheduler` is vLLM V1's, in its fast form, by default.

    Raises:
        WorkloadError: a request that makes no sense; the text names its place.
    """
    front_end = front_end or FrontEnd()
    scheduler = scheduler or ImplicitDecodes(config)
    loop = EngineLoop(
        scheduler,
        device,
        Clients(requests, concurrency=concurrency, front_end=front_end),
        admission=Admission(config),
        on_record=on_record,
        depth=2 if config.async_scheduling else 1,
        response_s=front_end.response_s,
        stream_interval=stream_interval,
    )
    loop.run()
    return Simulated(
        server=loop.counters.facts(num_prefix_hit_tokens=scheduler.num_prefix_hit_tokens),
        steps=loop.num_steps,
        end_s=loop.clock_s,
    )
