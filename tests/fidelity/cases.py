"""Random configurations and traces, and two schedulers held to each other on one, step by step."""

from collections import deque
from dataclasses import dataclass

from hypothesis import strategies as st

from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.prefix import PromptHasher
from vllm_slo.sim.request import Prompt, Request
from vllm_slo.sim.scheduler import VllmV1Scheduler
from vllm_slo.sim.step import SchedulerOutput
from vllm_slo.sim.vllm_scheduler import OracleProcess, VllmScheduler

STEPS_TO_AN_END = 20_000  # more than all tokens of a case, however often it is preempted


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that is there before the `step`-th call of `schedule`."""

    step: int
    prompt: Prompt
    max_tokens: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    max_model_len = draw(st.integers(2, 12 * block_size + 8))
    max_num_seqs = draw(st.integers(1, 12))
    chunked = draw(st.booleans())
    least_budget = max(max_num_seqs, 1 if chunked else max_model_len)
    fitting = -(-max_model_len // block_size) + 1
    budget = draw(st.integers(least_budget, least_budget + 2 * max_model_len))
    is_capped = draw(st.booleans())
    return SchedulerConfig(
        num_gpu_blocks=fitting + draw(st.integers(0, 3) | st.integers(0, 3 * fitting)),
        max_model_len=max_model_len,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=draw(st.integers(least_budget, budget)) if is_capped else None,
        max_num_active_seqs=draw(st.none() | st.integers(1, max_num_seqs)),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.just(0) | st.integers(1, max_model_len)),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.6])),
        async_scheduling=draw(st.booleans()),
    )


@st.composite
def prompts(draw: st.DrawFn, longest: int) -> Prompt:
    """A prompt of its own, or one that begins with what others begin with."""
    segments: list[tuple[int, int]] = []
    room = longest
    for key in draw(st.sampled_from([[], [], [0], [0], [0, 1], [1, 2, 1], [2]])):
        if room:
            tokens = draw(st.integers(1, room))
            segments.append((key, tokens))
            room -= tokens
    if not segments or (room and draw(st.booleans())):
        segments.append((-1, draw(st.integers(1, room))))
    return tuple(segments)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(configs())
    arrivals = []
    step = 0
    for _ in range(draw(st.integers(1, 24))):
        step += draw(st.sampled_from([0, 0, 0, 1, 1, 2, 5, 20]))
        arrivals.append(
            Arrival(
                step=step,
                prompt=draw(prompts(config.max_model_len - 1)),
                max_tokens=draw(st.integers(1, 4) | st.integers(1, config.max_model_len)),
                priority=draw(st.integers(0, 3)),
            )
        )
    return Case(config=config, arrivals=tuple(arrivals))


def hold_to_vllm(case: Case, process: OracleProcess) -> int:
    """Runs our scheduler and vLLM's in one engine loop and asserts that every step agrees.

    The loop is the engine core's: a batch queue of one, or two with asynchronous scheduling.
    Gives the number of steps.
    """
    ours = VllmV1Scheduler(case.config)
    theirs = VllmScheduler(case.config, process)
    hasher = PromptHasher(case.config.block_size)
    depth = 2 if case.config.async_scheduling else 1
    queue: deque[tuple[SchedulerOutput, SchedulerOutput]] = deque()
    arrivals = deque(enumerate(case.arrivals))
    last_arrival = case.arrivals[-1].step
    num_steps = 0
    while arrivals or ours.has_requests() or queue:
        while arrivals and arrivals[0][1].step <= num_steps:
            index, arrival = arrivals.popleft()
            for scheduler in (ours, theirs):
                scheduler.add_request(_request(index, arrival, hasher))
        if not (ours.has_requests() or queue):
            num_steps = arrivals[0][1].step
            continue
        assert ours.has_requests() == theirs.has_requests()
        if ours.has_requests():
            mine, real = ours.schedule(), theirs.schedule()
            num_steps += 1
            assert _decision(mine) == _decision(real), f"step {num_steps}"
            assert _state(ours) == _vllm_state(theirs), f"after schedule {num_steps}"
            queue.append((mine, real))
            if len(queue) < depth and (mine.num_scheduled_tokens or ours.has_requests()):
                continue
        mine, real = queue.popleft()
        finished = [
            [r.request_id for r in s.update_from_output(o)[1]]
            for s, o in ((ours, mine), (theirs, real))
        ]
        assert sorted(finished[0]) == sorted(finished[1])
        assert _state(ours) == _vllm_state(theirs), f"after update {num_steps}"
        if num_steps > last_arrival + STEPS_TO_AN_END:
            # Two requests that tie in priority and arrival can preempt each other for ever, in
            # vLLM too; on a real clock no two tie.
            assert case.config.policy == "priority"
            return num_steps
    assert ours.num_prefix_hit_tokens == theirs.num_prefix_hit_tokens
    return num_steps


def _request(index: int, arrival: Arrival, hasher: PromptHasher) -> Request:
    return Request(
        index,
        num_prompt_tokens=sum(tokens for _, tokens in arrival.prompt),
        max_tokens=arrival.max_tokens,
        arrival_time=float(arrival.step),
        priority=arrival.priority,
        prompt=arrival.prompt,
        shared_hashes=hasher.shared_hashes(arrival.prompt),
    )


def _decision(output: SchedulerOutput) -> dict[str, object]:
    return {
        "tokens": {r.request_id: n for r, n in output.num_scheduled_tokens.items()},
        "sampled": sorted(r.request_id for r in output.sampled),
        "preempted": sorted(r.request_id for r in output.preempted),
        "composition": (
            output.composition.decodes,
            output.composition.decode_context,
            sorted(output.composition.prefills),
        ),
    }


def _state(scheduler: VllmV1Scheduler) -> dict[str, object]:
    return {
        "running": [r.request_id for r in scheduler.running],
        "waiting": len(scheduler.waiting),
        "free": scheduler.kv.num_free_blocks,
        "free_cached": scheduler.kv.num_free_cached_blocks,
        "usage": scheduler.kv.usage,
        "pending": scheduler.has_requests(),
    }


def _vllm_state(scheduler: VllmScheduler) -> dict[str, object]:
    kept = ("running", "waiting", "free", "free_cached", "usage", "pending")
    return {name: scheduler.state[name] for name in kept}
