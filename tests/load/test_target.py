"""`HttpTarget`: rounds, schedules, warm-up, observers, deadlines, Ctrl-C."""

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from golden_server import HEAD, Body, Wait, event, good_answer

from vllm_slo.errors import SettingsError, SloError
from vllm_slo.load import WarmUp
from vllm_slo.measure.run import GpuFacts, ServerFacts
from vllm_slo.traffic.workload import Workload


def arrival_order(golden) -> list[list[int]]:
    return [served.asked["prompt"] for served in golden.served]


# Schedules.


def test_an_open_loop_starts_requests_at_their_times_whatever_the_server_does(
    golden, target_at, open_loop
):
    golden.answer = lambda served: good_answer(served, pause_s=0.02)
    arrivals_s = [0.0, 0.004, 0.008, 0.05]

    run = target_at(golden.url).run(open_loop(arrivals_s))

    assert arrivals_s == pytest.approx([record.scheduled_s for record in run.records])
    assert all(record.sent_s >= record.scheduled_s for record in run.records)
    assert all(record.ok for record in run.records)


def test_an_open_loop_sends_in_the_order_of_arrival_and_records_in_that_of_the_plan(
    golden, target_at, open_loop
):
    workload = open_loop([0.06, 0.0, 0.03, 0.03])

    run = target_at(golden.url).run(workload)

    prompts = [
        workload.prompt_ids(request, vocab_size=512).tolist() for request in workload.requests
    ]
    assert [prompts[i] for i in (1, 2, 3, 0)] == arrival_order(golden)
    assert [0, 1, 2, 3] == [record.index for record in run.records]


def test_a_closed_loop_keeps_its_slots_full_and_no_fuller(golden, target_at, closed_loop):
    at_work, seen = set(), []

    def watched(served):
        at_work.add(id(served))
        seen.append(len(at_work))
        *steps, end = good_answer(served, pause_s=0.002)
        yield from steps
        at_work.discard(id(served))
        yield end

    golden.answer = watched
    run = target_at(golden.url).run(closed_loop(24, concurrency=5))

    assert 5 == max(seen)
    assert all(record.ok for record in run.records)


def test_more_slots_than_requests_send_each_once(golden, target_at, closed_loop):
    run = target_at(golden.url).run(closed_loop(3, concurrency=50))

    assert 3 == len(golden.served) == len(run.records)
    assert [0.0] * 3 == [record.scheduled_s for record in run.records]


def test_no_requests_make_an_empty_round(golden, target_at, closed_loop, open_loop):
    for workload in (closed_loop(0, concurrency=2), open_loop([])):
        run = target_at(golden.url).run(workload)
        assert ([], (0.0, 0.0)) == (list(run.rounds[0].records), run.rounds[0].window_s)


@pytest.mark.parametrize("arrival_s", [None, -0.1, float("nan"), float("inf")])
def test_an_open_loop_without_times_is_refused(golden, target_at, open_loop, arrival_s):
    with pytest.raises(SettingsError, match="workload 'open', request 1: arrival_s is"):
        target_at(golden.url).run(open_loop([0.0, arrival_s]))


def test_priorities_are_sent_where_there_are_any(golden, target_at, closed_loop):
    plain = closed_loop(2, concurrency=1)
    urgent = replace(plain, plan=lambda _: [replace(r, priority=-3) for r in plain.requests])

    target_at(golden.url).run(plain)
    target_at(golden.url).run(urgent)

    assert [None, None, -3, -3] == [served.asked.get("priority") for served in golden.served]


# What a round says of itself.


def test_a_round_says_how_well_the_client_kept_its_plan(golden, target_at, open_loop):
    arrivals_s = [0.0, 0.01, 0.02, 0.03, 0.04]

    run = target_at(golden.url).run(open_loop(arrivals_s))

    (one,) = run.rounds
    lags_s = [record.send_lag_s for record in one.records]
    assert 7 == one.seed
    assert (0.0, max(record.finished_s for record in one.records)) == one.window_s
    assert min(lags_s) <= one.client.send_lag_p99_s <= max(lags_s)
    assert 100 == pytest.approx(one.client.offered_rps)
    spread_s = one.records[-1].sent_s - one.records[0].sent_s
    assert 4 / spread_s == pytest.approx(one.client.achieved_rps)


def test_a_closed_loop_offers_no_rate(golden, target_at, closed_loop):
    (one,) = target_at(golden.url).run(closed_loop(4, concurrency=2)).rounds

    assert (None, None) == (one.client.offered_rps, one.client.achieved_rps)


def test_a_stall_of_the_client_shows_in_the_lag_of_its_loop(golden, target_at, closed_loop):
    def stall(done, planned):
        time.sleep(0.3)

    golden.answer = lambda served: good_answer(served, pause_s=0.1)
    target = target_at(golden.url, progress=stall)

    (one,) = target.run(closed_loop(1, concurrency=1)).rounds

    assert one.client.loop_lag_max_s >= 0.25
    assert 0.3 < one.client.loop_stalled_share <= 1.0


