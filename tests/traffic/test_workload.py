"""Workloads: one seed, one plan, on every machine."""

from dataclasses import replace

import numpy as np
import pytest

from vllm_slo.errors import WorkloadError
from vllm_slo.traffic import (
    ClosedLoop,
    Fixed,
    LogNormal,
    MixPlan,
    PlannedRequest,
    Poisson,
    Segment,
    TrafficClass,
    Uniform,
    Workload,
    mix,
    mixed,
    uniform,
)
from vllm_slo.traffic.prompts import draw_ids

SHORT = TrafficClass("short", Uniform(100, 200), Fixed(16), 3)
LONG = TrafficClass("long", LogNormal(800, 0.7), Uniform(64, 1024), 1, priority=2)


def test_plans_are_the_same_on_every_machine():
    requests = mix([SHORT, LONG], requests=8, arrivals=Poisson(2.0), seed=7).requests
    assert [(r.class_name, r.input_tokens, r.output_tokens) for r in requests] == [
        ("long", 1128, 524),
        ("short", 140, 16),
        ("short", 163, 16),
        ("long", 525, 667),
        ("short", 179, 16),
        ("short", 149, 16),
        ("short", 149, 16),
        ("short", 103, 16),
    ]
    arrivals = [0.274569, 0.30923, 0.414998, 0.667342, 0.816821, 1.270233, 2.240047, 3.315477]
    assert [r.arrival_s for r in requests] == pytest.approx(arrivals, abs=1e-6)
    assert [r.priority for r in requests[:2]] == [2, 0]


def test_prompts_are_the_same_on_every_machine():
    expected = [436, 17, 476, 140, 307, 441, 190, 481]
    workload = uniform(requests=3, concurrency=1, seed=7)
    assert workload.prompt_ids(workload.requests[2], vocab_size=512)[:8].tolist() == expected
    assert draw_ids((0, 1, 0), 3, 128_256).tolist() == [120778, 59492, 67049]


def test_lengths_do_not_depend_on_arrivals_or_concurrency():
    closed = mix([SHORT, LONG], concurrency=32, seed=3).requests
    wider = mix([SHORT, LONG], concurrency=64, seed=3).requests
    opened = mix([SHORT, LONG], arrivals=Poisson(9), seed=3).requests
    assert (len(closed), len(wider), len(opened)) == (128, 256, 300)

    def lengths(requests: tuple[PlannedRequest, ...]) -> list[tuple[str, int, int]]:
        return [(r.class_name, r.input_tokens, r.output_tokens) for r in requests[:128]]

    assert lengths(closed) == lengths(wider) == lengths(opened)


def test_another_seed_is_another_plan_of_the_same_traffic():
    first = mixed(concurrency=16, seed=1)
    second = first.reseeded(2)
    assert [r.output_tokens for r in first.requests] != [r.output_tokens for r in second.requests]
    assert second.reseeded(1).requests == first.requests
    assert (second.name, second.params) == (first.name, first.params)


def test_scenario_defaults():
    requests = uniform(concurrency=8).requests
    assert {(r.input_tokens, r.output_tokens) for r in requests} == {(512, 256)}
    outputs = np.array([r.output_tokens for r in mixed(concurrency=500).requests])
    assert {r.input_tokens for r in mixed(concurrency=500).requests} == {512}
    assert outputs.min() >= 64
    assert outputs.max() <= 1024
    assert outputs.mean() == pytest.approx(544, rel=0.05)


def test_the_default_loop_is_as_wide_as_the_server():
    workload = uniform()
    assert workload.is_closed_loop
    assert workload.concurrency is None
    assert dict(workload.params)["concurrency"] == "max_num_seqs"
    sizes = [(w.concurrency, len(w.requests)) for w in map(workload.for_server, (8, 16, 64))]
    assert sizes == [(8, 64), (16, 64), (64, 256)]


def test_a_loop_may_be_a_multiple_of_the_server():
    workload = uniform(arrivals=ClosedLoop("max_num_seqs", times=1.5), requests=10).for_server(5)
    assert (workload.concurrency, len(workload.requests)) == (8, 10)


def test_a_workload_for_one_server_can_be_made_for_another():
    workload = mixed(seed=4).for_server(8).for_server(32)
    assert (workload.concurrency, len(workload.requests)) == (32, 128)
    assert workload.requests == mixed(seed=4, concurrency=32).requests
    assert workload.reseeded(5).concurrency == 32


def test_a_loop_of_its_own_width_ignores_the_server():
    workload = uniform(concurrency=4)
    assert workload.for_server(64) is workload
    opened = uniform(arrivals=Poisson(2))
    assert opened.for_server(64) is opened


def test_a_plan_that_needs_its_server_says_so():
    with pytest.raises(WorkloadError, match=r"workload\.for_server\(max_num_seqs\)"):
        _ = uniform().requests
    with pytest.raises(WorkloadError, match="max_num_seqs"):
        _ = uniform(requests=100).requests


