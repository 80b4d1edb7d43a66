"""Metrics: as measurement defines them, pooled, per round and per class."""

import numpy as np
import pytest

from vllm_slo.measure import GpuFacts, ServerFacts, summarise
from vllm_slo.measure.metrics import LATENCIES
from vllm_slo.measure.throughput import UNKNOWN_COUNTS, UNKNOWN_EVENT_TOKENS, UNKNOWN_PROMPTS


def test_every_latency_is_the_records_own(random_run):
    summary = summarise(random_run)
    records = random_run.records
    own = {
        "ttft": [r.ttft_s for r in records],
        "tpot": [r.tpot_s for r in records],
        "itl": [gap for r in records for gap in r.itl_s],
        "e2e": [r.e2e_s if r.ok else None for r in records],
        "send_lag": [r.send_lag_s for r in records],
    }
    assert set(own) == set(LATENCIES)
    for metric, seconds in own.items():
        expected = [1e3 * value for value in seconds if value is not None]
        found = summary.latencies[metric]
        assert found.values_ms.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        if metric != "itl":
            assert found.n + sum(found.without.values()) == len(records)
        assert found.quantile(0.99) == pytest.approx(np.percentile(expected, 99))
        assert summary.value(f"{metric}_p99_ms") == found.p99
        assert summary.samples(f"{metric}_p99_ms") == len(expected)


def test_requests_without_a_metric_are_counted_and_named(record, failed, run_of):
    records = [
        record(),
        record(gaps=()),  # a single token
        record(gaps=(), tokens=[4]),  # all tokens in one event
        record(gaps=(), output_tokens=3, error="counts differ"),  # two tokens nobody saw
        record(output_tokens=None, knows_tokens=False, error="no usage"),
        failed(),
    ]
    latencies = summarise(run_of(records)).latencies
    assert latencies["ttft"].without == {"no token came": 1}
    assert latencies["tpot"].n == 1
    assert latencies["tpot"].without == {
        "no token came": 1,
        "no token after the first event": 2,
        "tokens came in one event": 1,
        "the server sent no token count": 1,
    }
    assert latencies["e2e"].without == {"failed": 3}
    assert latencies["send_lag"].without == {}


def test_tpot_leaves_out_the_tokens_of_the_first_event(record, run_of):
    summary = summarise(run_of([record(gaps=(0.04, 0.04), tokens=[3, 2, 2])]))
    assert summary.value("tpot_p50_ms") == pytest.approx(20.0)
    assert summary.latencies["itl"].values_ms.tolist() == pytest.approx([20.0, 20.0])


def test_output_tokens_count_where_they_arrive(record, run_of):
    # Events at 0.1, 0.12, 0.14, 0.16 and at 1.1 ... 1.16; the window holds 0.12 to 1.1.
    run = run_of([record(), record(at=1.0)], window_s=(0.11, 1.11))
    summary = summarise(run)
    assert summary.value("output_tok_s") == pytest.approx(4 / 1.0)
    assert summary.value("total_tok_s") == pytest.approx((4 + 10) / 1.0)
    assert summary.approximate == ()


def test_throughput_is_per_round_and_its_mean_is_shown(record, run_of):
    run = run_of([record()], [record(), record()], window_s=(0.0, 2.0))
    summary = summarise(run)
    assert summary.output_tok_s == (2.0, 4.0)
    assert (summary.value("output_tok_s"), summary.samples("output_tok_s")) == (3.0, 2)


def test_unknown_tokens_are_spread_evenly_and_said_so(record, run_of):
    run = run_of(
        [record(knows_tokens=False, output_tokens=8, planned_output_tokens=8)],
        window_s=(0.0, 0.13),
    )
    summary = summarise(run)
    assert summary.value("output_tok_s") == pytest.approx(4 / 0.13)
    assert summary.approximate == (UNKNOWN_EVENT_TOKENS,)


def test_a_missing_count_is_said_too(record, run_of):
    lost = record(knows_tokens=False, output_tokens=None, prompt_tokens=None, error="no usage")
    summary = summarise(run_of([lost], window_s=(0.0, 1.0)))
    assert summary.value("total_tok_s") == pytest.approx(14.0)
    assert summary.approximate == (UNKNOWN_EVENT_TOKENS, UNKNOWN_COUNTS, UNKNOWN_PROMPTS)


def test_failed_requests_are_in_the_denominator_of_goodput(record, failed, run_of):
    records = [record(ttft=0.1), record(ttft=0.3), record(ttft=0.1, gaps=(0.5,)), failed()]
    run = run_of(records, window_s=(0.0, 2.0))
    found = summarise(run, goodput_limits_ms={"ttft": 200, "tpot": 100}).goodput
    assert (found.good, found.requests, found.share, found.rate_rps) == (1, 4, 0.25, 0.5)
    assert summarise(run, goodput_limits_ms={"itl": 100}).value("goodput") == 0.5
    assert summarise(run, goodput_limits_ms={"e2e": 1000}).value("goodput_rps") == 1.5
    assert summarise(run).value("goodput") is None


