"""Resolves the development environment anew and writes constraints.txt.

Nothing is installed: pip plans the installation and this keeps names and versions. It wants the
lowest Python that the package supports: what is released for that one is there for newer ones too,
and not the other way round.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# What the development environment and CI install. Made by `make constraints`; not edited by hand.
"""


def resolved(requirements: list[str]) -> dict[str, str]:
    """Project name to version, as pip resolves `requirements` with nothing installed."""
    pip = [sys.executable, "-m", "pip", "install", "-qq"]
    plan = subprocess.run(
        [*pip, "--dry-run", "--ignore-installed", "--report", "-", *requirements],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    found = {}
    for item in json.loads(plan)["install"]:
        if item["is_direct"]:  # this project itself
            continue
        name = item["metadata"]["name"].lower().replace("_", "-")
        found[name] = item["metadata"]["version"].partition("+")[0]
    return found


def main() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lowest = pyproject["project"]["requires-python"].removeprefix(">=")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != lowest:
        sys.exit(
            f"constraints.txt is made with Python {lowest}, and this is {here}.\n"
            f"make constraints PYTHON=python{lowest}"
        )
    build = pyproject["build-system"]["requires"]
    # `editables` is what hatchling asks for when it builds an editable wheel
    pins = resolved([*build, "editables", "--editable", ".[dev]"])
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
