"""The prefix cache: what is freed can be hit until it is evicted, oldest and last blocks first."""

from vllm_slo.sim.blocks import KVCacheManager
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.prefix import PromptHasher
from vllm_slo.sim.request import Request

SIZE = 4


def manager(blocks: int) -> KVCacheManager:
    return KVCacheManager(
        SchedulerConfig(num_gpu_blocks=blocks + 1, max_model_len=SIZE * blocks, block_size=SIZE)
    )


def holder(kv: KVCacheManager, prompt: tuple[tuple[int, int], ...], number: int = 0) -> Request:
    """A request that holds blocks for its prompt, all of them computed."""
    one = waiting(prompt, number)
    hits = kv.get_computed_blocks(one)
    computed = hits * SIZE
    assert kv.admit(
        one,
        one.num_prompt_tokens - computed,
        hits,
        full_sequence_must_fit=True,
        has_scheduled_reqs=False,
    )
    one.num_computed_tokens = one.num_prompt_tokens
    return one


def waiting(prompt: tuple[tuple[int, int], ...], number: int = 0) -> Request:
    return Request(
        number,
        num_prompt_tokens=sum(tokens for _, tokens in prompt),
        max_tokens=100,
        prompt=prompt,
        shared_hashes=HASHER.shared_hashes(prompt),
    )


HASHER = PromptHasher(SIZE)


def test_the_null_block_is_never_handed_out():
    kv = manager(10)
    assert (10, 0.0) == (kv.num_free_blocks, kv.usage)


def test_a_freed_request_finds_its_own_blocks_again_but_for_the_last_token():
    kv = manager(10)
    one = holder(kv, ((-1, 12),))
    kv.free(one)
    assert (10, 3) == (kv.num_free_blocks, kv.num_free_cached_blocks)
    assert 2 == kv.get_computed_blocks(one)
    one.num_output_tokens = 1
    assert 3 == kv.get_computed_blocks(one)


def test_eviction_takes_the_last_blocks_of_the_oldest_request_first():
    kv = manager(10)
    old, new = holder(kv, ((-1, 16),), 0), holder(kv, ((-1, 16),), 1)
    kv.free(old)
    kv.free(new)
    old.num_output_tokens = new.num_output_tokens = 1
    kv.take(2 + 3)  # the two that were never used, then three of the old request's four
    assert (1, 4) == (kv.get_computed_blocks(old), kv.get_computed_blocks(new))


def test_a_block_that_is_shared_is_free_only_when_its_last_holder_lets_go():
    kv = manager(10)
    first = holder(kv, ((3, 8), (-1, 4)), 0)
    second = holder(kv, ((3, 8), (-1, 4)), 1)
    assert 10 - 3 - 1 == kv.num_free_blocks
    kv.free(first)
    assert 10 - 3 == kv.num_free_blocks
    kv.free(second)
    assert 10 == kv.num_free_blocks


def test_blocks_of_different_tokens_are_never_hit():
    kv = manager(10)
    kv.free(holder(kv, ((3, 8),)))
    assert 0 == kv.get_computed_blocks(waiting(((4, 9),)))
    assert 2 == kv.get_computed_blocks(waiting(((3, 9),)))


def test_the_same_tokens_cut_differently_into_segments_hash_alike_at_the_front():
    same = HASHER.shared_hashes(((5, 12),))
    longer = HASHER.shared_hashes(((5, 8), (6, 4)))
    assert same[:2] == longer[:2]
    assert same[2] != longer[2]


def test_a_block_with_a_token_of_the_request_s_own_is_shared_with_nobody():
    assert 1 == len(HASHER.shared_hashes(((5, 6), (-1, 2), (5, 8))))
