"""Logs in the form that vLLM 0.32.0 writes them."""

import pytest

from vllm_slo.engine.bootlog import (
    address_is_taken,
    differences,
    effective_config,
    from_server_info,
    root_cause,
)

WORKER_DIED = """\
(VllmWorker-0 pid=8339) ERROR 11-29 15:41:47 [multiproc_executor.py:953] WorkerProc failed to start.
(VllmWorker-0 pid=8339) ERROR 11-29 15:41:47 [multiproc_executor.py:953] Traceback (most recent call last):
(VllmWorker-0 pid=8339) ERROR 11-29 15:41:47 [multiproc_executor.py:953]   File "w.py", line 83, in f
(VllmWorker-0 pid=8339) ERROR 11-29 15:41:47 [multiproc_executor.py:953]     raise ValueError(
(VllmWorker-0 pid=8339) ERROR 11-29 15:41:47 [multiproc_executor.py:953] ValueError: Available memory on node 0 is less than desired
(EngineCore pid=8291) INFO 11-29 15:41:49 [multiproc_executor.py:486] [shutdown] Executor: all gone
(EngineCore pid=8291) ERROR 11-29 15:41:49 [core.py:1510] EngineCore failed to start.
(EngineCore pid=8291) ERROR 11-29 15:41:49 [core.py:1510] Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Process EngineCore:
Traceback (most recent call last):
  File "core.py", line 1514, in run_engine_core
    raise e
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
  File "utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""  # noqa: E501


def test_the_cause_is_the_exception_that_the_others_point_at():
    assert "ValueError: Available memory on node 0 is less than desired" == root_cause(
        WORKER_DIED, exit_code=1
    )


def test_the_cause_goes_on_where_pydantic_says_what_is_wrong():
    log = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, max_num_batched_tokens (8) must be >= max_num_seqs [type=value_error]\n"
        "    For further information visit https://errors.pydantic.dev\n"
    )
    assert (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, max_num_batched_tokens (8) must be >= max_num_seqs [type=value_error]"
    ) == root_cause(log, exit_code=1)


@pytest.mark.parametrize(
    ("log", "code", "cause"),
    [
        ("api_server.py: error: unrecognized arguments: --x\n", 2, "unrecognized arguments: --x"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\n", 1, "CUDA out of memory"),
        ("loading\n", -9, "killed by SIGKILL: out of memory"),
        ("loading\n", -11, "killed by SIGSEGV"),
        ("", 3, "its log has no exception (exit 3)"),
        (
            "RuntimeError: Engine core initialization failed. See root cause above.",
            1,
            "no process says why",
        ),
    ],
)
def test_there_is_always_a_cause(log, code, cause):
    assert cause in root_cause(log, exit_code=code)


def test_a_taken_port_is_recognised():
    assert address_is_taken("OSError: [Errno 98] Address already in use\n")
    assert not address_is_taken(WORKER_DIED)


LOG = """\
(APIServer pid=1) INFO 11-29 15:41:17 [api_utils.py:286] non-default args: {'host': '127.0.0.1', \
'port': 18433, 'model': '/m', 'max_model_len': 2048, 'enforce_eager': True, 'max_num_seqs': 8}
(EngineCore pid=2) INFO 11-29 15:41:37 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='/m', dtype=torch.bfloat16, max_seq_len=2048, kv_cache_dtype=auto, \
enable_prefix_caching=False, enable_chunked_prefill=True, seed=0
(APIServer pid=1) INFO 11-29 15:41:38 [vllm.py:1] Asynchronous scheduling is enabled.
"""
METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",cache_dtype="auto",enable_prefix_caching="False",\
num_gpu_blocks="1000",num_gpu_blocks_override="1000"} 1.0
"""


def test_what_a_server_runs_with_is_read_from_log_and_metrics():
    config = effective_config(LOG, metrics=METRICS)
    assert {
        "max_num_seqs": 8,
        "max_model_len": 2048,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": True,
        "async_scheduling": True,
        "block_size": 32,
        "num_gpu_blocks": 1000,
        "seed": 0,
        "dtype": "torch.bfloat16",
    }.items() <= config.items()


def test_server_info_has_the_schedulers_own_word():
    answer = {
        "vllm_config": {
            "scheduler_config": {"max_num_seqs": 4, "policy": "priority", "other": 1},
            "cache_config": {"num_gpu_blocks": 12},
        }
    }
    assert {
        "max_num_seqs": 4,
        "scheduling_policy": "priority",
        "num_gpu_blocks": 12,
    } == from_server_info(answer)
    assert {} == from_server_info({"vllm_config": "as text"})


def test_only_what_differs_and_is_told_is_a_difference():
    asked = {
        "max_num_seqs": 8,
        "num_gpu_blocks_override": 999,
        "enable_chunked_prefill": False,
        "stream_interval": 2,
        "block_size": None,
    }
    assert {
        "num_gpu_blocks_override": "asked 999, runs with 1000",
        "enable_chunked_prefill": "asked False, runs with True",
    } == differences(asked, effective_config(LOG, metrics=METRICS))
