"""A device by name or path: its step times, its KV blocks, its physical limits."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from vllm_slo.device.capacity import PhysicsLimits, capacity_blocks, physics_limits
from vllm_slo.device.catalogue import (
    DeviceSpec,
    device_spec,
    measured_roofline,
    model_key,
    model_shape,
)
from vllm_slo.device.layers import LayerProfile
from vllm_slo.device.roofline import RooflineModel
from vllm_slo.device.shapes import ModelShape
from vllm_slo.errors import ProfileError

Scheduling = Literal["sync", "async"]

# Both are a `StepTimeModel` with, beside it, `host` (ms) and `warnings`.
DeviceModel = RooflineModel | LayerProfile

REFERENCE_DEVICE = "a100-80gb"
REFERENCE_MODEL = "llama-3-8b"
_COEFFICIENTS = tuple(f.name for f in fields(RooflineModel))
_REQUIRED = ("host", "weights", "token", "activation", "kv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a device's step times come from: `measured`, or `derived` from a data sheet."""

    kind: Literal["measured", "derived"]
    source: str


def device_model(
    name: str, *, model: str = REFERENCE_MODEL, scheduling: Scheduling = "sync"
) -> DeviceModel:
    """A fresh step-time model of a device running a model, for one run.

    `name` is a known device, the path of a profile in TOML (`vllm-slo calibrate` writes one), or a
    folder with a layer profile; a path carries its own model's times, and `model` is not used.
    Where a device and model have no measured coefficients they are derived: the reference set
    (a100-80gb, llama-3-8b) scaled by bytes over bandwidth and operations over peak.

    Raises:
        ProfileError: no such device, model or file, or one that is malformed.
    """
    path = _as_path(name)
    if path is not None and path.is_dir():
        return LayerProfile.read(path, scheduling=scheduling)
    if path is not None:
        return _roofline(_read_profile(path)["roofline"], scheduling, where=f"{path}: [roofline]")
    measured = measured_roofline(name, model)
    if measured is not None:
        return _roofline(measured, scheduling, where=f"catalogue: {name}, {model_key(model)}")
    return derived_roofline(device_spec(name), model_shape(model), scheduling=scheduling)


def provenance(name: str, *, model: str = REFERENCE_MODEL) -> Provenance:
    """Whether the step times of `device_model(name, model=model)` are measured or derived.

    Raises:
        ProfileError: as `device_model`.
    """
    path = _as_path(name)
    if path is not None:
        return Provenance(kind="measured", source=str(path))
    measured = measured_roofline(name, model)
    if measured is not None:
        return Provenance(kind="measured", source=measured["source"])
    spec = device_spec(name)
    return Provenance(
        kind="derived",
        source=f"{spec.source}; matrix products at {spec.gemm_efficiency:.0%} of peak (assumed)",
    )


def kv_blocks(
    name: str,
    *,
    model: str = REFERENCE_MODEL,
    utilisation: float = 0.92,
    block_size: int = 16,
) -> int:
    """KV blocks of `block_size` tokens that a named device holds beside the model's weights.

    Raises:
        ProfileError: as `device_model`; the weights do not fit; or a profile that does not say
            which device it is of.
    """
    spec, shape = _spec_and_shape(name, model)
    return capacity_blocks(
        shape, memory_gib=spec.memory_gib, utilisation=utilisation, block_size=block_size
    )


def device_limits(name: str, *, model: str = REFERENCE_MODEL) -> PhysicsLimits:
    """The bounds that the data sheet's bandwidth and operations set for a model.

    Raises:
        ProfileError: as `kv_blocks`.
    """
    spec, shape = _spec_and_shape(name, model)
    return physics_limits(shape, bandwidth_tb_s=spec.bandwidth_tb_s, bf16_tflops=spec.bf16_tflops)


