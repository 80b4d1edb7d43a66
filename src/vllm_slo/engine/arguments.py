"""`Settings` to the command line of one vLLM version, refused before boot where it will not do."""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from vllm_slo.engine.probing import Argument, Probe
from vllm_slo.errors import SettingsError
from vllm_slo.settings import UNLIMITED, Settings

# What became of arguments that old configurations still name. From vLLM's release notes.
_REPLACED = {
    "swap_space": "gone since 0.18: V1 preempts by recompute only, nothing is swapped to the CPU",
    "preemption_mode": "gone with the V0 engine: V1 preempts by recompute only",
    "num_scheduler_steps": "gone since about 0.10: use async_scheduling=True",
    "multi_step_stream_outputs": "gone with multi-step scheduling: use stream_interval",
    "max_num_partial_prefills": "gone since 2026-07: use long_prefill_token_threshold",
    "max_long_partial_prefills": "gone since 2026-07: use long_prefill_token_threshold",
    "use_v2_block_manager": "gone with the V0 engine: V1 has one block manager",
    "scheduler_delay_factor": "gone with the V0 engine: nothing replaces it",
    "disable_async_output_proc": "gone with the V0 engine: use async_scheduling=False",
    "max_seq_len_to_capture": "gone: set max_cudagraph_capture_size in compilation_config",
    "enable_log_requests": "older versions log requests unless disable_log_requests=True",
    "disable_log_requests": "requests are not logged unless enable_log_requests=True",
    "cuda_graph_sizes": "now cudagraph_capture_sizes",
    "guided_decoding_backend": "now structured_outputs_config",
    "device": "gone: the build of vLLM decides",
}
# What the launcher sets itself, for safety or to find the server again.
_OURS = (
    "model",
    "model_tag",
    "host",
    "port",
    "uds",
    "api_key",
    "served_model_name",
    "root_path",
    "config",
    "headless",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "grpc",
    "api_server_count",
    "worker_cls",
)