def test_params_describe_the_traffic():
    assert dict(mixed(arrivals=Poisson(2.5), requests=40).params) == {
        "input_tokens": 512,
        "output_tokens": "64..1024",
        "arrivals": "poisson(2.5/s)",
        "requests": 40,
    }
    described = dict(mix([SHORT, LONG], concurrency=2).params)["classes"]
    assert described == (
        "short: 3 x 100..200 in, 16 out; "
        "long: 1 x lognormal(median=800, sigma=0.7, 1..131072) in, 64..1024 out, priority 2"
    )


def test_classes_come_in_proportion_to_their_weights():
    requests = mix([SHORT, LONG], requests=20_000, concurrency=1).requests
    short = sum(r.class_name == "short" for r in requests)
    assert short / len(requests) == pytest.approx(0.75, abs=0.02)


def test_prompts_are_exact_and_keep_clear_of_special_tokens():
    workload = mix([SHORT, LONG], requests=50, concurrency=1)
    for vocab_size, highest in ((512, 509), (128_256, 127_754)):
        for request in workload.requests:
            ids = workload.prompt_ids(request, vocab_size=vocab_size)
            assert (len(ids), ids.dtype) == (request.input_tokens, np.int64)
            assert ids.min() >= 16
            assert ids.max() <= highest


def test_prompt_ids_are_spread_evenly():
    ids = draw_ids((3, 1, 4), 494_000, 512)
    counts = np.bincount(ids - 16, minlength=494)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert abs(chi_square - 493) < 6 * np.sqrt(2 * 493)


def test_prompts_of_different_requests_rounds_and_seeds_share_nothing():
    workload = uniform(requests=4, concurrency=1, seed=1)
    prompts = [
        tuple(one.prompt_ids(request, vocab_size=32_000)[:4].tolist())
        for one in (workload, workload.reseeded(2))
        for request in one.requests
    ]
    assert len(set(prompts)) == 8


def test_a_class_shares_its_prefix_and_nothing_more():
    shared = replace(SHORT, name="shared", shared_prefix_tokens=60)
    workload = mix([shared], requests=3, concurrency=1, seed=9)
    one, two = (workload.prompt_ids(r, vocab_size=32_000) for r in workload.requests[:2])
    assert one[:60].tolist() == two[:60].tolist()
    assert (one[60:70] != two[60:70]).any()
    assert all(sum(s.tokens for s in r.segments) == r.input_tokens for r in workload.requests)
    other_round = workload.reseeded(10)
    anew = other_round.prompt_ids(other_round.requests[0], vocab_size=32_000)
    assert (one[:60] != anew[:60]).any()


def test_a_prompt_shorter_than_the_prefix_shares_all_of_itself():
    shared = TrafficClass("tiny", Uniform(5, 50), Fixed(1), shared_prefix_tokens=50)
    workload = mix([shared], requests=20, concurrency=1)
    prompts = [workload.prompt_ids(r, vocab_size=999).tolist() for r in workload.requests]
    longest = max(prompts, key=len)
    assert all(prompt == longest[: len(prompt)] for prompt in prompts)


def test_segments_with_one_key_share_their_first_tokens():
    def plan(rng: np.random.Generator) -> list[PlannedRequest]:
        blocks = (Segment(key=(3, 8), tokens=10),), (Segment(key=(3, 8), tokens=6),)
        return [
            PlannedRequest(
                index=i, input_tokens=s[0].tokens, output_tokens=1, arrival_s=0.0, segments=s
            )
            for i, s in enumerate(blocks)
        ]

    workload = Workload(name="blocks", plan=plan)
    long, short = (workload.prompt_ids(r, vocab_size=999).tolist() for r in workload.requests)
    assert long[:6] == short


def test_hundred_thousand_requests_are_planned():
    requests = mix([SHORT, LONG], requests=100_000, arrivals=Poisson(50)).requests
    assert len(requests) == 100_000
    assert requests[-1].index == 99_999


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda: uniform(input_tokens=0), "from 1 to"),
        (lambda: uniform(requests=0, concurrency=1), "requests must be >= 1"),
        (lambda: uniform(concurrency=0), "concurrency must be"),
        (lambda: uniform(concurrency=2, arrivals=Poisson(1)), "not both"),
        (lambda: uniform(seed=-1), "a seed is a whole number >= 0"),
        (lambda: mix([]), "at least one class"),
        (lambda: mix([SHORT, SHORT]), "one name"),
        (lambda: mix([replace(SHORT, weight=0.0)]), "not all 0"),
        (lambda: replace(SHORT, weight=-1.0), "weights must be"),
        (lambda: replace(SHORT, name=""), "needs a name"),
        (lambda: replace(SHORT, shared_prefix_tokens=-1), "shared_prefix_tokens"),
        (lambda: draw_ids((1,), 4, 17), "too small"),
        (lambda: MixPlan(classes=(SHORT,))(np.random.default_rng(0)), "number of requests"),
    ],
)
def test_workloads_that_make_no_sense_are_refused(make, fault):
    with pytest.raises(WorkloadError) as caught:
        make()
    assert fault in str(caught.value)
