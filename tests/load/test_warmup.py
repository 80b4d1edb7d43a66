"""When two warm-up batches count as alike."""

import numpy as np
import pytest

from vllm_slo.load.warmup import has_settled
from vllm_slo.measure.record import RequestRecord

PREFILL_S, DECODE_S, TOKENS = 2.0, 0.02, 16


def batch(first_step: int, *, of: int = 64, prefill_s: float = PREFILL_S, decode_s=DECODE_S):
    """`first_step` prompts are prefilled at once, the others in the next step, which they stall."""
    records = []
    first_s = prefill_s * first_step / of
    for index in range(of):
        is_first = index < first_step
        rest_s = prefill_s - first_s + decode_s * np.arange(TOKENS - is_first)
        event_s = [first_s, *(first_s + rest_s)] if is_first else first_s + rest_s
        records.append(
            RequestRecord(
                index=index,
                planned_prompt_tokens=512,
                planned_output_tokens=TOKENS,
                scheduled_s=0.0,
                sent_s=0.0,
                event_s=np.array(event_s),
                event_tokens=np.ones(TOKENS, dtype=np.int64),
                finished_s=float(event_s[-1]),
                prompt_tokens=512,
                output_tokens=TOKENS,
            )
        )
    return records


@pytest.mark.parametrize(("one", "other"), [(1, 2), (1, 40), (30, 34), (63, 20)])
def test_how_prompts_were_split_into_steps_does_not_matter(one, other):
    assert has_settled(batch(one), batch(other), tolerance=0.15)


@pytest.mark.parametrize("slower", [{"prefill_s": 1.3 * PREFILL_S}, {"decode_s": 1.3 * DECODE_S}])
def test_a_batch_that_prefills_or_decodes_slower_is_not_alike(slower):
    assert not has_settled(batch(8, **slower), batch(8), tolerance=0.15)
    assert not has_settled(batch(8), batch(40, **slower), tolerance=0.15)


def test_a_single_slow_request_is_enough():
    slow = batch(8)
    slow[-1].event_s[:] += 1.0

    assert not has_settled(slow, batch(8), tolerance=0.15)
