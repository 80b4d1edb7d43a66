"""`SimTarget`: the simulated server as a `Target`, and `open_sim`, which makes one by names."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from vllm_slo.device import device_model, kv_blocks
from vllm_slo.device.profiles import REFERENCE_DEVICE, REFERENCE_MODEL
from vllm_slo.device.step import StepTimeModel
from vllm_slo.errors import SettingsError
from vllm_slo.measure.record import RequestRecord
from vllm_slo.measure.run import ClientFacts, EngineInfo, Round, Run
from vllm_slo.settings import Settings
from vllm_slo.sim.clients import FrontEnd
from vllm_slo.sim.config import DEFAULT_BLOCK_SIZE, FROM_EXTRA, SchedulerConfig
from vllm_slo.sim.implicit import ImplicitDecodes
from vllm_slo.sim.policies import StaticBatching, WholePrefills
from vllm_slo.sim.simulate import simulate
from vllm_slo.sim.step import Scheduler
from vllm_slo.sim.vllm_scheduler import OracleProcess, VllmScheduler
from vllm_slo.traffic.workload import Workload

SchedulerName = Literal["builtin", "vllm"]
Policy = Literal["vllm-v1", "static-batching", "whole-prefills"]
MODELLED_VLLM = "0.32.0"
DEFAULT_MAX_MODEL_LEN = 8192
# Assumed for a server on a GPU's host: parsing, validation and IPC one way, IPC and a write the
# other. vLLM 0.32.0's API server took 2 to 4 ms each way where it shared two busy cores with its
# engine and its client (docs/sim.md).
API_SERVER = FrontEnd(request_s=0.001, response_s=0.001)
_POLICIES: dict[Policy, Callable[[SchedulerConfig], Scheduler]] = {
    "vllm-v1": ImplicitDecodes,
    "static-batching": StaticBatching,
    "whole-prefills": WholePrefills,
}


class SimTarget:
    """A server in virtual time: each run starts it anew, its cache empty.

    `device` gives the time of each step, `num_gpu_blocks` the KV blocks it holds where `settings`
    do not override them. `engine` says what the run is of; a name stands for the device of an
    otherwise plain one. `scheduler` is our model of vLLM's or, as `"vllm"`, vLLM's own in a process
    of `python`. `policy` is a scheduler that vLLM's replaced. `async_scheduling` overrides the
    settings, whose default is vLLM's on a GPU: on.

    Raises:
        SettingsError: settings that vLLM refuses, or that do not go together.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        device: StepTimeModel,
        num_gpu_blocks: int,
        engine: EngineInfo | str,
        scheduler: SchedulerName = "builtin",
        async_scheduling: bool | None = None,
        policy: Policy = "vllm-v1",
        front_end: FrontEnd | None = None,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
        python: str | Path | None = None,
        defaults_of: str = REFERENCE_DEVICE,
    ) -> None:
        if scheduler not in ("builtin", "vllm"):
            raise SettingsError(f'scheduler must be "builtin" or "vllm", not {scheduler!r}')
        if policy not in _POLICIES:
            raise SettingsError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        if scheduler == "vllm" and (python is None or policy != "vllm-v1"):
            raise SettingsError(
                "vLLM's own scheduler needs the Python of an engine environment, and has one policy"
            )
        self.settings = settings
        config = SchedulerConfig.from_settings(
            settings,
            num_gpu_blocks=num_gpu_blocks,
            max_model_len=max_model_len,
            device=defaults_of,
        )
        if async_scheduling is not None:
            config = replace(config, async_scheduling=async_scheduling)
        if policy == "static-batching":
            config = replace(config, async_scheduling=False)
        self.config = config
        self._unmodelled = _unmodelled(settings)
        self._device = device
        self._front_end = front_end
        self._policy = policy
        self._process = OracleProcess(python) if scheduler == "vllm" and python else None
        version = MODELLED_VLLM
        if self._process is not None:
            version = VllmScheduler(config, self._process).vllm_version
        if isinstance(engine, str):
            engine = EngineInfo(target="sim", device=engine, model="", vllm_version=version)
        described = {**asdict(config), "scheduler": scheduler, "policy_of": policy}
        self.engine = replace(
            engine, vllm_version=version, config=engine.config or tuple(described.items())
        )

    @property
    def max_num_seqs(self) -> int:
        return self.config.max_num_seqs

    def run(self, workload: Workload) -> Run:
        """Drives one round of `workload` to its end and returns it as a one-round `Run`.

        Raises:
            WorkloadError: a request that makes no sense.
        """
        workload = workload.for_server(self.max_num_seqs)
        requests = workload.requests
        if not workload.is_closed_loop:
            requests = tuple(sorted(requests, key=lambda r: r.arrival_s or 0.0))
        records: list[RequestRecord] = []
        warnings_before = len(_warnings(self._device))
        simulated = simulate(
            requests,
            config=self.config,
            device=self._device,
            on_record=records.append,
            concurrency=workload.concurrency,
            scheduler=self._scheduler(),
            front_end=self._front_end,
            stream_interval=self.settings.stream_interval or 1,
        )
        records.sort(key=lambda record: record.index)
        one = Round(
            seed=workload.seed,
            records=records,
            window_s=(
                min((record.scheduled_s for record in records), default=0.0),
                max((record.finished_s or 0.0 for record in records), default=0.0),
            ),
            client=_client_facts(records, is_open=not workload.is_closed_loop),
            server=simulated.server,
            warnings=(*self._unmodelled, *_warnings(self._device)[warnings_before:]),
        )
        return Run(workload=workload, settings=self.settings, engine=self.engine, rounds=(one,))

    def close(self) -> None:
        """Ends vLLM's scheduler, where that is what schedules."""
        if self._process is not None:
            self._process.close()

    def _scheduler(self) -> Scheduler:
        if self._process is not None:
            return VllmScheduler(self.config, self._process)
        return _POLICIES[self._policy](self.config)


