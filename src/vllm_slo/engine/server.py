"""`Server`: a vLLM server that is ready, and how it ends."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_slo.engine import bootlog
from vllm_slo.engine.gpu_memory import not_back
from vllm_slo.engine.ports import is_free
from vllm_slo.engine.supervise import Supervised
from vllm_slo.errors import BootError
from vllm_slo.measure.run import EngineInfo
from vllm_slo.settings import Settings

_PORT_FREE_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """A running server. `stop` ends it, as does leaving the `with`, and our own death.

    `config` is what it runs with as far as it says so, `differences` where that is not what was
    asked. `accounting_path` is the padding worker's, `None` on a GPU.
    """

    settings: Settings
    base_url: str
    api_key: str = field(repr=False)
    model: str
    vocab_size: int
    max_model_len: int | None
    pid: int
    log_path: Path
    boot_s: float
    engine: EngineInfo
    config: Mapping[str, Any] = field(repr=False)
    differences: Mapping[str, str]
    accounting_path: Path | None
    _process: Supervised = field(repr=False)
    _port: int = field(repr=False)
    _gpu_before: tuple[int, ...] = field(default=(), repr=False)
    _gpu_during: tuple[int, ...] = field(default=(), repr=False)
    _is_stopped: bool = field(default=False, repr=False)

    def alive(self) -> bool:
        return not self._is_stopped and self._process.exit_code() is None

    def died_because(self) -> str | None:
        """Why the server died by itself: the root cause and the log's path; `None` if it lives."""
        code = None if self._is_stopped else self._process.exit_code()
        if code is None:
            return None
        cause = bootlog.root_cause(bootlog.read_log(self.log_path), exit_code=code)
        return f"{cause} (server log: {self.log_path})"

    def stop(self) -> None:
        """Ends the server: SIGTERM to its session, then SIGKILL to all that stems from it.

        Safe to call again.

        Raises:
            BootError: a process of it could not be ended, its port is still taken, or its GPU
                memory does not come back.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        left = self._process.stop()
        if left:
            raise BootError(
                f"the server's processes {', '.join(map(str, left))} could not be ended\n"
                f"end them by hand: kill -9 {' '.join(map(str, left))}"
            )
        until = time.monotonic() + _PORT_FREE_S
        while not is_free(self._port):
            if time.monotonic() > until:
                raise BootError(
                    f"port {self._port} is still taken after the server has ended\n"
                    f"see who has it: ss -ltnp sport = :{self._port}"
                )
            time.sleep(0.05)
        held = not_back(self._gpu_before, self._gpu_during)
        if held:
            raise BootError(
                f"after the server has ended, {held}\n"
                f"see whose it is: nvidia-smi --query-compute-apps=pid,used_memory --format=csv"
            )

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
