"""Token ids of prompts: drawn from a key, the same on every machine and numpy version."""

import numpy as np
from numpy.typing import NDArray

from vllm_slo.errors import WorkloadError

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_U_GAMMA, _U_MIX_1, _U_MIX_2 = np.uint64(_GAMMA), np.uint64(_MIX_1), np.uint64(_MIX_2)
_U27, _U30, _U31, _U32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
LOWEST_ID = 16


def id_range(vocab_size: int) -> tuple[int, int]:
    """The ids that prompts are drawn from, as (first, one past the last).

    Special tokens, among them image placeholders that a server refuses, lie among the lowest
    ids or in the last 1/256 of the vocabulary (Llama 3: 128,000 of 128,256; Qwen 2.5: 151,643
    of 152,064), so both ends are left out.

    Raises:
        WorkloadError: a vocabulary too small to draw from.
    """
    high = vocab_size - vocab_size // 256
    if high - LOWEST_ID < 2:
        raise WorkloadError(
            f"a vocabulary of {vocab_size} is too small for random prompts: at least 18 ids"
        )
    return LOWEST_ID, high


def draw_ids(key: tuple[int, ...], tokens: int, vocab_size: int) -> NDArray[np.int64]:
    """`tokens` ids, shape (tokens,): the first ones of the endless stream that `key` names.

    A counter through SplitMix64's finaliser: it needs no generator object, which would cost more
    than the ids of a short prompt. The ids are uniform to within 2**-32 times the range.
    """
    low, high = id_range(vocab_size)
    state = len(key)
    for part in key:
        state = _finalise((state * _GAMMA + part + 1) & _MASK)
    x = np.arange(1, tokens + 1, dtype=np.uint64)
    x *= _U_GAMMA
    x += np.uint64(state)
    x ^= x >> _U30
    x *= _U_MIX_1
    x ^= x >> _U27
    x *= _U_MIX_2
    x ^= x >> _U31
    x >>= _U32
    x *= np.uint64(high - low)
    x >>= _U32
    ids = x.view(np.int64)
    ids += low
    return ids


def _finalise(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
