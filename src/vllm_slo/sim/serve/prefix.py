"""Block hashes of a prompt's tokens, for the prefix cache."""

from vllm_slo.sim.serve.ask import Tokens


def block_hashes(tokens: Tokens, *, block_size: int) -> tuple[int, ...]:
    """One hash for each full block: it names the block's tokens and all before them."""
    hashes = []
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return tuple(hashes)
