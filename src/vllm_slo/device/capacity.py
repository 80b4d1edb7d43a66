"""How many KV blocks a device holds, and the speeds that no scheduler can pass."""

import math
from dataclasses import dataclass

from vllm_slo.device.shapes import ModelShape
from vllm_slo.errors import ProfileError

GIB = 1024**3

# Memory of neither weights nor KV: CUDA context, peak activations, CUDA graphs. An assumption:
# a recorded vLLM 0.19 boot on an RTX 4090 (Llama-3.1-8B, 2,048 batched tokens) leaves 1.15 GiB,
# reports of A100-80GB boots leave 1.5 to 1.8.
OVERHEAD_GIB = 1.5


def capacity_blocks(
    shape: ModelShape,
    *,
    memory_gib: float,
    utilisation: float = 0.92,
    block_size: int = 16,
    overhead_gib: float = OVERHEAD_GIB,
) -> int:
    """KV blocks of `block_size` tokens that fit beside the weights.

    `memory_gib` is what the driver reports to torch; `utilisation` is vLLM's
    `gpu_memory_utilization`. One of the blocks is vLLM's null block.

    Raises:
        ProfileError: the weights leave no room for a single block, or an argument is out of range.
    """
    if block_size < 1:
        raise ProfileError(f"block_size must be at least 1, not {block_size}")
    if not 0 < utilisation <= 1:
        raise ProfileError(f"gpu_memory_utilization must be in (0, 1], not {utilisation}")
    free = utilisation * memory_gib * GIB - shape.resident_bytes - overhead_gib * GIB
    blocks = math.floor(free / (block_size * shape.kv_bytes_per_token))
    if blocks < 1:
        raise ProfileError(
            f"no room for a KV cache: {shape.resident_bytes / GIB:.1f} GiB of weights and "
            f"{overhead_gib} GiB of overhead do not fit in {utilisation} of {memory_gib} GiB"
        )
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsLimits:
    """Bounds of the memory roofline: no scheduler and no kernel goes past them.

    `min_tpot_ms` is one reading of the weights that each decode step needs (layers and LM head,
    not the embedding table) at the full bandwidth of the data sheet.
    """

    min_tpot_ms: float
    max_decode_tok_s: float

    def output_tok_s(self, *, max_num_seqs: int) -> float:
        """The most output tokens per second: one per sequence and reading of the weights.

        Never above the tokens whose matrix products the device's peak operations allow.
        """
        return min(max_num_seqs / self.min_tpot_ms * 1e3, self.max_decode_tok_s)


def physics_limits(
    shape: ModelShape, *, bandwidth_tb_s: float, bf16_tflops: float
) -> PhysicsLimits:
    read = shape.layer_bytes + shape.head_bytes
    flops_per_token = 2 * (shape.layer_parameters + shape.head_parameters)
    return PhysicsLimits(
        min_tpot_ms=read / (bandwidth_tb_s * 1e12) * 1e3,
        max_decode_tok_s=bf16_tflops * 1e12 / flops_per_token,
    )
