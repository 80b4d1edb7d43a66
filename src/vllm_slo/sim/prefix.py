"""Block hashes of prompts that are named by segments, without their token ids."""

from collections.abc import Sequence

from vllm_slo.sim.request import Prompt
from vllm_slo.traffic.workload import OWN, Segment


class PromptHasher:
    """Gives two prompts the same block hashes for as long as they have the same tokens.

    vLLM hashes a block from its tokens and the hash of the block before it. Here a block's tokens
    are named by the segments that it covers, and a hash is the number of a chain of such names.
    Different keys are taken for different tokens.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._keys: dict[tuple[int, ...], int] = {}
        self._hashes: dict[tuple[object, ...], int] = {}

    def prompt(self, segments: Sequence[Segment]) -> Prompt:
        """The segments with their keys as numbers; a key of the request's own is -1."""
        return tuple(
            (-1 if s.key[0] == OWN else self._keys.setdefault(s.key, len(self._keys)), s.tokens)
            for s in segments
        )

    def shared_hashes(self, prompt: Prompt) -> tuple[int, ...]:
        """The hashes of the leading blocks that hold no token of the request's own."""
        hashes: list[int] = []
        parent = -1
        block: list[tuple[int, int, int]] = []
        room = self._block_size
        for key, tokens in prompt:
            if key < 0:
                break
            start = 0
            while start < tokens:
                taken = min(room, tokens - start)
                block.append((key, start, taken))
                start += taken
                room -= taken
                if not room:
                    name = (parent, *block)
                    parent = self._hashes.setdefault(name, len(self._hashes))
                    hashes.append(parent)
                    block.clear()
                    room = self._block_size
        return tuple(hashes)
