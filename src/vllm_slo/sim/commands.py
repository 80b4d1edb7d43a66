"""`vllm-slo sim`: the simulator on its own."""

import argparse
import json
import logging
import sys
from dataclasses import replace
from typing import Any

from vllm_slo.device.catalogue import device_names, model_names
from vllm_slo.settings import UNLIMITED, Settings

# Settings by vLLM's own flags; those that are on or off have a --no- form too.
_NUMBERS = {
    "max_num_seqs": "the most requests that run at once (vLLM: 256)",
    "num_gpu_blocks_override": "KV blocks, in place of what the device holds",
    "block_size": "tokens in a KV block (vLLM: 16)",
    "max_model_len": "the most tokens of a prompt and its output (default: 8192)",
    "stream_interval": "tokens in an event of a stream (vLLM: 1)",
    "long_prefill_token_threshold": "the most tokens of one prompt in a step (vLLM: 0, no limit)",
    "max_num_queued_reqs": "requests in flight above which the answer is 503",
}
_SWITCHES = {
    "enable_chunked_prefill": "compute long prompts in pieces (vLLM: on)",
    "enable_prefix_caching": "keep the KV blocks of prompts that begin alike (vLLM: on)",
    "async_scheduling": "schedule a step while the one before is computed (vLLM: on)",
}
_MORE_NUMBERS = {
    "max_num_scheduled_tokens": "the most tokens of a step, where fewer than may be batched",
    "max_num_active_seqs": "the most requests that run at once, where fewer than max_num_seqs",
}
_MORE_SWITCHES = {
    "scheduler_reserve_full_isl": "admit a prompt only where all of it has room (vLLM: on)",
    "long_prefill_token_threshold_adaptive": "raise the threshold where few requests are alive",
}

_TRACE_NUMBERS = {
    "requests": "only the first so many",
    "max_input_tokens": "cut longer prompts to this",
    "max_output_tokens": "cut longer outputs to this",
}


def register(subparsers: Any) -> None:
    """Adds `sim` and its own commands; each handler takes the parsed arguments."""
    sim = subparsers.add_parser("sim", help="the simulated engine on its own")
    commands = sim.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _register_serve(commands)
    _register_replay(commands)
    _register_trace(commands)


def _register_replay(commands: Any) -> None:
    one: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="simulate a recorded run of real vLLM, and print how far off it is",
        description=(
            "Simulates a recorded run: a folder with meta.json, requests.jsonl and the layer "
            "profile of its GPU. Prints recorded and simulated TTFT, TPOT and makespan in seconds, "
            "and the relative errors, as JSON."
        ),
    )
    one.add_argument("folder", metavar="DIR")
    one.add_argument(
        "--device",
        help="a known device, or a profile's path, in place of the profile in the folder",
    )
    one.add_argument(
        "--num-gpu-blocks", type=int, metavar="N", help="KV blocks, in place of meta.json's"
    )
    one.set_defaults(handler=_replay)


def _register_trace(commands: Any) -> None:
    one: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="simulate one server under a production trace",
        description=(
            "Simulates one device and model under recorded traffic, at the trace's own times, in "
            "virtual time: the Azure CSV form (TIMESTAMP, ContextTokens, GeneratedTokens) or the "
            "Mooncake JSONL form. Prints the figures as JSON, latencies in milliseconds."
        ),
    )
    one.add_argument("file", metavar="FILE")
    one.add_argument(
        "--rate-scale", type=float, default=1.0, metavar="X", help="2 is twice as fast"
    )
    one.add_argument("--start-s", type=float, default=0.0, metavar="S", help="begin there")
    one.add_argument("--duration-s", type=float, metavar="S", help="and take so much of it")
    for name, text in _TRACE_NUMBERS.items():
        one.add_argument(_flag(name), type=int, metavar="N", help=text)
    _add_engine(one)
    one.set_defaults(handler=_trace)


