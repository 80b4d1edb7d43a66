"""vLLM V1's scheduling rules, one at a time, on cases small enough to work out by hand."""

from vllm_slo.device.step import Step
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.prefix import PromptHasher
from vllm_slo.sim.request import Request
from vllm_slo.sim.scheduler import VllmV1Scheduler


def config(**changes) -> SchedulerConfig:
    plain = {
        "num_gpu_blocks": 101,
        "max_model_len": 100,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    return SchedulerConfig(**(plain | changes))


def scheduler(*requests: Request, **changes) -> VllmV1Scheduler:
    one = VllmV1Scheduler(config(**changes))
    for request in requests:
        one.add_request(request)
    return one


def request(number: int, tokens: int, output: int = 100, **more) -> Request:
    return Request(number, num_prompt_tokens=tokens, max_tokens=output, **more)


def step(one: VllmV1Scheduler) -> dict[int, int]:
    """Schedules and executes a step; tokens by request."""
    output = one.schedule()
    one.update_from_output(output)
    return {r.request_id: n for r, n in output.num_scheduled_tokens.items()}


def steps(one: VllmV1Scheduler, count: int) -> list[dict[int, int]]:
    return [step(one) for _ in range(count)]


def test_running_requests_come_first_and_prompts_are_chunked_to_the_budget():
    one = scheduler(request(0, 10), request(1, 20))
    assert [{0: 10, 1: 6}, {0: 1, 1: 14}, {0: 1, 1: 1}] == steps(one, 3)


def test_a_step_is_described_by_its_decodes_and_its_chunks():
    one = scheduler(request(0, 10), request(1, 20))
    step(one)
    output = one.schedule()
    expected = Step(decodes=1, decode_context=11, prefills=[(14, 6)], sampled=2)
    assert expected == output.composition


def test_without_chunked_prefill_a_prompt_waits_for_a_step_with_room_for_it():
    one = scheduler(request(0, 10), request(1, 12), enable_chunked_prefill=False, max_model_len=16)
    assert [{0: 10}, {0: 1, 1: 12}] == steps(one, 2)


def test_a_long_prompt_is_held_to_the_threshold_only_while_others_are_there():
    alone = scheduler(request(0, 40), long_prefill_token_threshold=5)
    assert {0: 16} == step(alone)
    alone.add_request(request(1, 3))
    assert {0: 5, 1: 3} == step(alone)


def test_the_adaptive_threshold_is_no_less_than_a_fair_share():
    one = scheduler(
        request(0, 40),
        request(1, 40),
        long_prefill_token_threshold=2,
        long_prefill_token_threshold_adaptive=True,
    )
    assert {0: 8, 1: 8} == step(one)


def test_a_slot_that_comes_free_is_taken_in_the_next_step():
    one = scheduler(request(0, 4, 2), request(1, 4), max_num_seqs=1)
    assert [{0: 4}, {0: 1}, {1: 4}] == steps(one, 3)


def test_a_head_that_does_not_fit_blocks_those_behind_it():
    one = scheduler(
        request(0, 12), request(1, 90), request(2, 1), num_gpu_blocks=26, max_num_seqs=3
    )
    # 25 blocks: request 0 holds 3, request 1 wants 23 for its whole prompt.
    assert [{0: 12}, {0: 1}, {0: 1}] == steps(one, 3)


def test_without_the_reservation_only_the_first_chunk_must_fit():
    one = scheduler(
        request(0, 12), request(1, 90), num_gpu_blocks=26, scheduler_reserve_full_isl=False
    )
    assert {0: 12, 1: 4} == step(one)


def test_the_watermark_is_kept_free_while_something_runs():
    # 10 of 101 blocks are kept: of the 100, request 0 holds 70, which leaves 20 for others.
    arguments = {"watermark": 0.1, "max_model_len": 400, "max_num_batched_tokens": 400}
    one = scheduler(request(0, 280), request(1, 84), **arguments)
    assert {0: 280} == step(one)
    one = scheduler(request(0, 280), request(1, 80), **arguments)
    assert {0: 280, 1: 80} == step(one)


def test_blocks_that_run_out_preempt_the_last_admitted_which_computes_all_again():
    one = scheduler(request(0, 8, 9), request(1, 8, 5), num_gpu_blocks=6, max_model_len=20)
    # 5 blocks: each holds 2 for its prompt; the first to cross takes the fifth.
    assert [{0: 8, 1: 8}, {0: 1}] == steps(one, 2)
    second = one.waiting.peek()
    assert (1, 1, 9) == (second.request_id, second.num_preemptions, second.num_tokens)
    assert [{0: 1}] * 7 == steps(one, 7)
    assert {1: 9} == step(one)


def test_priority_admits_the_most_urgent_and_preempts_the_least():
    one = scheduler(
        request(0, 8, priority=5, arrival_time=0.0),
        request(1, 8, priority=1, arrival_time=1.0),
        request(2, 8, priority=3, arrival_time=2.0),
        policy="priority",
        max_num_seqs=2,
        num_gpu_blocks=6,
        max_model_len=20,
    )
    assert {1: 8, 2: 8} == step(one)
    assert {1: 1} == step(one)
    assert 2 == one.waiting.peek().request_id


def test_a_shared_prefix_is_computed_once_but_never_the_last_token():
    prompt = ((7, 12),)
    hashes = PromptHasher(4).shared_hashes(prompt)
    assert 3 == len(hashes)
    first, second = (request(number, 12, prompt=prompt, shared_hashes=hashes) for number in (0, 1))
    one = scheduler(first, second, enable_prefix_caching=True)
    # Two of the three blocks are taken from the first: the third holds the last token.
    assert {0: 12, 1: 4} == step(one)
    assert 8 == one.num_prefix_hit_tokens
    assert 100 - 3 - 1 == one.kv.num_free_blocks


def test_asynchronous_scheduling_schedules_the_next_step_before_the_last_has_ended():
    one = scheduler(request(0, 4, 2), async_scheduling=True)
    first, second = one.schedule(), one.schedule()
    [lone] = first.num_scheduled_tokens
    assert [{lone: 4}, {lone: 1}] == [o.num_scheduled_tokens for o in (first, second)]
    assert [] == one.update_from_output(first)[1]
    # No third step: the last token is known to be in flight.
    assert {} == one.schedule().num_scheduled_tokens
    assert [lone] == one.update_from_output(second)[1]


def test_what_is_in_flight_at_a_preemption_is_still_delivered():
    one = scheduler(
        request(0, 8, 9),
        request(1, 8, 5),
        num_gpu_blocks=6,
        max_model_len=20,
        async_scheduling=True,
    )
    first = one.schedule()
    second = one.schedule()
    assert [1] == [r.request_id for r in second.preempted]
    sampled, _ = one.update_from_output(first)
    assert [1, 1] == [r.num_output_tokens for r in sampled]
