"""The simulated server as a target: what comes back as a `Run`, and what is refused."""

import numpy as np
import pytest

from vllm_slo.errors import SettingsError, WorkloadError
from vllm_slo.measure import summarise
from vllm_slo.settings import Settings
from vllm_slo.sim import FrontEnd, SchedulerConfig, SimTarget, open_sim, simulate
from vllm_slo.traffic import Poisson, mixed, uniform
from vllm_slo.traffic.workload import CLASS_PREFIX, OWN, PlannedRequest, Segment, Workload


class TenMs:
    """A device on which every step takes ten milliseconds."""

    def step_ms(self, step):
        return 10.0

    def decode_run_ms(self, *, decodes, decode_context, steps):
        return np.full(steps, 10.0)


def target(settings=None, *, is_async=False, **more) -> SimTarget:
    arguments = {
        "device": TenMs(),
        "num_gpu_blocks": 1000,
        "engine": "sim-test",
        "async_scheduling": is_async,
        "max_model_len": 2048,
    }
    return SimTarget(settings or Settings(max_num_seqs=2), **(arguments | more))


def workload(*requests: PlannedRequest, concurrency: int | None = None) -> Workload:
    return Workload(name="test", plan=lambda rng: requests, concurrency=concurrency)


def request(index: int, tokens: int, output: int, arrival_s: float | None = None, **more):
    return PlannedRequest(
        index=index, input_tokens=tokens, output_tokens=output, arrival_s=arrival_s, **more
    )


def events_ms(run) -> list[list[float]]:
    return [np.round(record.event_s * 1000, 6).tolist() for record in run.records]


def test_a_request_that_is_alone_gets_a_token_a_step():
    run = target().run(workload(request(0, 5, 3, 0.5)))
    [record] = run.records
    assert [[510.0, 520.0, 530.0]] == events_ms(run)
    assert (0.5, 0.5, 0.53) == (record.scheduled_s, record.sent_s, round(record.finished_s, 9))
    assert (5, 3, "length", 200, None, 0) == (
        record.prompt_tokens,
        record.output_tokens,
        record.finish_reason,
        record.status,
        record.error,
        record.preemptions,
    )
    assert [1, 1, 1] == record.event_tokens.tolist()


def test_an_arrival_is_seen_between_steps():
    run = target().run(workload(request(0, 5, 4, 0.0), request(1, 5, 1, 0.012)))
    assert [[10.0, 20.0, 30.0, 40.0], [30.0]] == events_ms(run)
    assert 0.008 == pytest.approx(run.records[1].queued_s)


def test_with_asynchronous_scheduling_it_is_seen_a_step_later():
    requests = workload(request(0, 5, 5, 0.0), request(1, 5, 1, 0.012))
    run = target(is_async=True).run(requests)
    assert [[10.0, 20.0, 30.0, 40.0, 50.0], [40.0]] == events_ms(run)


def test_a_slot_of_a_closed_loop_sends_its_next_request_when_the_last_is_over():
    run = target().run(workload(*(request(i, 5, 2) for i in range(3)), concurrency=1))
    assert [0.0, 0.02, 0.04] == [round(r.scheduled_s, 9) for r in run.records]
    assert [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]] == events_ms(run)


def test_the_front_end_s_time_is_the_client_s_to_wait():
    front_end = FrontEnd(request_s=0.002, response_s=0.001)
    run = target(front_end=front_end).run(
        workload(request(0, 5, 2), request(1, 5, 1), concurrency=1)
    )
    assert [[13.0, 23.0], [36.0]] == events_ms(run)
    assert [0.0, 0.023] == [round(r.scheduled_s, 9) for r in run.records]


def test_requests_that_are_sent_together_pass_the_front_end_one_after_another():
    front_end = FrontEnd(request_s=0.006)
    run = target(Settings(max_num_seqs=4), front_end=front_end).run(
        workload(*(request(i, 5, 1, 0.0) for i in range(3)))
    )
    # The second and the third reach the engine at 12 and 18 ms, in the first's step and after it.
    assert [[16.0], [26.0], [36.0]] == events_ms(run)


def test_the_closed_loop_of_a_scenario_follows_the_server():
    run = target(Settings(max_num_seqs=3)).run(uniform(requests=9))
    assert (3, 3) == (run.workload.concurrency, run.rounds[0].server.running_max)


