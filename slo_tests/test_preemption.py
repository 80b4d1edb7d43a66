"""Preemption: what happens when the KV cache is full."""


def test_ordinary_kv_cache_preempts_nobody(server_at_64, load, slo, uniform_traffic):
    """Guards against preemption where the KV cache holds every running request."""
    run = load(uniform_traffic, row="no preemption", reuse=True)
    slo.check(run, row="no preemption", expect_preemptions=False)


def test_preemption_keeps_tpot_bounded(server_short_of_kv, load, slo, uniform_traffic):
    """Guards TPOT p99 under preemption: a recomputed request stalls, and must not stall for ever.

    The effect: with room for about half of the running requests vLLM evicts the newest, and
    prefills it again with all it had generated.
    """
    run = load(uniform_traffic, row="preemption")
    slo.check(run, row="preemption", expect_preemptions=True)
