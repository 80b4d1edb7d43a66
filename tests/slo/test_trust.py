from dataclasses import replace

from vllm_slo.measure.run import ClientFacts, ServerFacts
from vllm_slo.slo import Outcome, Rule, judge, trust


def known(run, **client):
    """The run with what a sim target always tells, and client facts of one's choice."""
    server = ServerFacts(preemptions=0, kv_use_max=0.5, running_max=8)
    rounds = (replace(r, server=server, client=ClientFacts(**client)) for r in run.rounds)
    return replace(run, rounds=tuple(rounds))


def test_a_regime_that_was_missed_leaves_nothing_to_judge(make_run, make_row):
    run = known(make_run([[100.0] * 100] * 5))
    row = make_row("ttft_p50_ms = 200")
    doubts = trust(run, row, expect_preemptions=True)
    assert any("preemptions where some are expected" in reason for reason in doubts.invalid)
    verdict = judge(run, row, rule=Rule(kind="rounds"), invalid=doubts.invalid)
    assert Outcome.INVALID == verdict.outcome


def test_the_client_may_be_late_by_a_share_of_the_tightest_ttft_limit_that_gates(
    make_run, make_row
):
    run = known(make_run([[100.0] * 100] * 5), loop_lag_max_s=0.2)
    limits = "ttft_p50_ms = {}\nttft_p99_ms = 4000\nclass.all.ttft_p99_ms = 10"
    lax, strict = (
        trust(run, make_row(limits.format(p50), more="advisory = ['class.all.ttft_p99_ms']"))
        for p50 in (3000, 1500)
    )

    def about_lag(doubts):
        return [reason for reason in doubts.invalid if "event loop" in reason]

    assert [] == about_lag(lax)
    assert 1 == len(about_lag(strict))
