"""The environment variables of an engine's process: ours left out, secrets kept off its logs."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Ours, not the engine's: they would put the suite's packages before the engine's own.
_OURS = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "PYTHONSAFEPATH",
    "PYTHONUSERBASE",
    "VIRTUAL_ENV",
    "VIRTUAL_ENV_PROMPT",
    "__PYVENV_LAUNCHER__",
    "UV_PROJECT_ENVIRONMENT",
)
# pytest's own, and what would set the server's arguments behind the settings' back.
_PREFIXES = ("PYTEST_", "COV_CORE_", "SLO_")
_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|TOKENS?|SECRETS?|PASSWORD|CREDENTIALS?|KEY)($|_)")


def engine_environ(
    ours: Mapping[str, str],
    *,
    python: Path,
    offline: bool,
    api_key: str | None = None,
    overlay: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables an engine's process gets.

    The scripts beside `python`, such as ninja, come first on PATH. `offline` keeps the Hugging
    Face libraries off the network. `overlay` are the padding worker's, PYTHONPATH among them.
    `extra` are the caller's, and win.
    """
    kept = {
        name: value
        for name, value in ours.items()
        if name not in _OURS and not name.startswith(_PREFIXES)
    }
    kept.pop("VLLM_API_KEY", None)
    if python.is_absolute():
        kept["PATH"] = os.pathsep.join([str(python.parent), kept.get("PATH", os.defpath)])
    kept |= {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # `python -m` would put the current folder before the engine's own packages.
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if offline:
        kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if api_key is not None:
        kept["VLLM_API_KEY"] = api_key
    return kept | dict(overlay or {}) | dict(extra or {})


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """The values in `environ` that must not be written anywhere, longest first.

    Those of eight characters or more whose name says that they are a key, token or password.
    """
    found = {
        value
        for name, value in environ.items()
        if len(value) >= 8 and _SECRET_NAME.search(name.upper()) and not _is_plain(value)
    }
    return sorted(found, key=len, reverse=True)


def _is_plain(value: str) -> bool:
    """The path of a file of secrets is not one; redacting it would only hide what was meant."""
    return value.startswith("/") and Path(value).exists()
