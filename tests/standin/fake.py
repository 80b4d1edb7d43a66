"""A stand-in engine environment: looks like a Python with vLLM in it, boots in a tenth of a second.

It records the command line and environment that it was started with, and serves a scripted stream.
Usage::

    fake = fake_environment(tmp_path / "engine")
    server = boot(Settings(), environment=fake.python, model="shape:tiny", target="gpu", ...)
    fake.starts()[0]["argv"]
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SITE = Path(__file__).parent / "site"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeEnvironment:
    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def starts(self) -> list[dict[str, Any]]:
        """What each started server saw: argv, environ, cwd, path, pid; in the order of starts."""
        files = sorted((self.folder / "starts").glob("*.json"))
        return [json.loads(file.read_text()) for file in files]

    def probes(self) -> int:
        """How often vLLM was imported to be asked for its arguments."""
        return len(list((self.folder / "probes").glob("*")))

    def orphans(self) -> list[int]:
        """The process ids of the children that `orphan=True` left in sessions of their own."""
        return [int(p.name) for p in (self.folder / "orphans").glob("*")]


def fake_environment(
    folder: Path,
    *,
    version: str = "0.32.0",
    distribution: str = "vllm",
    device_type: str = "cuda",
    device_name: str = "NVIDIA A100-SXM4-80GB",
    **behaviour: Any,
) -> FakeEnvironment:
    """Makes the environment in `folder`.

    Behaviour, all off by default: `die` (text of an exception, raised by a child process and then
    reported at second hand as vLLM does), `hang` (never listens), `ignore_sigterm`, `orphan`
    (leaves a child in a session of its own), `address_in_use` (how many starts find the port
    taken), `share_port` (listens with SO_REUSEPORT), `print` (text for the log, `{NAME}` replaced
    by that variable of its environment), `changes` (arguments that it runs with another value of),
    `interval_s` (seconds between tokens), `dies_after` (answers, then ends), `no_key` (asks for
    none), `old_arguments` (those of vLLM 0.8).
    """
    (folder / "bin").mkdir(parents=True)
    for name in ("starts", "probes", "orphans"):
        (folder / name).mkdir()
    info = folder / "site" / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    settings = {
        "version": version,
        "device_type": device_type,
        "device_name": device_name,
        "folder": str(folder),
    }
    (folder / "site" / "standin.json").write_text(json.dumps(settings | behaviour))
    python = folder / "bin" / "python"
    # The interpreter under our venv, so that none of the suite's own packages are there.
    python.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="{folder / "site"}:{_SITE}${{PYTHONPATH:+:$PYTHONPATH}}" '
        f'exec "{os.path.realpath(sys.executable)}" "$@"\n'
    )
    python.chmod(0o755)
    return FakeEnvironment(folder=folder)