def test_a_stall_that_lasts_to_the_end_of_the_round_shows_too(golden, target_at, closed_loop):
    def answer_during_the_stall(served):
        time.sleep(0.05)
        return good_answer(served)

    class Freeze:
        """Holds the loop from the first turn until the answer is there."""

        def begin(self) -> None:
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)

        def end(self) -> dict[str, object]:
            return {}

    golden.answer = answer_during_the_stall
    target = target_at(golden.url, observers=[Freeze()])

    (one,) = target.run(closed_loop(1, concurrency=1)).rounds

    assert one.client.loop_lag_max_s >= 0.25


def test_chat_says_that_its_prompt_lengths_are_not_exact(golden, target_at, closed_loop):
    def chat(served):
        data = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": %s}], '
        usage = b'"usage": {"prompt_tokens": 31, "completion_tokens": %d}}\n\n'
        return [
            HEAD,
            *(Body(data % b"null" + usage % n) for n in (1, 2, 3)),
            Body(data % b'"length"' + usage % 4),
            Body(b"data: [DONE]\n\n"),
            *good_answer(served)[-1:],
        ]

    golden.answer = chat
    run = target_at(golden.url, api="chat").run(closed_loop(2, concurrency=1))

    assert [True, True] == [record.ok for record in run.records]
    assert not run.rounds[0].client.exact_prompts
    assert [(8, 31)] * 2 == [(r.planned_prompt_tokens, r.prompt_tokens) for r in run.records]
    assert "lengths in tokens are not the planned ones" in run.rounds[0].warnings[0]
    assert "/v1/chat/completions" == golden.served[0].path
    (message,) = golden.served[0].asked["messages"]
    assert 8 == len(message["content"].split())


def test_progress_ends_with_the_whole_round(golden, target_at, closed_loop):
    golden.answer = lambda served: good_answer(served, pause_s=0.1)
    told = []

    target = target_at(golden.url, progress=lambda done, planned: told.append((done, planned)))
    target.run(closed_loop(4, concurrency=2))

    assert (4, 4) == told[-1]
    assert 1 < len(told) <= 10
    assert sorted(told) == told


# Observers.


class Watcher:
    def __init__(self, log: list[str], name: str, **fields: object) -> None:
        self.log, self.name, self.fields = log, name, fields

    def begin(self) -> None:
        self.log.append(f"begin {self.name}")

    def end(self) -> dict[str, object]:
        self.log.append(f"end {self.name}")
        if "error" in self.fields:
            raise SloError(self.fields["error"])
        return self.fields


def test_observers_are_around_the_round_and_fill_it(golden, target_at, closed_loop):
    log = []
    server = ServerFacts(preemptions=3)
    gpu = GpuFacts(
        samples=1,
        memory_used_mib_max=1,
        sm_utilisation_percent=1,
        sm_clock_mhz_min=1,
        sm_clock_mhz_max=1,
        power_w_mean=1,
    )
    golden.answer = lambda served: log.append("request") or good_answer(served)
    watchers = [
        Watcher(log, "a", server=server, warnings=("hot",)),
        Watcher(log, "b", gpu=gpu, warnings=("cold",)),
    ]

    (one,) = target_at(golden.url, observers=watchers).run(closed_loop(1, concurrency=1)).rounds

    assert ["begin a", "begin b", "request", "end b", "end a"] == log
    assert (server, gpu) == (one.server, one.gpu)
    assert {"hot", "cold"} == set(one.warnings)


def test_an_observer_that_fails_is_heard_and_the_others_are_ended(golden, target_at, closed_loop):
    log = []
    watchers = [Watcher(log, "a"), Watcher(log, "b", error="/metrics lacks x")]
    target = target_at(golden.url, observers=watchers)

    with pytest.raises(SloError, match="/metrics lacks x"):
        target.run(closed_loop(2, concurrency=1))

    assert ["begin a", "begin b", "end b", "end a"] == log
    assert [True, True] == [record.ok for record in target.partial.records]


def test_two_observers_of_the_same_thing_are_a_mistake(golden, target_at, closed_loop):
    twice = [Watcher([], "a", server=ServerFacts()), Watcher([], "b", server=ServerFacts())]

    with pytest.raises(ValueError, match="two observers give 'server'"):
        target_at(golden.url, observers=twice).run(closed_loop(1, concurrency=1))


# Deadlines and interruption.


@pytest.mark.parametrize("client", ["wire", "httpx"])
def test_a_round_ends_at_its_deadline_with_a_record_for_every_request(
    golden, target_at, closed_loop, client
):
    stall = [HEAD, Body(event(text="a", tokens=1, prompt=8)), Wait(None)]
    golden.answer = lambda served: stall

    target = target_at(golden.url, round_timeout_s=0.5, client=client)
    run = target.run(closed_loop(5, concurrency=2))

    late = "timeout: the round was not over after 0.5 s"
    assert [f"{late}, after 1 token events"] * 2 + [f"never sent: {late}"] * 3 == [
        record.error for record in run.records
    ]
    assert all(record.sent_s >= record.scheduled_s for record in run.records)


