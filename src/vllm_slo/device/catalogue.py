"""The devices and models that have names, read from `catalogue.toml` beside this file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.device.shapes import ModelShape, shape_from_config
from vllm_slo.errors import ProfileError

CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device as its data sheet has it; `source` says which.

    `bandwidth_tb_s` and `bf16_tflops` are peaks (10^12 per second); `gemm_efficiency` is the share
    of the latter that matrix products are assumed to reach.
    """

    name: str
    memory_gib: float
    bandwidth_tb_s: float
    bf16_tflops: float
    gemm_efficiency: float
    source: str


def device_names() -> list[str]:
    """The names of the devices that are known, sorted."""
    return sorted(_read()["devices"])


def model_names() -> list[str]:
    """The names of the models whose dimensions are known, sorted."""
    return sorted(_read()["models"])


def device_spec(name: str) -> DeviceSpec:
    """The data sheet of a named device.

    Raises:
        ProfileError: no such device; the text lists those that exist.
    """
    return DeviceSpec(name=name, **_entry("devices", name, hint="or give a profile's path"))


def model_shape(name: str) -> ModelShape:
    """The dimensions of a model: a known name, a hub name of one, or a folder with `config.json`.

    `shape:llama-3-8b`, `llama-3-8b` and `meta-llama/Meta-Llama-3-8B-Instruct` are the same shape.

    Raises:
        ProfileError: no such model; the text lists those that exist.
    """
    path = Path(name)
    if path.is_dir():
        return shape_from_config(path / "config.json")
    hint = "or give a folder with its config.json"
    return ModelShape(**_entry("models", model_key(name), hint=hint))


def model_key(name: str) -> str:
    """The catalogue's name for a model's name as vLLM takes it."""
    key = name.removeprefix("shape:").rsplit("/", maxsplit=1)[-1].lower()
    return key.removeprefix("meta-").removesuffix("-instruct")


def measured_roofline(device: str, model: str) -> Mapping[str, Any] | None:
    """The measured coefficients of a device and model, or `None` where there are none."""
    catalogue = _read()
    # A model that is another's twin in shape shares its times.
    twin = catalogue["models"].get(model_key(model), {}).get("like", model_key(model))
    found: Mapping[str, Any] | None = catalogue["rooflines"].get(device, {}).get(twin)
    return found


def _read() -> dict[str, Any]:
    return tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))


def _entry(kind: str, name: str, *, hint: str) -> dict[str, Any]:
    entries: dict[str, dict[str, Any]] = _read()[kind]
    if name not in entries:
        raise ProfileError(
            f"no {kind.removesuffix('s')} named {name!r}: known are {', '.join(sorted(entries))}; "
            f"{hint}"
        )
    entry = entries[name]
    return entries[entry["like"]] if "like" in entry else entry
