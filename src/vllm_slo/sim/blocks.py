"""`KVCacheManager`: which requests hold how many KV blocks, and what the prefix cache still has.

vLLM keeps every block as an object in one queue of free blocks (`vllm/v1/core/block_pool.py`,
0.32.0). A freed block goes to the tail of the queue when its contents are cached, the last block of
a request first, and to the front when they are not. So the queue is always a number of blocks
without contents, ahead of cached ones in order of eviction, and only the latter need an identity:
a block that others may share is one entry, the blocks that only their own request could hit again
are one entry together. The counts and the hits are vLLM's.
"""

from collections import OrderedDict

from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import PrivateBlocks, Request, SharedBlock


class KVCacheManager:
    """KV accounting of one full-attention group."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.enable_caching = config.enable_prefix_caching
        self.max_model_len = config.max_model_len
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.num_usable_blocks = config.num_gpu_blocks - 1  # block 0 is the null block
        self.num_free_blocks = self.num_usable_blocks
        self._num_free_uncached = self.num_usable_blocks
        self._free_cached: OrderedDict[SharedBlock | PrivateBlocks, None] = OrderedDict()
        self._cached: dict[int, dict[SharedBlock, None]] = {}  # by hash, the oldest first

    @property
    def usage(self) -> float:
        """The share of blocks in use, as vLLM's `kv_cache_usage_perc`."""
        if not self.num_usable_blocks:
            return 0.0
        return 1.0 - self.num_free_blocks / self.num_usable_blocks

    @property
    def num_free_cached_blocks(self) -> int:
        """Free blocks whose contents the prefix cache still knows."""
        return self.num_free_blocks - self._num_free_uncached

    def get_computed_blocks(self, request: Request) -> int:
        """How many leading blocks of a request that holds none are in the prefix cache.

        At least one token is left to compute, for its logits.
        """
        own = request.cached_private
        if not (self.enable_caching and (own or request.shared_hashes)):
            return 0
        most = (request.num_tokens - 1) // self.block_size
        hits = 0
        for block_hash in request.shared_hashes[:most]:
            if block_hash not in self._cached:
                return hits
            hits += 1
        return hits if own is None else min(hits + own.count, most)

    def allocate_slots(self, request: Request, num_new_tokens: int) -> bool:
        """Gives a running request blocks for its next tokens; False if there are not enough."""
        num_tokens = min(request.num_computed_tokens + num_new_tokens, self.max_model_len)
        needed = -(-num_tokens // self.block_size) - request.num_blocks
        if needed > self.num_free_blocks:
            return False
        if needed > 0:
            self.take(needed)
            request.num_blocks += needed
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return True

    def admit(
        self,
        request: Request,
        num_new_tokens: int,
        num_hits: int,
        *,
        full_sequence_must_fit: bool,
        has_scheduled_reqs: bool,
    ) -> bool:
        """Gives a waiting request its cached blocks and blocks for its first tokens, or nothing.

        `num_hits` as `get_computed_blocks` has just said. With `full_sequence_must_fit` there must
        be room for all its tokens, even where it computes only a chunk of them now. The watermark
        is kept free only where something runs already.
        """
        spare = self.num_free_blocks - (self.watermark_blocks if has_scheduled_reqs else 0)
        if num_hits:
            # A hit block that nobody holds is free until now: it is needed like a new one.
            spare -= self._num_unheld(request, num_hits)
        num_tokens = min(num_hits * self.block_size + num_new_tokens, self.max_model_len)
        num_blocks = -(-num_tokens // self.block_size)
        all_tokens = request.num_tokens
        if full_sequence_must_fit and all_tokens != num_tokens:
            all_blocks = -(-min(all_tokens, self.max_model_len) // self.block_size)
            if all_blocks - num_hits > spare:
                return False
        if num_blocks - num_hits > spare:
            return False
        if num_hits:
            self._touch(request, num_hits)
        request.cached_private = None
        self.take(num_blocks - num_hits)
        request.num_blocks = num_blocks
        request.num_cached_blocks = num_hits
        self.cache_blocks(request, min(num_tokens, all_tokens))
        return True

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Enters the full blocks of a request's first `num_tokens` into the prefix cache."""
        if not self.enable_caching:
            return
        num_full_blocks = num_tokens // self.block_size
        if num_full_blocks <= request.num_cached_blocks:
            return
        if request.num_cached_blocks < len(request.shared_hashes):
            for block_hash in request.shared_hashes[request.num_cached_blocks : num_full_blocks]:
                block = SharedBlock(block_hash)
                self._cached.setdefault(block_hash, {})[block] = None
                request.held_shared.append(block)
        request.num_cached_blocks = num_full_blocks

    def free(self, request: Request) -> None:
        """Takes a request's blocks back; what is cached of them can be hit until it is evicted."""
        shared = request.held_shared
        private = request.num_cached_blocks - len(shared)
        self._num_free_uncached += request.num_blocks - request.num_cached_blocks
        self.num_free_blocks += request.num_blocks - len(shared)
        if private > 0:
            request.cached_private = PrivateBlocks(private)
            self._free_cached[request.cached_private] = None
        while shared:
            block = shared.pop()
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self._free_cached[block] = None
                self.num_free_blocks += 1
        request.num_blocks = request.num_cached_blocks = 0

    def take(self, num_blocks: int) -> None:
        """Removes blocks from the free ones, evicting from the prefix cache as needed."""
        self.num_free_blocks -= num_blocks
        if num_blocks <= self._num_free_uncached:
            self._num_free_uncached -= num_blocks
            return
        num_blocks -= self._num_free_uncached
        self._num_free_uncached = 0
        while num_blocks:
            block = next(iter(self._free_cached))
            if isinstance(block, PrivateBlocks) and block.count > num_blocks:
                block.count -= num_blocks
                return
            self._free_cached.popitem(last=False)
            if isinstance(block, PrivateBlocks):
                num_blocks -= block.count
                block.count = 0
            else:
                num_blocks -= 1
                self._evict(block)

    def _evict(self, block: SharedBlock) -> None:
        same = self._cached[block.block_hash]
        del same[block]
        if not same:
            del self._cached[block.block_hash]

    def _num_unheld(self, request: Request, num_hits: int) -> int:
        shared = request.shared_hashes[:num_hits]
        unheld = sum(not next(iter(self._cached[block_hash])).ref_cnt for block_hash in shared)
        return unheld + num_hits - len(shared)

    def _touch(self, request: Request, num_hits: int) -> None:
        for block_hash in request.shared_hashes[:num_hits]:
            block = next(iter(self._cached[block_hash]))
            if not block.ref_cnt:
                del self._free_cached[block]
                self.num_free_blocks -= 1
            block.ref_cnt += 1
            request.held_shared.append(block)
        own = request.cached_private
        if own is None:
            return
        hits = num_hits - len(request.held_shared)
        own.count -= hits
        self.num_free_blocks -= hits
        # Whatever was not hit will be computed again: the old copy only waits for its eviction.
        if not own.count:
            self._free_cached.pop(own, None)