def test_an_open_loop_past_its_deadline_sends_no_more(golden, target_at, open_loop):
    run = target_at(golden.url, round_timeout_s=0.3).run(open_loop([0.0, 3600.0]))

    assert [True, False] == [record.ok for record in run.records]
    assert 3600.0 == run.records[1].scheduled_s
    assert 1 == len(golden.served)


@pytest.mark.parametrize("client", ["wire", "httpx"])
def test_ctrl_c_ends_the_round_and_leaves_what_was_recorded(golden, target_at, closed_loop, client):
    log = []

    def interrupt_at_the_third(served):
        if len(golden.served) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            return [HEAD, Body(event(text="a", tokens=1, prompt=8)), Wait(None)]
        return good_answer(served)

    golden.answer = interrupt_at_the_third
    target = target_at(golden.url, client=client, observers=[Watcher(log, "a")])

    with pytest.raises(KeyboardInterrupt):
        target.run(closed_loop(9, concurrency=1))

    assert [True, True, False] == [record.ok for record in target.partial.records]
    assert target.partial.records[2].error.startswith("interrupted")
    assert ["begin a", "end a"] == log
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    "options",
    [
        {"client": "curl"},
        {"request_timeout_s": 0},
        {"round_timeout_s": float("nan")},
        {"round_timeout_s": float("inf")},
    ],
)
def test_options_that_make_no_sense_are_refused(target_at, options):
    with pytest.raises(SettingsError):
        target_at("http://127.0.0.1:1", **options)


def test_tls_needs_the_other_client(target_at):
    with pytest.raises(SettingsError, match="run again with --slo-client=httpx"):
        target_at("https://127.0.0.1:1")
    assert target_at("https://127.0.0.1:1", client="httpx")


# Warm-up.


def test_a_warm_up_is_of_the_same_shape_with_other_prompts_and_is_not_counted(
    golden, target_at, closed_loop
):
    workload = closed_loop(12, concurrency=3, input_tokens=9, output_tokens=40)

    run = target_at(golden.url, warm_up=WarmUp(output_tokens=5)).run(workload)

    sent = run.rounds[0].client.warmup_requests
    asked = [served.asked for served in golden.served]
    warm, measured = asked[:sent], asked[sent:]
    assert sent >= 6
    assert sent % 3 == 0
    assert {(9, 5)} == {(len(one["prompt"]), one["max_tokens"]) for one in warm}
    assert {(9, 40)} == {(len(one["prompt"]), one["max_tokens"]) for one in measured}
    prompts = {tuple(one["prompt"]) for one in asked}
    assert len(asked) == len(prompts)
    assert 12 == len(run.records)


def test_a_warm_up_goes_on_until_step_time_has_settled(golden, target_at, closed_loop):
    def slow_at_first(served):
        pause_s = {0: 0.2, 1: 0.2, 2: 0.1, 3: 0.1}.get(len(golden.served) - 1, 0.02)
        return good_answer(served, pause_s=pause_s)

    golden.answer = slow_at_first
    target = target_at(golden.url, warm_up=WarmUp(tolerance=0.4, output_tokens=2))

    warmth = target.warm_up(closed_loop(6, concurrency=2))

    assert warmth.is_settled
    assert warmth.requests >= 8


def test_a_server_that_never_settles_is_said_to_be_unsettled(golden, target_at, closed_loop):
    golden.answer = lambda served: good_answer(served, pause_s=0.02 * 3 ** (len(golden.served) - 1))
    target = target_at(golden.url, warm_up=WarmUp(max_batches=3, output_tokens=1, tolerance=0.1))

    warmth = target.warm_up(closed_loop(1, concurrency=1))

    assert (3, False) == (warmth.requests, warmth.is_settled)


def test_a_kind_of_workload_is_warmed_up_once(golden, target_at, closed_loop):
    target = target_at(golden.url, warm_up=WarmUp())
    workload = closed_loop(2, concurrency=1)

    first = target.run(workload).rounds[0].client.warmup_requests
    target.run(workload.reseeded(8))

    assert first + 2 + 2 == len(golden.served)


def test_a_server_that_answers_nothing_is_warmed_up_no_longer(golden, target_at, closed_loop):
    golden.answer = lambda served: [Wait(None)]
    target = target_at(golden.url, warm_up=WarmUp(max_s=0.2), round_timeout_s=5.0)

    warmth = target.warm_up(closed_loop(4, concurrency=2))

    assert (2, False) == (warmth.requests, warmth.is_settled)


def test_shared_prefixes_are_left_out_of_the_warm_up(golden, target_at):
    from vllm_slo.traffic.workload import PlannedRequest, Segment

    shared = (Segment(key=(1,), tokens=8),)
    workload = Workload(
        name="shared",
        plan=lambda _: [
            PlannedRequest(index=i, input_tokens=8, output_tokens=1, segments=shared)
            for i in range(3)
        ],
        concurrency=1,
    )

    run = target_at(golden.url, warm_up=WarmUp(max_batches=2)).run(workload)

    prompts = [tuple(served.asked["prompt"]) for served in golden.served]
    sent = run.rounds[0].client.warmup_requests
    assert 1 == len(set(prompts[sent:]))
    assert sent == len(set(prompts[:sent]) - set(prompts[sent:]))
