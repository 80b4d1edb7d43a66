import argparse
import dataclasses
import json
import os
import sys
import typing
from pathlib import Path

from vllm import behaviour
from vllm.engine.arg_utils import AsyncEngineArgs


def make_arg_parser(parser):
    if Path(sys.argv[0]).name == "ask.py":
        Path(behaviour["folder"], "probes", str(os.getpid())).touch()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--api-key", nargs="+")
    parser.add_argument("--middleware", action="append", default=[])
    if not behaviour.get("old_arguments"):
        parser.add_argument("--enable-log-requests", action=argparse.BooleanOptionalAction)
    for field in dataclasses.fields(AsyncEngineArgs):
        option = "--" + field.name.replace("_", "-")
        default = field.default if field.default is not dataclasses.MISSING else {}
        kinds = set(typing.get_args(field.type)) or {field.type}
        if field.name == "served_model_name":
            parser.add_argument(option, nargs="+")
        elif field.name == "scheduling_policy":
            parser.add_argument(option, choices=["fcfs", "priority"], default=default)
        elif bool in kinds and str not in kinds:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        elif field.name == "compilation_config":
            parser.add_argument(option, type=json.loads, default=default)
        else:
            kind = next((k for k in (int, float) if k in kinds), str)
            parser.add_argument(option, type=kind, default=default)
    return parser
