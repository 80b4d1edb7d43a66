"""What a server's log says: why it died, and the configuration it runs with."""

import ast
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# `(EngineCore pid=8291) ERROR 11-29 15:41:49 [core.py:1510] `, as vLLM's formatter writes it.
_PREFIX = re.compile(
    r"^(\([^()]*pid=\d+\)\s)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exhausted|Failure|Unavailable|Exit)(?::|$)"
    r"|^Exception:|^[\w./-]+: error: |^Fatal Python error: |^terminate called after throwing"
)
# What a parent raises when its child died: true, and no cause.
_SECOND_HAND = re.compile(
    r"See root cause above|See stack trace for root cause|exception in a background process"
    r"|EngineDeadError|CancelledError|^SystemExit|^KeyboardInterrupt|BrokenPipeError"
    r"|Engine core proc .* died|^ConnectionResetError|Engine process failed to start"
)
_CAUSE_LINES = 6


def root_cause(log: str, *, exit_code: int | None) -> str:
    """The line that says why the server died: the last exception that is not another's echo.

    vLLM's processes die one after the other, each with a traceback that points at the one before.
    Where there is no exception: the signal, or the exit code.
    """
    lines = [_PREFIX.sub("", line) for line in log.splitlines()]
    causes = [i for i, line in enumerate(lines) if _EXCEPTION.match(line)]
    own = [i for i in causes if not _SECOND_HAND.search(lines[i])]
    if own:
        return _with_continuation(lines, own[-1])
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        why = ": out of memory, perhaps, or somebody's kill" if name == "SIGKILL" else ""
        return f"killed by {name}{why}"
    if causes:  # a child that died without a word of its own
        return f"{lines[causes[-1]]} (no process says why: killed, perhaps, or out of memory)"
    return "its log has no exception" + (f" (exit {exit_code})" if exit_code is not None else "")


def _with_continuation(lines: list[str], start: int) -> str:
    """An exception's line, and what it goes on with: pydantic says what is wrong below it."""
    text = [lines[start]]
    for line in lines[start + 1 : start + _CAUSE_LINES]:
        if not line.startswith("  ") or line.lstrip().startswith(("File ", "For further")):
            break
        text.append(line)
    return "\n".join(text)


def last_lines(log: str, count: int = 15) -> list[str]:
    """The log's last lines that are not empty."""
    return [line.rstrip() for line in log.splitlines() if line.strip()][-count:]


def address_is_taken(log: str) -> bool:
    return "address already in use" in log.lower() or "[Errno 98]" in log


def effective_config(log: str, *, metrics: str = "") -> dict[str, Any]:
    """What the server runs with, as far as it says so: `Settings` names and vLLM's own.

    From the `non-default args` line, the line with which the engine core announces its
    configuration, and the labels of `vllm:cache_config_info`; the later ones are nearer the truth.
    """
    config: dict[str, Any] = {}
    for match in re.finditer(r"non-default args: (\{.*\})\s*$", log, re.MULTILINE):
        try:
            config.update(ast.literal_eval(match[1]))
        except (ValueError, SyntaxError):  # a value that has no literal form
            config["non_default_args"] = match[1]
    for match in re.finditer(r"LLM engine \(v?[^)]*\) with config: (.*)$", log, re.MULTILINE):
        for theirs, ours in (
            ("max_seq_len", "max_model_len"),
            ("enable_prefix_caching", "enable_prefix_caching"),
            ("enable_chunked_prefill", "enable_chunked_prefill"),
            ("dtype", "dtype"),
            ("kv_cache_dtype", "kv_cache_dtype"),
            ("quantization", "quantization"),
            ("tensor_parallel_size", "tensor_parallel_size"),
            ("enforce_eager", "enforce_eager"),
            ("seed", "seed"),
        ):
            found = re.search(rf"\b{theirs}=([^,]+)", match[1])
            if found:
                config[ours] = _value(found[1])
    for word, is_on in (("enabled", True), ("disabled", False)):
        if re.search(rf"[Aa]synchronous scheduling is {word}", log):
            config["async_scheduling"] = is_on
    batched = re.findall(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)", log)
    if batched:
        config["max_num_batched_tokens"] = int(batched[-1])
    info = re.search(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    if info:
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', info[1]))
        for name in ("block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"):
            if name in labels:
                config[name] = _value(labels[name])
    return config


def differences(asked: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, str]:
    """Where the server runs with another value than was asked: name to "asked X, runs with Y".

    What the server does not tell is not compared.
    """
    runs = dict(effective)
    if "num_gpu_blocks" in runs:
        runs["num_gpu_blocks_override"] = runs["num_gpu_blocks"]
    found = {}
    for name, value in asked.items():
        if name not in runs or value is None or isinstance(value, dict | list | tuple):
            continue
        if str(runs[name]) != str(value) and not _is_same_number(runs[name], value):
            found[name] = f"asked {value}, runs with {runs[name]}"
    return found


def _is_same_number(one: Any, other: Any) -> bool:
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return False


def _value(text: str) -> Any:
    plain = {"True": True, "False": False, "None": None}
    if text in plain:
        return plain[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else text.strip("'")


def read_log(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def from_server_info(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The scheduler's and the cache's own configuration, from `/server_info` in its JSON form.

    vLLM has that endpoint in its development mode only (VLLM_SERVER_DEV_MODE=1).
    """
    whole = answer.get("vllm_config")
    if not isinstance(whole, Mapping):
        return {}
    found = {}
    for part, names in (
        (
            "scheduler_config",
            "max_num_seqs max_num_batched_tokens enable_chunked_prefill async_scheduling "
            "long_prefill_token_threshold stream_interval max_num_queued_reqs policy",
        ),
        ("cache_config", "block_size num_gpu_blocks enable_prefix_caching"),
        ("model_config", "max_model_len"),
    ):
        section = whole.get(part)
        if isinstance(section, Mapping):
            found.update({name: section[name] for name in names.split() if name in section})
    if "policy" in found:
        found["scheduling_policy"] = found.pop("policy")
    return found
