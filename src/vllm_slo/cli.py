"""The `vllm-slo` command: each package adds its own commands."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from vllm_slo.errors import SloError

# Modules with a `register(subparsers)`; a handler takes the parsed arguments, gives the status.
_COMMANDS = (
    "vllm_slo.device.commands",
    "vllm_slo.engine.commands",
    "vllm_slo.sim.commands",
    "vllm_slo.slo.commands",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; a fault that the user can mend is one message and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="vllm-slo", description="Engine environments, simulation and threshold files."
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in _COMMANDS:
        import_module(module).register(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except SloError as error:
        print(f"vllm-slo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `vllm-slo ... | head`
        sys.stderr.close()
        return 141


if __name__ == "__main__":
    sys.exit(main())
