"""The lines at the top of a session: what is measured, against what, and who said so."""

from vllm_slo._pytest.state import SloSession
from vllm_slo.errors import SloError

_LABELS = {
    "sim": "sim (SIMULATED: our model of vLLM's scheduler, in virtual time)",
    "emulated": "emulated (real vLLM on the CPU, EMULATED step times)",
    "gpu": "gpu",
}


def header_lines(session: SloSession) -> list[str]:
    spec = session.spec
    target = session.options.shown("target") if spec.kind == "url" else _LABELS[spec.kind]
    device = spec.device or ("a100-80gb" if spec.is_simulated else "the one that is there")
    engine = spec.environment or ("0.32.0" if spec.kind == "emulated" else None)
    lines = [
        f"slo: target {target}, device {device}, model {spec.model}"
        + (f", vLLM {engine}" if engine else ""),
        f"slo: thresholds {_thresholds(session)}, report {_relative(session, session.report_dir)}",
    ]
    if session.options.sources:
        given = ", ".join(
            f"{name}={session.options.shown(name)} ({source})"
            for name, source in session.options.sources.items()
        )
        lines.append(f"slo: {given}")
    if getattr(session.config.option, "dist", "no") not in ("no", "loadgroup"):
        lines.append(
            "slo: pytest-xdist without --dist loadgroup: each worker opens the servers of its own "
            "tests again"
        )
    return lines


def _thresholds(session: SloSession) -> str:
    folder = _relative(session, session.thresholds_dir)
    if session.spec.kind == "gpu" and session.spec.device is None:
        return f"{folder}/<device>/{session.spec.model_slug}.toml"
    try:
        return f"{folder}/{session.spec.device_slug()}/{session.spec.model_slug}.toml"
    except SloError:
        return folder


def _relative(session: SloSession, path: object) -> str:
    return str(path).removeprefix(f"{session.config.rootpath}/")
