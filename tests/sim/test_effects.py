"""The effects this project is about, in virtual time, on the modelled A100-80GB and Llama-3-8B.

Each follows from the schedule alone, so each is exact: the same numbers every time. Where the
reference tables say that a change goes one way and it does not, the test says where, and why.
"""

from collections.abc import Callable

import numpy as np
import pytest

from vllm_slo.measure import Summary, summarise
from vllm_slo.settings import Settings
from vllm_slo.sim import open_sim
from vllm_slo.traffic import Poisson, mixed, uniform
from vllm_slo.traffic.workload import PlannedRequest, Workload


def measured(settings: Settings, workload: Workload, **how) -> Summary:
    return summarise(open_sim(settings, **how).run(workload))


def values(summaries: list[Summary], name: str) -> list[float]:
    return [summary.value(name) for summary in summaries]


def rises(numbers: list[float]) -> bool:
    return bool(np.all(np.diff(numbers) > 0))


def outputs_of(lengths: Callable[[np.random.Generator, int], list[int]], **how) -> Workload:
    """2,000 requests of 512 tokens in; at `rate` a second in an open loop."""
    rate, count = how.pop("rate", None), 2000

    def plan(rng: np.random.Generator) -> list[PlannedRequest]:
        arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate else [None] * count
        return [
            PlannedRequest(index=i, input_tokens=512, output_tokens=n, arrival_s=at)
            for i, (n, at) in enumerate(zip(lengths(rng, count), arrivals, strict=True))
        ]

    return Workload(name="outputs", plan=plan, seed=1, **how)


def some_long(share: float) -> Callable[[np.random.Generator, int], list[int]]:
    """A share of outputs of 1,024 tokens among shorter ones; 256 on average."""
    short = round((256 - share * 1024) / (1 - share))
    return lambda rng, count: np.where(rng.random(count) < share, 1024, short).tolist()


def spread(width: int) -> Callable[[np.random.Generator, int], list[int]]:
    """Outputs from 256 - width to 256 + width, equally likely."""
    return lambda rng, count: (
        (256 + np.rint(width * rng.uniform(-1, 1, count))).astype(int).tolist()
    )


def gap_ms(settings: Settings, workload: Workload) -> tuple[float, float]:
    """TTFT p99 - p50, and p50, each the mean over three seeds."""
    runs = [measured(settings, workload.reseeded(seed)) for seed in range(3)]
    p50, p99 = (np.mean(values(runs, f"ttft_{p}_ms")) for p in ("p50", "p99"))
    return float(p99 - p50), float(p50)


def test_the_gap_from_ttft_p50_to_p99_grows_with_a_few_long_outputs_at_equal_load():
    """Head-of-line blocking: the same 256 tokens out on average, the same 3.5 requests/s.

    The median hardly moves, so what watches a mean or a median does not see it.
    """
    settings = Settings(max_num_seqs=16)
    shares = (0.0, 0.05, 0.1, 0.15)
    gaps, medians = zip(
        *(gap_ms(settings, outputs_of(some_long(share), rate=3.5)) for share in shares), strict=True
    )
    assert rises(list(gaps)), gaps
    assert gaps[-1] > 1.8 * gaps[0]
    assert max(medians) < 1.06 * min(medians)


def test_the_gap_grows_with_the_spread_of_outputs_where_clients_outnumber_slots():
    settings = Settings(max_num_seqs=32)
    runs = [
        measured(settings, outputs_of(spread(width), concurrency=64))
        for width in (0, 64, 128, 192, 240)
    ]
    gaps = [run.value("ttft_p99_ms") - run.value("ttft_p50_ms") for run in runs]
    assert rises(gaps), gaps
    medians = values(runs, "ttft_p50_ms")
    assert max(medians) < 1.07 * min(medians)


def test_mixed_outputs_against_uniform_ones_at_max_num_seqs_32():
    """The reference tables' mixed traffic also asks for twice the tokens: 544 a request, not 256.

    With more clients than slots, TTFT is above all the wait for a slot. It is about twice as long
    at p50 for that reason alone, and its spread is the mix's own: equal requests of 544 tokens
    have the same median, and almost none of the gap to p99.
    """
    settings = Settings(max_num_seqs=32)
    two_a_slot = {"requests": 1000, "concurrency": 64}
    even = measured(settings, uniform(**two_a_slot))
    mix = measured(settings, mixed(**two_a_slot))
    equal_mean = measured(settings, uniform(output_tokens=544, **two_a_slot))
    assert 1.7 < mix.value("ttft_p50_ms") / even.value("ttft_p50_ms") < 2.1
    assert 2.0 < mix.value("ttft_p99_ms") / even.value("ttft_p99_ms") < 2.6
    assert 0.9 < mix.value("ttft_p50_ms") / equal_mean.value("ttft_p50_ms") < 1.1
    gap, equal_gap = (
        run.value("ttft_p99_ms") - run.value("ttft_p50_ms") for run in (mix, equal_mean)
    )
    assert gap > 3 * equal_gap
    # The tables' TPOT p99 of mixed traffic (924 ms, of uniform 89) does not come from its lengths:
    # decoding beside long outputs costs no more than beside short ones.
    assert mix.value("tpot_p99_ms") < 1.1 * even.value("tpot_p99_ms")


def test_ttft_rises_with_max_num_seqs_where_the_clients_follow_the_slots():
    """As in the reference tables: a closed loop with concurrency = max_num_seqs."""
    runs = [measured(Settings(max_num_seqs=n), uniform(requests=512)) for n in (8, 16, 32, 64)]
    for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "output_tok_s"):
        assert rises(values(runs, name)), name


