"""`vllm-slo lint`: checks threshold files."""

import argparse
import datetime
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_slo.errors import ThresholdsError
from vllm_slo.slo.lint import lint


def register(subparsers: Any) -> None:
    """Adds `lint`; its handler takes the parsed arguments and gives the exit status."""
    one = subparsers.add_parser(
        "lint",
        help="check threshold files against their schema, against physics and for age",
        description="Exit status: 0 without errors, 1 with errors, 2 where it cannot be checked.",
    )
    one.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path("thresholds")],
        metavar="PATH",
        help="threshold files, or folders of them (default: thresholds)",
    )
    one.add_argument("--vllm", metavar="VERSION", help="the vLLM version now in use")
    one.add_argument("--driver", metavar="VERSION", help="the GPU driver now in use")
    one.add_argument(
        "--used",
        type=Path,
        action="append",
        metavar="FILE",
        help="a --slo-json file of a session: its rows are those in use (may be given again)",
    )
    one.add_argument("--strict", action="store_true", help="warnings count as errors")
    one.set_defaults(handler=_lint)


def _lint(arguments: argparse.Namespace) -> int:
    findings = lint(
        arguments.paths,
        today=datetime.datetime.now(tz=datetime.UTC).date(),
        used=None if arguments.used is None else _used_rows(arguments.used),
        vllm_version=arguments.vllm,
        driver=arguments.driver,
    )
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    errors, warnings, accepted = (
        sum(one.severity == severity for one in findings)
        for severity in ("error", "warning", "accepted")
    )
    sys.stdout.write(f"{errors} errors, {warnings} warnings, {accepted} accepted\n")
    return 1 if errors or (arguments.strict and warnings) else 0


def _used_rows(paths: Sequence[Path]) -> Mapping[str, Collection[str]]:
    """The titles of the rows that sessions used, by "<device>/<model>"."""
    used: dict[str, set[str]] = {}
    for path in paths:
        try:
            for one in json.loads(path.read_text(encoding="utf-8"))["results"]:
                file = Path(one["thresholds"])
                used.setdefault(f"{file.parent.name}/{file.stem}", set()).add(one["row_title"])
        except (OSError, ValueError, KeyError, TypeError):
            raise ThresholdsError(
                f"{path}: is no report of a session: pytest slo_tests/ --slo-json={path} makes one"
            ) from None
    return used
