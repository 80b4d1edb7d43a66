"""The scheduler settings that vLLM's API server takes by itself on a device."""

from vllm_slo.device.catalogue import device_names, device_spec
from vllm_slo.settings import UNLIMITED, Settings


def scheduler_defaults(device: str, settings: Settings, *, max_model_len: int) -> dict[str, int]:
    """max_num_seqs and max_num_batched_tokens, where the settings leave them to the engine.

    As vLLM 0.32 has it for the memory and name of a GPU (vllm/engine/arg_utils.py,
    `get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args`). A device that is
    given as a file has those of an A100.
    """
    memory_gib = device_spec(device).memory_gib if device in device_names() else 0.0
    if memory_gib >= 160:
        seqs, batched = 1024, 16384
    elif memory_gib >= 70 and "a100" not in device:
        seqs, batched = 1024, 8192
    else:
        seqs, batched = 256, 2048
    seqs_asked, batched_asked = settings.max_num_seqs, settings.max_num_batched_tokens
    if batched_asked is None:
        if settings.enable_chunked_prefill is False:
            batched = max(batched, max_model_len)
        batched = min(batched, (seqs_asked or seqs) * max_model_len)
    elif batched_asked != UNLIMITED:
        batched = batched_asked
    if batched_asked != UNLIMITED:
        seqs = min(seqs, batched)
    return {"max_num_seqs": seqs_asked or seqs, "max_num_batched_tokens": batched}