def test_a_goodput_limit_on_nothing_known_is_refused(record, run_of):
    with pytest.raises(ValueError, match="goodput knows no limit on 'tok_s'"):
        summarise(run_of([record()]), goodput_limits_ms={"tok_s": 1})


def test_failures_are_counted_by_reason(record, failed, run_of):
    summary = summarise(run_of([record(), failed(), failed(), failed(error="timeout")]))
    assert (summary.requests, summary.failed, summary.failed_share) == (4, 3, 0.75)
    assert summary.failures == {"HTTP 503": 2, "timeout": 1}


def test_a_failed_request_is_over_every_limit(record, failed, run_of):
    cut = record(ttft=0.05, error="the stream was cut")
    run = run_of([record(), failed(planned=4)], [cut])
    latencies = summarise(run).latencies
    assert [one.tolist() for one in latencies["ttft"].outcomes()] == [
        pytest.approx([100.0, np.inf]),
        [np.inf],
    ]
    assert [len(one) for one in latencies["tpot"].outcomes()] == [2, 1]
    itl = latencies["itl"].outcomes()
    assert [np.isinf(one).sum() for one in itl] == [3, 3]
    assert latencies["ttft"].n == 2  # what is shown are the times that were measured


def test_classes_have_summaries_of_their_own(record, failed, run_of):
    fast, slow = record(class_name="short"), record(ttft=0.9, class_name="long")
    summary = summarise(run_of([fast, slow, fast], [slow]))
    assert list(summary.classes) == ["short", "long"]
    short, long = summary.classes.values()
    assert (short.requests, long.requests, summary.requests) == (2, 2, 4)
    assert short.value("ttft_p99_ms") == pytest.approx(100.0)
    assert long.value("ttft_p99_ms") == pytest.approx(900.0)
    assert [len(one) for one in short.latencies["ttft"].outcomes()] == [2, 0]
    assert sum(short.output_tok_s) + sum(long.output_tok_s) == pytest.approx(
        sum(summary.output_tok_s)
    )
    assert short.value("preemptions") is None
    assert summarise(run_of([fast])).classes == {}


def test_server_and_machine_figures(record, run_of):
    gpu = GpuFacts(
        samples=10,
        memory_used_mib_max=1.0,
        sm_utilisation_percent=80.0,
        sm_clock_mhz_min=1.0,
        sm_clock_mhz_max=1.0,
        power_w_mean=1.0,
    )
    server = ServerFacts(preemptions=3, kv_use_max=0.7)
    summary = summarise(run_of([record(finished_s=30.0)] * 2, [record()], server=server, gpu=gpu))
    assert summary.value("preemptions") == 6
    assert summary.value("preemptions_per_minute") == pytest.approx(6 / (30.16 / 60), rel=1e-3)
    assert summary.value("kv_use_max") == 0.7
    assert summary.value("sm_utilisation_percent") == 80.0


def test_a_count_that_one_round_lacks_is_not_known(record, run_of):
    run = run_of([record()], server=ServerFacts(preemptions=1))
    mixed = run.joined(run_of([record()], server=ServerFacts()))
    assert summarise(mixed).value("preemptions") is None
    assert summarise(mixed).value("preemptions_per_minute") is None


@pytest.mark.parametrize(
    ("name", "q"),
    [("ttft_p50_ms", 0.5), ("ttft_p999_ms", 0.999), ("ttft_p99.9_ms", 0.999), ("ttft_p5_ms", 0.05)],
)
def test_any_percentile_has_a_name(random_run, name, q):
    summary = summarise(random_run)
    expected = np.quantile(summary.latencies["ttft"].values_ms, q)
    assert summary.value(name) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["p99", "ttft_p99", "ttft_p_ms", "tps", "queue_p99_ms", ""])
def test_an_unknown_figure_is_an_error(random_run, name):
    with pytest.raises(KeyError):
        summarise(random_run).value(name)


def test_empty_runs_have_no_figures_and_no_faults(run_of, failed):
    for run in (run_of(), run_of([]), run_of([failed()], window_s=(0.0, 0.0))):
        summary = summarise(run, goodput_limits_ms={"ttft": 1.0})
        assert summary.value("ttft_p99_ms") is None
        assert summary.value("ttft_mean_ms") is None
        assert summary.value("output_tok_s") is None
        assert summary.value("goodput_rps") is None
        assert summary.samples("ttft_p99_ms") == 0
        assert summary.latencies["itl"].p50 is None
