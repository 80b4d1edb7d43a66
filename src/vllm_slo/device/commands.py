"""`vllm-slo calibrate`: a device profile from measured steps."""

import argparse
import sys
from pathlib import Path
from typing import Any

from vllm_slo.device.calibrate import CONSTANT, Calibration, calibrate
from vllm_slo.device.catalogue import device_names
from vllm_slo.device.measured import read_steps
from vllm_slo.device.profiles import REFERENCE_DEVICE, REFERENCE_MODEL, device_model
from vllm_slo.device.roofline import RooflineModel
from vllm_slo.errors import ProfileError
from vllm_slo.files import write_whole

# Errors above which the roofline's form does not describe the device.
_POOR_FIT = 0.10


def register(subparsers: Any) -> None:
    """Adds `calibrate` to the commands of `vllm-slo`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "calibrate",
        help="fit a device profile to measured steps",
        description=(
            "Fits a device profile to measured steps: JSON lines (or CSV) with decodes, "
            "decode_context, prefills as [chunk, prior context] pairs, sampled, ms. The profile's "
            "path can then be given wherever a device is named."
        ),
    )
    parser.add_argument("steps", type=Path, metavar="FILE", help="measured steps, JSONL or CSV")
    parser.add_argument(
        "--output", type=Path, metavar="PROFILE", help="write the profile there (TOML)"
    )
    parser.add_argument(
        "--device",
        default=REFERENCE_DEVICE,
        help=(
            "the device measured: its data sheet gives memory and bandwidth, its coefficients "
            f"stand where the steps determine none (default {REFERENCE_DEVICE}; known: "
            f"{', '.join(device_names())})"
        ),
    )
    parser.add_argument(
        "--model", default=REFERENCE_MODEL, help=f"the model served (default {REFERENCE_MODEL})"
    )
    parser.set_defaults(handler=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> int:
    base = device_model(arguments.device, model=arguments.model)
    if not isinstance(base, RooflineModel):
        raise ProfileError(f"--device {arguments.device}: a layer profile is measured already")
    fitted = calibrate(read_steps(arguments.steps), base=base)
    sys.stdout.write(report(fitted, device=arguments.device))
    if arguments.output is not None:
        text = profile_text(
            fitted, source=arguments.steps.name, device=arguments.device, model=arguments.model
        )
        try:
            write_whole(arguments.output, text)
        except OSError as error:
            raise ProfileError(f"{arguments.output}: cannot be written: {error.strerror}") from None
        sys.stdout.write(f"\nwritten: {arguments.output}\n")
    return 0


def report(fitted: Calibration, *, device: str) -> str:
    """The fit as a table, what is undetermined, and how far it is off."""
    lines = [f"{'coefficient':<16}{'ms':>12}{'std. error':>14}"]
    for name, value in _coefficients(fitted.model).items():
        error = fitted.standard_errors.get(CONSTANT if name == "host" else name)
        held = "held" if error is None else f"{error:.2g}"
        lines.append(f"{name:<16}{value:>12.5g}{held:>14}")
    lines.append("")
    lines.append("host is what is left of the constant part beside fixed and head.")
    if fitted.undetermined:
        lines.append(
            f"The steps do not determine {', '.join(_shown(fitted))}: held at {device}'s values. "
            "More variety in batch size, context and prefill length would."
        )
    lines.append(
        f"{fitted.steps} steps; relative error median {fitted.median_error:.2%}, "
        f"p95 {fitted.p95_error:.2%}, max {fitted.max_error:.2%}"
    )
    if fitted.p95_error > _POOR_FIT:
        lines.append(
            f"WARNING: p95 error above {_POOR_FIT:.0%}: the roofline's form does not describe "
            "these steps well; do not gate on this profile"
        )
    return "\n".join(lines) + "\n"


def profile_text(fitted: Calibration, *, source: str, device: str, model: str) -> str:
    """The profile in TOML, as `device_model` reads it from a path; `[fit]` says how good it is."""
    lines = [
        f"# Fitted by vllm-slo calibrate to {fitted.steps} measured steps of {_comment(source)}.",
        "# Coefficients in milliseconds.",
        f"model = {_quoted(model)}",
    ]
    if "/" not in device and not device.endswith(".toml"):
        lines.append(f"device = {_quoted(device)}")
    lines += ["", "[roofline]"]
    lines += [f"{name} = {value:.9g}" for name, value in _coefficients(fitted.model).items()]
    lines += [
        "",
        "[fit]",
        f"steps = {fitted.steps}",
        f"median_relative_error = {fitted.median_error:.6g}",
        f"p95_relative_error = {fitted.p95_error:.6g}",
        f"max_relative_error = {fitted.max_error:.6g}",
        f"undetermined = [{', '.join(_quoted(name) for name in _shown(fitted))}]",
        "",
        "[fit.standard_errors]",
    ]
    lines += [f"{name} = {error:.6g}" for name, error in fitted.standard_errors.items()]
    return "\n".join(lines) + "\n"


def _coefficients(model: RooflineModel) -> dict[str, float]:
    return {name: getattr(model, name) for name in RooflineModel.__slots__}


def _shown(fitted: Calibration) -> list[str]:
    return ["host" if name == CONSTANT else name for name in fitted.undetermined]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