def open_sim(
    settings: Settings,
    *,
    device: str = REFERENCE_DEVICE,
    model: str = REFERENCE_MODEL,
    engine_device: str | None = None,
    engine_model: str | None = None,
    scheduler: SchedulerName = "builtin",
    python: str | Path | None = None,
    policy: Policy = "vllm-v1",
    front_end: FrontEnd = API_SERVER,
    max_model_len: int = DEFAULT_MAX_MODEL_LEN,
) -> SimTarget:
    """A simulated server of a device and model by their names in the catalogue, or by path.

    `engine_device` and `engine_model` are what the run's threshold files are named after. The API
    server's time is an assumption; `FrontEnd()` leaves it out.

    Raises:
        ProfileError: no such device or model.
        SettingsError: settings that vLLM refuses.
    """
    is_async = settings.async_scheduling is not False and policy != "static-batching"
    utilisation = dict(settings.extra).get("gpu_memory_utilization", 0.92)
    blocks = settings.num_gpu_blocks_override or kv_blocks(
        device,
        model=model,
        utilisation=utilisation,
        block_size=settings.block_size or DEFAULT_BLOCK_SIZE,
    )
    return SimTarget(
        settings,
        device=device_model(device, model=model, scheduling="async" if is_async else "sync"),
        num_gpu_blocks=blocks,
        engine=EngineInfo(
            target="sim",
            device=engine_device or f"sim-{device}",
            model=engine_model or model,
            vllm_version=MODELLED_VLLM,
        ),
        scheduler=scheduler,
        policy=policy,
        front_end=front_end,
        max_model_len=max_model_len,
        python=python,
        defaults_of=device,
    )


def _client_facts(records: Sequence[RequestRecord], *, is_open: bool) -> ClientFacts:
    """A client that is never late: what is achieved is what is offered."""
    scheduled = [record.scheduled_s for record in records]
    if not is_open or len(scheduled) < 2 or max(scheduled) == min(scheduled):
        return ClientFacts()
    rate = (len(scheduled) - 1) / (max(scheduled) - min(scheduled))
    return ClientFacts(offered_rps=rate, achieved_rps=rate)


def _unmodelled(settings: Settings) -> tuple[str, ...]:
    """What the settings ask of an engine that the simulator has not got."""
    known = {*FROM_EXTRA, "gpu_memory_utilization"}
    names = [name for name, _ in dict(settings.extra).items() if name not in known]
    return tuple(f"{name} is set and not modelled: the run is as without it" for name in names)


def _warnings(device: StepTimeModel) -> Sequence[str]:
    """What a measured profile says about steps beyond what was measured."""
    return tuple(getattr(device, "warnings", ()))
