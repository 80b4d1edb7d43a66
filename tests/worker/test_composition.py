"""Steps read from scheduler outputs of vLLM's form."""

from types import SimpleNamespace
from typing import Any

from vllm_slo.device import Step
from vllm_slo.engine.worker.composition import StepReader


def new(request_id: str, prompt: int, *, computed: int = 0, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        req_id=request_id, prompt_token_ids=[17] * prompt, num_computed_tokens=computed, **more
    )


def output(
    counts: dict[str, int],
    *,
    fresh: list[SimpleNamespace] | None = None,
    cached: dict[str, tuple[int, int]] | None = None,
    finished: tuple[str, ...] = (),
) -> SimpleNamespace:
    """A `SchedulerOutput`; `cached` maps a request to (computed tokens, output tokens)."""
    cached = cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=fresh or [],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            num_computed_tokens=[computed for computed, _ in cached.values()],
            num_output_tokens=[outputs for _, outputs in cached.values()],
        ),
        num_scheduled_tokens=counts,
        finished_req_ids=set(finished),
    )


def test_a_prompt_that_fits_is_one_prefill_that_samples() -> None:
    step, continues = StepReader().read(output({"a": 100}, fresh=[new("a", 100)]))
    assert step == Step(prefills=((100, 0),), sampled=1)
    assert not continues


def test_a_prompt_in_chunks_samples_with_the_last_one_only() -> None:
    reader = StepReader()
    first, _ = reader.read(output({"a": 64}, fresh=[new("a", 150)]))
    second, continues = reader.read(output({"a": 64}, cached={"a": (64, 0)}))
    last, _ = reader.read(output({"a": 22}, cached={"a": (128, 0)}))
    assert first == Step(prefills=((64, 0),), sampled=0)
    assert second == Step(prefills=((64, 64),), sampled=0)
    assert last == Step(prefills=((22, 128),), sampled=1)
    assert continues


def test_decodes_count_their_context_with_this_steps_token() -> None:
    reader = StepReader()
    reader.read(output({"a": 10, "b": 20}, fresh=[new("a", 10), new("b", 20)]))
    step, continues = reader.read(output({"a": 1, "b": 1}, cached={"a": (10, 1), "b": (20, 1)}))
    assert step == Step(decodes=2, decode_context=11 + 21, sampled=2)
    assert continues


def test_a_prefix_hit_leaves_only_the_rest_to_prefill() -> None:
    step, _ = StepReader().read(output({"a": 36}, fresh=[new("a", 100, computed=64)]))
    assert step == Step(prefills=((36, 64),), sampled=1)


def test_a_last_prompt_token_alone_is_a_prefill() -> None:
    reader = StepReader()
    reader.read(output({"a": 9}, fresh=[new("a", 10)]))
    step, _ = reader.read(output({"a": 1}, cached={"a": (9, 0)}))
    assert step == Step(prefills=((1, 9),), sampled=1)


def test_a_preempted_request_prefills_prompt_and_outputs_again() -> None:
    reader = StepReader()
    reader.read(output({"a": 50}, fresh=[new("a", 50)]))
    reader.read(output({"a": 1}, cached={"a": (50, 1)}))
    part, _ = reader.read(output({"a": 40}, cached={"a": (0, 2)}))
    rest, _ = reader.read(output({"a": 12}, cached={"a": (40, 2)}))
    decode, _ = reader.read(output({"a": 1}, cached={"a": (52, 3)}))
    assert part == Step(prefills=((40, 0),), sampled=0)
    assert rest == Step(prefills=((12, 40),), sampled=1)
    assert decode == Step(decodes=1, decode_context=53, sampled=1)


def test_a_preempted_request_that_is_sent_as_new_again_is_no_newcomer() -> None:
    reader = StepReader()
    reader.read(output({"a": 50}, fresh=[new("a", 50, prefill_token_ids=[17] * 50)]))
    again = new("a", 50, prefill_token_ids=[17] * 60)
    step, continues = reader.read(output({"a": 50}, fresh=[again]))
    assert step == Step(prefills=((50, 0),), sampled=0)
    assert continues


def test_a_finished_requests_id_may_come_again() -> None:
    reader = StepReader()
    reader.read(output({"a": 50}, fresh=[new("a", 50)]))
    step, continues = reader.read(output({"a": 9}, fresh=[new("a", 9)], finished=("a",)))
    assert step == Step(prefills=((9, 0),), sampled=1)
    assert not continues


def test_decodes_and_prefills_share_a_step() -> None:
    reader = StepReader()
    reader.read(output({"a": 10}, fresh=[new("a", 10)]))
    mixed = output({"a": 1, "b": 31}, fresh=[new("b", 40)], cached={"a": (10, 1)})
    assert reader.read(mixed) == (
        Step(decodes=1, decode_context=11, prefills=((31, 0),), sampled=1),
        True,
    )
