"""vLLM's own `Scheduler` in a process of its own, spoken to in JSON lines on stdin and stdout.

Run by an engine environment's Python as `python oracle.py`: it imports vLLM and the standard
library only. One request line, one answer line:

    {"op": "new", "config": {...}}      a new scheduler; answers {"version": "0.32.0"}
    {"op": "add", "requests": [...]}    id, prompt [[key, tokens], ...], max_tokens, arrival,
                                        priority
    {"op": "schedule"}                  answers tokens [[id, n, computed before], ...], sampled,
                                        preempted, and the state
    {"op": "update"}                    the oldest scheduled step's output; finished, and the state
    {"op": "drain"}                     steps until nothing is left; answers steps, tokens, seconds

The state is {"running": [id, ...], "waiting": n, "free": blocks, "free_cached": those
of them whose contents the prefix cache knows, "usage": share, "pending": bool}.
A prompt token is named by its key and its place after it, so prompts that share a key share tokens;
output tokens are the request's own.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

KEY_STRIDE = 1 << 24  # places a key has, more than any prompt
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
}


class Oracle:
    """One scheduler and its batch queue: what the engine core would hold."""

    def __init__(self, model_dir: str, config: dict[str, Any]) -> None:
        import torch
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        block_size = config["block_size"]
        max_model_len = config["max_model_len"]
        model = ModelConfig(
            model=model_dir,
            tokenizer=model_dir,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=max_model_len,
        )
        named = {
            name: config[name]
            for name in (
                "max_num_seqs",
                "max_num_batched_tokens",
                "max_num_scheduled_tokens",
                "max_num_active_seqs",
                "enable_chunked_prefill",
                "policy",
                "long_prefill_token_threshold",
                "long_prefill_token_threshold_adaptive",
                "scheduler_reserve_full_isl",
                "watermark",
            )
            if name in config
        }
        scheduler_config = SchedulerConfig(
            max_model_len=max_model_len, is_encoder_decoder=False, async_scheduling=False, **named
        )
        caching = config["enable_prefix_caching"]
        cache_config = CacheConfig(
            block_size=block_size, enable_prefix_caching=caching, gpu_memory_utilization=0.5
        )
        vllm_config = VllmConfig(
            model_config=model, cache_config=cache_config, scheduler_config=scheduler_config
        )
        # The platform's own defaults are put in place while the configuration is made.
        vllm_config.cache_config.block_size = block_size
        vllm_config.cache_config.enable_prefix_caching = caching
        vllm_config.cache_config.num_gpu_blocks = config["num_gpu_blocks"]
        for name, value in named.items():
            setattr(vllm_config.scheduler_config, name, value)
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=32, dtype=torch.float32
        )
        kv_cache_config = KVCacheConfig(
            num_blocks=config["num_gpu_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)],
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(block_size, sha256) if caching else None
        scheduler_class = AsyncScheduler if config["async_scheduling"] else Scheduler
        self._scheduler = scheduler_class(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=block_size,
            log_stats=False,
        )
        self._queue: deque[Any] = deque()

    def add(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        for request in requests:
            ids: list[int] = []
            for key, tokens in request["prompt"]:
                ids.extend(range(key * KEY_STRIDE, key * KEY_STRIDE + tokens))
            self._scheduler.add_request(
                Request(
                    request_id=f"{request['id']:012d}",
                    prompt_token_ids=ids,
                    sampling_params=SamplingParams(
                        max_tokens=request["max_tokens"], ignore_eos=True
                    ),
                    pooling_params=None,
                    arrival_time=request["arrival"],
                    priority=request["priority"],
                    block_hasher=self._hasher,
                )
            )
        return {}

    def schedule(self) -> dict[str, Any]:
        before = {r.request_id for r in self._scheduler.running}
        output = self._scheduler.schedule()
        after = {r.request_id for r in self._scheduler.running}
        alive = self._scheduler.requests
        counts = output.num_scheduled_tokens
        # The scheduler has just counted the step's tokens as computed.
        sampled = [name for name in counts if not alive[name].is_prefill_chunk]
        self._queue.append((output, set(sampled)))
        return {
            "tokens": [[int(k), n, alive[k].num_computed_tokens - n] for k, n in counts.items()],
            "sampled": [int(name) for name in sampled],
            "preempted": sorted(int(name) for name in before - after),
            **self._state(),
        }

    def drain(self) -> dict[str, Any]:
        """Steps synchronously until no request is left, and times what the scheduler takes."""
        steps = tokens = 0
        seconds = 0.0
        while self._scheduler.has_requests():
            start = time.process_time()
            output = self._scheduler.schedule()
            seconds += time.process_time() - start
            alive = self._scheduler.requests
            names = [n for n in output.num_scheduled_tokens if not alive[n].is_prefill_chunk]
            self._queue.append((output, set(names)))
            steps += 1
            tokens += len(names)
            seconds += self._take_tokens()
        return {"steps": steps, "tokens": tokens, "seconds": seconds}

    def update(self) -> dict[str, Any]:
        before = list(self._scheduler.requests)
        self._take_tokens()
        gone = [int(name) for name in before if name not in self._scheduler.requests]
        return {"finished": gone, **self._state()}

    def _take_tokens(self) -> float:
        """Hands the oldest step's tokens to the scheduler; how long it took over them."""
        from vllm.v1.outputs import ModelRunnerOutput

        output, sampled = self._queue.popleft()
        names = list(output.num_scheduled_tokens)
        alive = self._scheduler.requests
        tokens = []
        for name in names:
            request = alive[name]
            # No key reaches 1 << 32: an output token is nobody's prompt token.
            first = ((1 << 32) + int(name)) * KEY_STRIDE
            tokens.append([first + request.num_output_tokens] if name in sampled else [])
        model_output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        start = time.process_time()
        self._scheduler.update_from_output(output, model_output)
        return time.process_time() - start

    def _state(self) -> dict[str, Any]:
        scheduler = self._scheduler
        free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        return {
            "running": [int(r.request_id) for r in scheduler.running],
            "waiting": len(scheduler.waiting),
            "free": len(free),
            "free_cached": sum(block.block_hash is not None for block in free),
            "usage": scheduler.kv_cache_manager.usage,
            "pending": scheduler.has_requests(),
        }


def main() -> None:
    """Answers lines until stdin ends."""
    for name, value in (
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("DO_NOT_TRACK", "1"),
        ("HF_HUB_OFFLINE", "1"),
    ):
        os.environ[name] = value
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    with tempfile.TemporaryDirectory() as model_dir:
        Path(model_dir, "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        oracle: Oracle | None = None
        for line in sys.stdin:
            request = json.loads(line)
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    if request["op"] == "new":
                        import vllm

                        oracle = Oracle(model_dir, request["config"])
                        answer: dict[str, Any] = {"version": vllm.__version__}
                    elif oracle is None:
                        answer = {"error": "no scheduler yet: send new first"}
                    elif request["op"] == "add":
                        answer = oracle.add(request["requests"])
                    else:
                        answer = getattr(oracle, request["op"])()
                except Exception as error:  # noqa: BLE001 - the asker gets it as its answer
                    answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
