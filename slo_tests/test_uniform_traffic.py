"""Uniform traffic: every request has the same lengths, so nothing but the scheduler varies."""


def test_uniform_traffic(server_by_max_num_seqs, load, slo, uniform_traffic):
    """Guards the reference's uniform table: 512 tokens in, 256 out.

    The effect: a closed loop of `max_num_seqs` slots starts together, so the last prompt waits for
    all prefills before it, and TTFT p99 grows with `max_num_seqs` while throughput gains less and
    less.
    """
    slo.check(load(uniform_traffic, reuse=True), row="uniform")
