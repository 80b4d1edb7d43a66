"""Mixed traffic: output lengths vary, so short requests wait for long ones."""


def test_mixed_traffic(server_at_32, load, slo, mixed_traffic, uniform_traffic):
    """Guards the reference's mixed table: 512 tokens in, 64 to 1,024 out, at 32 sequences.

    The effect: outputs of different lengths leave and enter the batch at different times, so
    prefills join running decodes. The ratio to uniform traffic on the same server is noted.
    """
    mixed = load(mixed_traffic)
    slo.note_ratio(
        mixed, load(uniform_traffic, reuse=True), "ttft_p99_ms", "tpot_p99_ms", "output_tok_s"
    )
    slo.check(mixed, row="mixed")