def derived_roofline(
    spec: DeviceSpec, shape: ModelShape, *, scheduling: Scheduling = "sync"
) -> RooflineModel:
    """The reference coefficients, scaled to another device and model.

    What reads memory scales with bytes over bandwidth, what multiplies with operations over
    `bf16_tflops * gemm_efficiency`, launches with the number of layers. The efficiencies are thus
    those the reference set amounts to: 71 % of bandwidth for weights, 80 % for KV.
    """
    base_spec, base_shape = device_spec(REFERENCE_DEVICE), model_shape(REFERENCE_MODEL)
    coefficients = measured_roofline(REFERENCE_DEVICE, REFERENCE_MODEL)
    assert coefficients is not None
    base = _roofline(coefficients, scheduling, where="catalogue")
    memory = base_spec.bandwidth_tb_s / spec.bandwidth_tb_s
    flops = (base_spec.bf16_tflops * base_spec.gemm_efficiency) / (
        spec.bf16_tflops * spec.gemm_efficiency
    )
    layers = shape.layers / base_shape.layers
    width = (shape.layers * (shape.hidden + shape.intermediate)) / (
        base_shape.layers * (base_shape.hidden + base_shape.intermediate)
    )
    head = shape.head_parameters / base_shape.head_parameters
    return RooflineModel(
        host=base.host,
        weights=base.weights * shape.layer_bytes / base_shape.layer_bytes * memory,
        token=base.token * shape.layer_parameters / base_shape.layer_parameters * flops,
        activation=base.activation * width * memory,
        kv=base.kv * shape.kv_bytes_per_token / base_shape.kv_bytes_per_token * memory,
        fixed=base.fixed,
        head=base.head * shape.head_bytes / base_shape.head_bytes * memory,
        head_row=base.head_row * head * flops,
        decode=base.decode * layers,
        prefill_token=base.prefill_token * width * memory,
        prefill_pair=base.prefill_pair
        * (shape.attention_flops_per_pair / base_shape.attention_flops_per_pair)
        * flops,
    )


def _spec_and_shape(name: str, model: str) -> tuple[DeviceSpec, ModelShape]:
    path = _as_path(name)
    if path is None:
        return device_spec(name), model_shape(model)
    profile = {} if path.is_dir() else _read_profile(path)
    if "device" not in profile:
        raise ProfileError(
            f"{path}: does not say which device it is of, so memory and bandwidth are unknown: "
            'write device = "<known device>" at its top, or give num_gpu_blocks_override'
        )
    return device_spec(profile["device"]), model_shape(profile.get("model", model))


def _as_path(name: str) -> Path | None:
    """The path that `name` is, or `None` for a name of the catalogue."""
    path = Path(name)
    if "/" not in name and path.suffix != ".toml":
        return None
    if not path.exists():
        raise ProfileError(f"{name}: no such device profile (a TOML file, or a folder of CSV)")
    return path


def _read_profile(path: Path) -> dict[str, Any]:
    try:
        profile = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: cannot be read as TOML: {error}") from None
    if not isinstance(profile.get("roofline"), dict):
        raise ProfileError(
            f"{path}: has no [roofline] table; vllm-slo calibrate STEPS --output {path} writes one"
        )
    for key in ("device", "model"):
        if not isinstance(profile.get(key, ""), str):
            raise ProfileError(f"{path}: {key} must be a name in quotes, not {profile[key]!r}")
    return profile


def _roofline(table: Mapping[str, Any], scheduling: Scheduling, *, where: str) -> RooflineModel:
    if scheduling not in ("sync", "async"):
        raise ProfileError(f'scheduling must be "sync" or "async", not {scheduling!r}')
    values = {key: value for key, value in table.items() if key != "source"}
    if isinstance(values.get("host"), Mapping):
        values["host"] = values["host"].get(scheduling)
    unknown = sorted(set(values) - set(_COEFFICIENTS))
    if unknown:
        raise ProfileError(
            f"{where}: unknown {', '.join(unknown)}; coefficients are {', '.join(_COEFFICIENTS)}"
        )
    for key in _REQUIRED:
        if key not in values:
            raise ProfileError(f"{where}: lacks {key}, in milliseconds")
    for key, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise ProfileError(
                f"{where}: {key} must be a number of milliseconds >= 0, not {value!r}"
            )
    return RooflineModel(**{key: float(value) for key, value in values.items()})