def _register_serve(commands: Any) -> None:
    one: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve a simulated device over vLLM's API, in wall time",
        description=(
            "Serves a simulated device and model over vLLM's HTTP API, in wall time, without a "
            "GPU: /v1/completions, /v1/chat/completions, /v1/models, /health, /version, /metrics, "
            "and at /golden/requests what was sent and when. Ends on SIGINT and SIGTERM. An API "
            "key is taken from the environment: VLLM_API_KEY."
        ),
    )
    one.add_argument("--served-model-name", metavar="NAME", help="its name in the API")
    one.add_argument("--host", default="127.0.0.1", help="the address (default 127.0.0.1)")
    one.add_argument("--port", type=int, default=8000, help="default 8000; 0 is any free one")
    _add_engine(one)
    one.add_argument(
        "--mean-output-tokens",
        type=float,
        metavar="MEAN",
        help="let answers end by themselves, after a geometric number of tokens",
    )
    one.add_argument("--seed", type=int, default=0, help="of those numbers (default 0)")
    one.add_argument(
        "--golden-requests",
        type=int,
        default=10_000,
        metavar="N",
        help="how many requests /golden/requests remembers (default 10000)",
    )
    one.set_defaults(handler=_serve)


def _add_engine(one: argparse.ArgumentParser) -> None:
    """The device, the model, and vLLM's settings."""
    one.add_argument(
        "--device",
        default="a100-80gb",
        help=f"a known device, or a profile's path (a100-80gb; {', '.join(device_names())})",
    )
    one.add_argument(
        "--model",
        default="llama-3-8b",
        help=f"a known model, or a folder with its config (llama-3-8b; {', '.join(model_names())})",
    )
    one.add_argument(
        "--gpu-memory-utilization", type=float, default=0.92, metavar="SHARE", help="default 0.92"
    )
    one.add_argument(
        "--max-num-batched-tokens",
        type=_tokens,
        metavar="N",
        help=f"the most tokens of a step (vLLM: 2048), or {UNLIMITED}",
    )
    one.add_argument("--scheduling-policy", choices=("fcfs", "priority"))
    one.add_argument("--watermark", type=float, metavar="SHARE", help="KV blocks kept free")
    for name, text in (_NUMBERS | _MORE_NUMBERS).items():
        one.add_argument(_flag(name), type=int, metavar="N", help=text)
    for name, text in (_SWITCHES | _MORE_SWITCHES).items():
        one.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=text)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _tokens(text: str) -> int | str:
    return text if text == UNLIMITED else int(text)


def _settings(arguments: argparse.Namespace) -> Settings:
    given = vars(arguments)
    named = (*_NUMBERS, *_SWITCHES, "max_num_batched_tokens", "scheduling_policy")
    more = (*_MORE_NUMBERS, *_MORE_SWITCHES, "watermark")
    return Settings(
        **{name: given[name] for name in named},
        extra={name: given[name] for name in more if given[name] is not None},
    )


def _serve(arguments: argparse.Namespace) -> int:
    from vllm_slo.sim.serve import ServeOptions, serve  # uvicorn takes a while to import

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    options = ServeOptions(
        device=arguments.device,
        model=arguments.model.removeprefix("shape:"),
        served_model_name=arguments.served_model_name,
        settings=_settings(arguments),
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        host=arguments.host,
        port=arguments.port,
        mean_output_tokens=arguments.mean_output_tokens,
        seed=arguments.seed,
        golden_size=arguments.golden_requests,
    )

    def announce(url: str) -> None:
        sys.stdout.write(f"SIMULATED {options.device} with {options.model}: {url}\n")
        sys.stdout.flush()

    serve(options, announce=announce)
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from vllm_slo.sim.replay import replay  # numpy takes a while to import

    report = replay(
        arguments.folder, device=arguments.device, num_gpu_blocks=arguments.num_gpu_blocks
    )
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from vllm_slo.sim.trace_run import run_trace  # numpy takes a while to import
    from vllm_slo.traffic import trace

    named = ("rate_scale", "start_s", "duration_s", *_TRACE_NUMBERS)
    workload = trace(arguments.file, **{name: getattr(arguments, name) for name in named})
    settings = _settings(arguments)
    memory = {"gpu_memory_utilization": arguments.gpu_memory_utilization}
    report = run_trace(
        workload,
        settings=replace(settings, extra=dict(settings.extra) | memory),
        device=arguments.device,
        model=arguments.model.removeprefix("shape:"),
    )
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return 0