def test_counters_are_vllm_s():
    run = target().run(workload(*(request(i, 100, 10, 0.0) for i in range(3))))
    server = run.rounds[0].server
    assert (300, 30, 0, 2, 1) == (
        server.prompt_tokens,
        server.generation_tokens,
        server.preemptions,
        server.running_max,
        server.waiting_max,
    )
    # Two of 110 tokens hold 7 blocks each; the most that is seen after a step is with 109.
    assert 14 / 999 == pytest.approx(server.kv_use_max)
    # The third waits for the ten steps of the others.
    assert 0.1 / 3 == pytest.approx(server.queue_time_mean_s)
    assert 330 / 20 == server.iteration_tokens_mean


def test_a_shared_prefix_is_a_hit_of_the_prefix_cache():
    shared = Segment(key=(CLASS_PREFIX, 1), tokens=64)
    requests = [
        request(i, 80, 2, float(i), segments=(shared, Segment(key=(OWN, i), tokens=16)))
        for i in range(3)
    ]
    server = target().run(workload(*requests)).rounds[0].server
    assert (240, 128) == (server.prompt_tokens, server.prefix_cache_hit_tokens)
    off = target(Settings(enable_prefix_caching=False)).run(workload(*requests))
    assert 0 == off.rounds[0].server.prefix_cache_hit_tokens


@pytest.mark.parametrize(
    ("tokens", "output", "reason"),
    [
        (3000, 1, "maximum context length is 2048 tokens"),
        (2048, 1, "at least 1"),
        (1, 2049, "max_tokens=2049 cannot be greater than max_model_len=2048"),
        (2000, 49, "max_tokens=48, got 49"),
    ],
)
def test_what_can_never_fit_is_refused_as_vllm_refuses_it(tokens, output, reason):
    run = target().run(workload(request(0, tokens, output, 0.0), request(1, 5, 1, 0.0)))
    refused, served = run.records
    assert (400, None, 0) == (refused.status, refused.output_tokens, len(refused.event_s))
    assert refused.error.startswith("HTTP 400: ")
    assert reason in refused.error
    assert served.ok


def test_a_full_queue_refuses_until_there_is_room():
    settings = Settings(max_num_seqs=1, max_num_queued_reqs=2)
    arrivals = (0.0, 0.001, 0.002, 0.015, 0.025)
    run = target(settings).run(workload(*(request(i, 5, 2, at) for i, at in enumerate(arrivals))))
    assert [200, 200, 503, 503, 200] == [record.status for record in run.records]
    assert "busy" in run.records[2].error


def test_requests_that_come_at_once_do_not_preempt_each_other_for_ever():
    """Two that tie in priority and arrival would; here as on a real clock one is the first."""
    settings = Settings(
        max_num_seqs=8,
        block_size=4,
        num_gpu_blocks_override=10,
        max_model_len=36,
        scheduling_policy="priority",
        enable_prefix_caching=False,
        long_prefill_token_threshold=1,
        extra={"scheduler_reserve_full_isl": False},
    )
    run = target(settings).run(workload(request(0, 30, 2, 0.0), request(1, 34, 1, 0.0)))
    assert [True, True] == [record.ok for record in run.records]
    assert run.rounds[0].server.preemptions > 0


def test_refused_requests_do_not_hold_a_slot_of_a_closed_loop():
    run = target().run(workload(request(0, 3000, 1), request(1, 5, 1), concurrency=1))
    assert [400, 200] == [record.status for record in run.records]
    assert 0.0 == run.records[1].scheduled_s


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (request(7, 0, 1, 0.0), "request 1 .index 7.: input_tokens must be .* not 0"),
        (request(7, 5, -1, 0.0), "output_tokens must be .* not -1"),
        (request(7, 5, float("nan"), 0.0), "output_tokens must be .* not nan"),
        (request(7, 5, 1, float("nan")), "arrival_s must be .* not nan"),
        (request(7, 5, 1, float("inf")), "arrival_s must be .* not inf"),
        (request(7, 5, 1, -1.0), "arrival_s must be .* not -1.0"),
        (request(7, 5, 1), "needs its arrival_s"),
        (request(7, 5, 1, 0.0, segments=(Segment(key=(OWN, 0), tokens=4),)), "segments are 4"),
    ],
)
def test_a_request_that_makes_no_sense_is_an_error_that_names_it(bad, reason):
    with pytest.raises(WorkloadError, match=reason):
        simulate(
            [request(0, 5, 1, 0.0), bad],
            config=target().config,
            device=TenMs(),
            on_record=lambda record: None,
        )


