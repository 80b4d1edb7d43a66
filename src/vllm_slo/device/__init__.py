"""Devices, as the time a step takes and the KV blocks they hold."""

from vllm_slo.device.capacity import PhysicsLimits
from vllm_slo.device.catalogue import (
    DeviceSpec,
    device_names,
    device_spec,
    model_names,
    model_shape,
)
from vllm_slo.device.layers import LayerProfile
from vllm_slo.device.profiles import (
    DeviceModel,
    Provenance,
    device_limits,
    device_model,
    kv_blocks,
    provenance,
)
from vllm_slo.device.roofline import RooflineModel
from vllm_slo.device.shapes import ModelShape
from vllm_slo.device.step import Step, StepTimeModel

__all__ = [
    "DeviceModel",
    "DeviceSpec",
    "LayerProfile",
    "ModelShape",
    "PhysicsLimits",
    "Provenance",
    "RooflineModel",
    "Step",
    "StepTimeModel",
    "device_limits",
    "device_model",
    "device_names",
    "device_spec",
    "kv_blocks",
    "model_names",
    "model_shape",
    "provenance",
]