def asked_arguments(
    settings: Settings, probe: Probe, *, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine arguments that the settings ask for, by vLLM's name, checked against the probe.

    `defaults` has the max_num_seqs and max_model_len that hold where the settings have none: they
    are what `max_num_batched_tokens="unlimited"` is made of.

    Raises:
        SettingsError: names the setting, the version, and what replaced it.
    """
    asked = settings.asked()
    if asked.pop("preemption", "recompute") == "swap":
        if "preemption_mode" not in probe.arguments:
            raise SettingsError(
                f'preemption="swap": vLLM {probe.vllm_version} has no swapping; V1 recomputes a '
                f"preempted request's KV blocks (swap_space is gone since 0.18, preemption_mode "
                f'with V0)\nuse preemption="recompute", the default'
            )
        asked["preemption_mode"] = "swap"
    if asked.get("max_num_batched_tokens") == UNLIMITED:
        asked["max_num_batched_tokens"] = _unlimited({**defaults, **asked})
    for name, value in asked.items():
        if name == "hf_token":
            raise SettingsError("hf_token: anyone can read a command line; set HF_TOKEN instead")
        if name in _OURS:
            raise SettingsError(f"{name}: the launcher sets it itself; leave it out of extra")
        check_argument(name, value, probe)
    return asked


def to_argv(arguments: Mapping[str, Any], probe: Probe) -> list[str]:
    """The command line of arguments that were checked; `None` values are left to the engine."""
    argv: list[str] = []
    for name, value in arguments.items():
        argument = probe.arguments[name]
        if value is None:
            continue
        if argument.is_switch:
            if value:
                argv.append(argument.flag)
            elif argument.has_no_form:
                argv.append("--no-" + argument.flag.removeprefix("--"))
        elif argument.is_repeated:
            argv += [word for item in _items(value) for word in (argument.flag, _text(item))]
        elif argument.takes_list:
            argv += [argument.flag, *(_text(item) for item in _items(value))]
        else:
            argv += [argument.flag, _text(value)]
    return argv


def check_argument(name: str, value: Any, probe: Probe) -> None:
    """Refuses an argument that this version does not know, or a value that it cannot take.

    Raises:
        SettingsError: names the setting, the version, and what to use.
    """
    argument = probe.arguments.get(name)
    if argument is None:
        raise SettingsError(f"{name}: {_unknown(name, probe)}")
    expected = _mismatch(argument, value)
    if expected is not None:
        raise SettingsError(
            f"{name} must be {expected} in vLLM {probe.vllm_version}, not {value!r}"
        )


def _unlimited(arguments: Mapping[str, Any]) -> int:
    for name in ("max_num_seqs", "max_model_len"):
        if arguments.get(name) is None:
            raise SettingsError(
                f'max_num_batched_tokens="unlimited" is max_num_seqs x max_model_len: '
                f"set {name} too"
            )
    return int(arguments["max_num_seqs"] * arguments["max_model_len"])


def _unknown(name: str, probe: Probe) -> str:
    text = f"vLLM {probe.vllm_version} has no such argument"
    if name in _REPLACED:
        return f"{text}; {_REPLACED[name]}"
    # vllm's own command line has the two words of a switch; ours has the name of its field.
    bare = re.sub(r"^(no|disable|enable)_", "", name)
    for other in (f"enable_{bare}", f"disable_{bare}", bare):
        if other != name and other in probe.arguments:
            return f"{text}; did you mean {other}?"
    close = difflib.get_close_matches(name, probe.arguments, n=3, cutoff=0.6)
    if close:
        return f"{text}; did you mean {' or '.join(close)}?"
    return f"{text}\nlist what it has: vllm-slo engine probe {probe.python}"


def _mismatch(argument: Argument, value: Any) -> str | None:
    """What the argument takes, where `value` is not that; `None` where it is, or is not known."""
    annotation = argument.annotation or ""
    kinds = set(re.findall(r"\b(bool|int|float|str|dict|list|tuple|set|None)\b", annotation))
    if value is None:
        # `None` leaves it to the engine, whatever the type says.
        return None
    if argument.is_switch:
        return None if isinstance(value, bool) else "true or false"
    if argument.choices is not None:
        values = _items(value) if argument.takes_list else [value]
        if all(item in argument.choices for item in values):
            return None
        return "one of " + ", ".join(repr(choice) for choice in argument.choices)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_int = argument.type_name in ("int", "human_readable_int", "human_readable_int_or_auto")
    if is_int or kinds - {"None"} == {"int"}:
        is_text = argument.type_name != "int" and isinstance(value, str)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return None if is_whole or (is_text and _is_human(value)) else "a whole number"
    if argument.type_name == "float" or kinds - {"None"} == {"float"}:
        return None if is_number else "a number"
    if isinstance(value, bool) and kinds and "bool" not in kinds:
        return _phrase(kinds)
    if is_number and kinds and not kinds & {"int", "float"}:
        return _phrase(kinds)
    is_json = argument.type_name in ("loads", "parse_dataclass", "_parse_type")
    if is_json and isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return "JSON"
    return None


def _is_human(text: str) -> bool:
    """vLLM's own short forms of a whole number, such as 2k or 1.5M, and `auto`."""
    return text == "auto" or re.fullmatch(r"-?\d+(\.\d+)?[kKmMgGtT]?", text) is not None


def _phrase(kinds: set[str]) -> str:
    names = {
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "dict": "a mapping",
        "list": "a list",
        "tuple": "a list",
        "set": "a list",
    }
    return " or ".join(dict.fromkeys(names[kind] for kind in sorted(kinds - {"None"})))


def _items(value: Any) -> list[Any]:
    """The items of a list argument; `Settings.extra` keeps a list as JSON text."""
    if isinstance(value, str) and value.startswith("["):
        try:
            loaded = json.loads(value)
        except ValueError:
            return [value]
        return loaded if isinstance(loaded, list) else [value]
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