def test_arrivals_out_of_order_are_an_error_in_a_stream_and_sorted_in_a_plan():
    late_first = [request(0, 5, 1, 1.0), request(1, 5, 1, 0.0)]
    with pytest.raises(WorkloadError, match="not before that of the request before it"):
        simulate(late_first, config=target().config, device=TenMs(), on_record=lambda record: None)
    assert [[1010.0], [10.0]] == events_ms(target().run(workload(*late_first)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Settings(preemption="swap"), "only recomputes"),
        (Settings(num_gpu_blocks_override=10), "cannot hold one request of max_model_len"),
        (Settings(max_num_seqs=64, max_num_batched_tokens=32), "at least max_num_seqs"),
        (
            Settings(enable_chunked_prefill=False, max_num_batched_tokens=512),
            "without chunked prefill",
        ),
        (Settings(long_prefill_token_threshold=4096), "greater than max_model_len"),
        (Settings(extra={"watermark": 1.5}), "watermark"),
        (Settings(extra={"max_num_active_seqs": 300}), "cannot be greater than max_num_seqs"),
    ],
)
def test_settings_that_vllm_refuses_are_refused(settings, reason):
    with pytest.raises(SettingsError, match=reason):
        target(settings)


def test_an_unlimited_budget_takes_every_waiting_prompt_whole():
    one = target(Settings(max_num_seqs=4, max_num_batched_tokens="unlimited"))
    assert 4 * 2048 == one.config.max_num_batched_tokens
    run = one.run(workload(*(request(i, 2000, 1, 0.0) for i in range(4))))
    assert [[10.0]] * 4 == events_ms(run)


def test_an_a100_s_defaults_are_vllm_s():
    config = open_sim(Settings()).config
    expected = SchedulerConfig(
        num_gpu_blocks=config.num_gpu_blocks,
        max_model_len=8192,
        block_size=16,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
    )
    assert expected == config
    assert 28_000 <= config.num_gpu_blocks <= 29_000


def test_the_same_seed_gives_the_same_run():
    one = open_sim(Settings(max_num_seqs=8))
    runs = [one.run(mixed(requests=40, seed=3)) for _ in range(2)]
    assert events_ms(runs[0]) == events_ms(runs[1])
    other = one.run(mixed(requests=40, seed=4))
    assert events_ms(runs[0]) != events_ms(other)


def test_a_run_can_be_summarised_like_any_other():
    run = open_sim(Settings(max_num_seqs=8)).run(uniform(requests=64, arrivals=Poisson(2.0)))
    summary = summarise(run)
    assert 64 == summary.samples("ttft_p99_ms")
    assert 10.0 < summary.value("tpot_p50_ms") < 20.0
    assert ("sim", "sim-a100-80gb", "llama-3-8b") == (
        run.engine.target,
        run.engine.device,
        run.engine.model,
    )
    assert run.rounds[0].client.offered_rps == run.rounds[0].client.achieved_rps


def test_times_outlive_the_buffer_that_they_are_views_of():
    """A run of more steps than the buffer holds, with a request that lives all through it."""
    outputs = [30_000, *[700] * 60]
    run = target(Settings(max_num_seqs=2), max_model_len=32_768, num_gpu_blocks=4000).run(
        workload(*(request(i, 10, n) for i, n in enumerate(outputs)), concurrency=2)
    )
    assert outputs == [len(record.event_s) for record in run.records]
    for record in run.records:
        assert [0.01] == np.unique(np.round(np.diff(record.event_s), 9)).tolist()
    starts = [record.event_s[0] for record in run.records[1:]]
    assert starts == sorted(starts)


def test_a_stream_interval_sends_the_first_and_the_last_token_at_once():
    run = target(Settings(stream_interval=4)).run(
        workload(request(0, 5, 7, 0.0), request(1, 5, 5, 1.0), request(2, 5, 1, 2.0))
    )
    assert [[1, 4, 2], [1, 4], [1]] == [r.event_tokens.tolist() for r in run.records]
    assert [[10.0, 50.0, 70.0], [1010.0, 1050.0], [2010.0]] == events_ms(run)
    assert [7, 5, 1] == [r.output_tokens for r in run.records]
    assert 0.01 == pytest.approx(run.records[0].tpot_s)


def test_an_engine_argument_that_is_not_modelled_is_said_in_the_run():
    settings = Settings(extra={"max_num_queued_tokens": 5, "watermark": 0.1})
    [warning] = target(settings).run(workload(request(0, 5, 1, 0.0))).rounds[0].warnings
    assert warning.startswith("max_num_queued_tokens is set and not modelled")


def test_a_warning_of_the_device_s_profile_is_recorded_in_the_run():
    class Warns(TenMs):
        def __init__(self):
            self.warnings = ["of an earlier run"]

        def step_ms(self, step):
            if step.prefills and "extrapolated" not in self.warnings:
                self.warnings.append("extrapolated")
            return 10.0

    run = target(device=Warns()).run(workload(request(0, 5, 1, 0.0)))
    assert ("extrapolated",) == run.rounds[0].warnings