def test_ttft_falls_with_max_num_seqs_where_the_load_is_given():
    """The tables' direction ("max_num_seqs up: TTFT p99 up") does not hold in an open loop.

    At 5 requests/s too few slots make a queue, and more slots empty it.
    """
    runs = [
        measured(Settings(max_num_seqs=n), uniform(requests=1500, arrivals=Poisson(5.0)))
        for n in (8, 16, 32)
    ]
    assert rises(values(runs, "ttft_p99_ms")[::-1])


def test_a_smaller_budget_holds_back_decodes_less_and_the_first_token_less_at_the_median():
    """max_num_batched_tokens at max_num_seqs 64, as the tables sweep it.

    TTFT p50 and the longest pause between tokens rise with the budget. The tables' other
    directions do not hold here. TTFT p99 is that of the first burst of 64 prompts, whose tokens
    are the same however they are cut: it moves little, and a small budget makes it longer, since
    64 decodes take their part of each step. And throughput does not fall with the budget.
    """
    budgets = (512, 1024, 2048, 4096, 8192)
    runs = [
        measured(Settings(max_num_seqs=64, max_num_batched_tokens=n), uniform(requests=1000))
        for n in budgets
    ]
    assert rises(values(runs, "ttft_p50_ms"))
    assert rises(values(runs, "itl_max_ms"))
    p99 = values(runs, "ttft_p99_ms")
    assert p99[0] == max(p99)
    assert max(p99) < 1.25 * min(p99)
    assert not rises(values(runs, "output_tok_s"))


def test_preemption_raises_tpot_p99_and_leaves_the_median():
    workload = uniform(requests=400)
    roomy, tight = (
        open_sim(Settings(max_num_seqs=64, max_model_len=2048, num_gpu_blocks_override=blocks)).run(
            workload
        )
        for blocks in (None, 2000)
    )
    assert 0 == roomy.rounds[0].server.preemptions
    assert tight.rounds[0].server.preemptions > 50
    assert 1.0 == tight.rounds[0].server.kv_use_max
    calm, thrashing = summarise(roomy), summarise(tight)
    assert thrashing.value("tpot_p99_ms") > 1.5 * calm.value("tpot_p99_ms")
    assert thrashing.value("tpot_p50_ms") < calm.value("tpot_p50_ms")
    preempted = [r for r in tight.records if r.preemptions]
    others = [r for r in tight.records if not r.preemptions]
    assert min(r.itl_s.max() for r in preempted) > max(r.itl_s.max() for r in others)


def joined_by_a_long_prompt(tokens: int) -> Workload:
    """Sixteen requests that decode, and one long prompt that comes while they do."""
    decoding = [
        PlannedRequest(index=i, input_tokens=64, output_tokens=400, arrival_s=0.0)
        for i in range(16)
    ]
    long = PlannedRequest(index=16, input_tokens=tokens, output_tokens=1, arrival_s=2.0)
    return Workload(name="joined", plan=lambda rng: [*decoding, long])


@pytest.mark.parametrize(("budget", "policy"), [("unlimited", "vllm-v1"), (512, "whole-prefills")])
def test_a_whole_prefill_lifts_inter_token_latency_by_an_order_of_magnitude(budget, policy):
    settings = Settings(max_num_seqs=64, max_num_batched_tokens=budget)
    run = open_sim(settings, policy=policy).run(joined_by_a_long_prompt(7000))
    gaps = run.records[0].itl_s[10:]  # without those of the sixteen prompts
    assert gaps.max() > 10 * np.median(gaps)


def test_a_chunked_prefill_does_not():
    settings = Settings(max_num_seqs=64, max_num_batched_tokens=256)
    run = open_sim(settings).run(joined_by_a_long_prompt(7000))
    gaps = run.records[0].itl_s[10:]
    assert gaps.max() < 3 * np.median(gaps)
    # It costs the long prompt itself: the decodes take their part of each of its chunks.
    whole = open_sim(Settings(max_num_seqs=64, max_num_batched_tokens="unlimited"))
    long_whole = whole.run(joined_by_a_long_prompt(7000)).records[16]
    assert run.records[16].ttft_s > 1.2 * long_whole.ttft_s


def test_static_batching_makes_newcomers_wait_for_the_longest_of_the_batch():
    """What iteration-level scheduling replaced (Orca): the same load, mixed lengths."""
    workload = mixed(requests=300, arrivals=Poisson(1.5), seed=2)
    settings = Settings(max_num_seqs=32)
    static, iteration = (
        measured(settings, workload, policy=policy) for policy in ("static-batching", "vllm-v1")
    )
    assert static.value("ttft_p50_ms") > 50 * iteration.value("ttft_p50_ms")
    saturating = mixed(requests=300, concurrency=64, seed=2)
    static, iteration = (
        measured(settings, saturating, policy=policy) for policy in ("static-batching", "vllm-v1")
    )
    assert iteration.value("output_tok_s") > 1.4 * static.value("output_tok_s")


def test_asynchronous_scheduling_shortens_every_step_and_lengthens_the_wait_for_one():
    """The host's time between steps is hidden, and an arrival is seen a step later."""
    workload = uniform(requests=500, arrivals=Poisson(4.0), seed=1)
    sync, asynchronous = (
        measured(Settings(max_num_seqs=64, async_scheduling=is_async), workload)
        for is_async in (False, True)
    )
    assert asynchronous.value("tpot_p50_ms") < sync.value("tpot_p50_ms")
    assert asynchronous.value("ttft_p50_ms") > sync.value("ttft_p50_ms")
