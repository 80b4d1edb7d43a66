"""`max_num_batched_tokens`: how much prefill one step may take."""


def test_chunk_size(server_by_chunk_size, load, slo, uniform_traffic):
    """Guards the reference's chunk table, at 64 sequences, with SM utilisation where there is one.

    The effect: a smaller budget gives decodes their turn sooner (TPOT p99 falls) and lets the GPU
    do less work a step.
    """
    slo.check(load(uniform_traffic, row="chunk", reuse=True), row="chunk")
