"""`VllmScheduler`: vLLM's own `Scheduler` behind the interface of ours.

It runs in a process of the engine environment (`oracle.py`), so the suite needs no vLLM of its own.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from vllm_slo.device.step import Step
from vllm_slo.errors import EngineEnvironmentError
from vllm_slo.sim.config import SchedulerConfig
from vllm_slo.sim.request import Request, RequestStatus
from vllm_slo.sim.step import SchedulerOutput

ORACLE = Path(__file__).with_name("oracle.py")
_LOOP_ONLY = ("max_num_queued_reqs",)
_KEPT_LINES = 20


class OracleProcess:
    """A process that answers for vLLM's scheduler; many schedulers can be made in one, in turn.

    Raises:
        EngineEnvironmentError: the Python cannot import vLLM, or the process died; with the last
            lines that it wrote.
    """

    def __init__(self, python: str | Path) -> None:
        self.python = str(python)
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - it is closed by `close`
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        try:
            self._process = subprocess.Popen(
                [self.python, str(ORACLE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                env=environ,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise EngineEnvironmentError(f"{self.python}: cannot be run: {error}") from None

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends one request and gives its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineEnvironmentError(
                f"{self.python}: vLLM's scheduler ended before its answer:\n{self._last_lines()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineEnvironmentError(f"{self.python}: vLLM's scheduler: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process; harmless when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_lines(self) -> str:
        self._process.wait(timeout=10)
        self._stderr.seek(0)
        return "\n".join(self._stderr.read().splitlines()[-_KEPT_LINES:])


class VllmScheduler:
    """vLLM's scheduler, one question and one answer a step."""

    def __init__(self, config: SchedulerConfig, process: OracleProcess) -> None:
        self.config = config
        self._process = process
        named = {k: v for k, v in asdict(config).items() if v is not None and k not in _LOOP_ONLY}
        self.vllm_version: str = process.ask(op="new", config=named)["version"]
        self._requests: dict[int, Request] = {}
        self._unsent: list[dict[str, Any]] = []
        self.num_prefix_hit_tokens = 0
        self.state: dict[str, Any] = {
            "running": [],
            "waiting": 0,
            "free": config.num_gpu_blocks - 1,
            "free_cached": 0,
            "usage": 0.0,
            "pending": False,
        }

    def add_request(self, request: Request) -> None:
        """Adds a request; it is told to vLLM before the next step is scheduled."""
        own = 2 * request.request_id + 1
        prompt = request.prompt or ((-1, request.num_prompt_tokens),)
        self._requests[request.request_id] = request
        self._unsent.append(
            {
                "id": request.request_id,
                "prompt": [[own if key < 0 else 2 * key, tokens] for key, tokens in prompt],
                "max_tokens": request.max_tokens,
                "arrival": request.arrival_time,
                "priority": request.priority,
            }
        )

    def has_requests(self) -> bool:
        return bool(self._unsent or self.state["pending"])

    def gauges(self) -> tuple[int, int, int]:
        """How many requests run, how many wait, and how many KV blocks nobody holds."""
        waiting = self.state["waiting"] + len(self._unsent)
        return len(self.state["running"]), waiting, self.state["free"]

    def schedule(self) -> SchedulerOutput:
        """Has vLLM decide the next step."""
        if self._unsent:
            self._process.ask(op="add", requests=self._unsent)
            self._unsent = []
        self.state = answer = self._process.ask(op="schedule")
        preempted = [self._requests[i] for i in answer["preempted"]]
        for request in preempted:
            request.status = RequestStatus.PREEMPTED
            request.num_preemptions += 1
            request.num_computed_tokens = 0
        is_sampled = set(answer["sampled"])
        scheduled: dict[Request, int] = {}
        sampled: list[Request] = []
        prefills: list[tuple[int, int]] = []
        decodes = decode_context = 0
        for request_id, num_new_tokens, context in answer["tokens"]:
            request = self._requests[request_id]
            if request.status is not RequestStatus.RUNNING:
                if not request.num_preemptions:
                    self.num_prefix_hit_tokens += context
                request.status = RequestStatus.RUNNING
            has_output = request.num_output_tokens + request.num_output_placeholders > 0
            request.num_computed_tokens = context + num_new_tokens
            scheduled[request] = num_new_tokens
            if request_id in is_sampled:
                sampled.append(request)
                request.num_output_placeholders += 1
                if has_output and num_new_tokens == 1:
                    decodes += 1
                    decode_context += context + 1
                    continue
            prefills.append((num_new_tokens, context))
        composition = Step(
            decodes=decodes,
            decode_context=decode_context,
            prefills=prefills,
            sampled=len(sampled),
        )
        return SchedulerOutput(scheduled, composition, sampled, preempted, num_sampled=len(sampled))

    def update_from_output(self, output: SchedulerOutput) -> tuple[list[Request], list[Request]]:
        """Hands vLLM the oldest step's tokens; gives who got one, and who is finished by it."""
        self.state = answer = self._process.ask(op="update")
        for request in output.sampled:
            request.num_output_tokens += 1
            request.num_output_placeholders -= 1
        finished = [self._requests.pop(i) for i in answer["finished"]]
        for request in finished:
            request.status = RequestStatus.FINISHED
        return output.sampled, finished
