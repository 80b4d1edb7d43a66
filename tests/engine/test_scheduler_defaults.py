"""vLLM 0.32's own defaults (vllm/engine/arg_utils.py), for the API server."""

import pytest

from vllm_slo.device.defaults import scheduler_defaults
from vllm_slo.settings import Settings


@pytest.mark.parametrize(
    ("device", "settings", "seqs", "batched"),
    [
        ("a100-80gb", Settings(), 256, 2048),
        ("h100-80gb", Settings(), 1024, 8192),
        ("h200-141gb", Settings(), 1024, 8192),
        ("rtx-4090", Settings(), 256, 2048),
        ("profiles/mine.toml", Settings(), 256, 2048),
        ("a100-80gb", Settings(max_num_seqs=8), 8, 2048),
        # A budget below the default number of sequences lowers that number.
        ("a100-80gb", Settings(max_num_batched_tokens=128), 128, 128),
        ("a100-80gb", Settings(max_num_batched_tokens="unlimited"), 256, 2048),
        # Without chunked prefill the longest prompt must fit into one step.
        ("a100-80gb", Settings(enable_chunked_prefill=False), 256, 4096),
        # No more than all sequences at full length.
        ("a100-80gb", Settings(max_num_seqs=1, max_model_len=100), 1, 100),
    ],
    ids=str,
)
def test_defaults_are_those_of_the_device(device, settings, seqs, batched):
    assert {"max_num_seqs": seqs, "max_num_batched_tokens": batched} == scheduler_defaults(
        device, settings, max_model_len=settings.max_model_len or 4096
    )
