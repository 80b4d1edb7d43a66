"""`boot`: starts vLLM with certain settings, and waits until it is ready and proved ours."""

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vllm_slo.engine import bootlog
from vllm_slo.engine.environ import engine_environ
from vllm_slo.engine.environment import EngineEnvironment, find
from vllm_slo.engine.gpu_memory import used_bytes
from vllm_slo.engine.launch import EngineTarget, Launch, plan
from vllm_slo.engine.ports import HOST, ReservedPort
from vllm_slo.engine.probing import Probe, probe
from vllm_slo.engine.readiness import (
    Answers,
    DiedError,
    NotOursError,
    TimeUpError,
    WrongAnswerError,
    wait_until_ready,
)
from vllm_slo.engine.server import Server
from vllm_slo.engine.supervise import GRACE_S, Supervised
from vllm_slo.errors import BootError, SettingsError
from vllm_slo.measure.run import EngineInfo
from vllm_slo.settings import Settings

BOOT_TIMEOUT_S = 600.0
# Another program may take the port between our choice and the server's bind: then another port.
_PORTS_TRIED = 3


def boot(
    settings: Settings,
    *,
    environment: EngineEnvironment | str | Path,
    model: str,
    report_dir: Path,
    target: EngineTarget = "emulated",
    device: str | None = None,
    boot_timeout_s: float = BOOT_TIMEOUT_S,
    cache_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    port: int = 0,
    stop_grace_s: float = GRACE_S,
) -> Server:
    """Boots vLLM with the settings and waits until it is ready.

    `environment` is as `find` takes it. On `emulated`, `model` and `device` say what is emulated;
    what runs is the tiny shape. `environ` stands in for our own environment variables. `port` is
    the one to try first; another is taken where it is not free. At its end the server has
    `stop_grace_s` before it is killed. The log is kept in `<report_dir>/servers/`.

    Raises:
        SettingsError: a setting that this vLLM does not take, before anything starts; or one that
            it took and then runs with another value of.
        BootError: the server died or was not ready in time: root cause, last lines, log file.
        EngineEnvironmentError, ProfileError, SloError: as `find`, `probe` and `plan`.
    """
    if not isinstance(environment, EngineEnvironment):
        environment = find(str(environment), cache_dir=cache_dir)
    asked_of = probe(environment, cache_dir=cache_dir)
    launch = plan(
        settings, probe=asked_of, model=model, target=target, device=device, cache_dir=cache_dir
    )
    one = _Boot(
        settings=settings,
        launch=launch,
        probe=asked_of,
        folder=Path(report_dir).absolute() / "servers",
        environ=dict(os.environ if environ is None else environ),
        timeout_s=boot_timeout_s,
        stop_grace_s=stop_grace_s,
    )
    for attempt in range(1, _PORTS_TRIED + 1):
        try:
            return one.attempt(port if attempt == 1 else 0)
        except _PortTakenError as taken:
            if attempt == _PORTS_TRIED:
                raise BootError(
                    f"the port was taken by another process {_PORTS_TRIED} times: {taken}"
                ) from taken
    raise AssertionError("the last attempt returns or raises")


class _PortTakenError(Exception):
    """The port is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boot:
    settings: Settings
    launch: Launch
    probe: Probe
    folder: Path
    environ: Mapping[str, str]
    timeout_s: float
    stop_grace_s: float

    def attempt(self, port: int) -> Server:
        try:
            reserved = ReservedPort(port)
        except OSError as error:
            raise _PortTakenError(str(error)) from error
        # Everything the server writes but its log: it is gone when the server is.
        scratch = Path(tempfile.mkdtemp(prefix="vllm-slo-"))
        log_path = _new_log(self.folder, self.settings)
        is_gpu = self.launch.target == "gpu"
        gpu_before = used_bytes() if is_gpu else ()
        started = time.monotonic()
        process = None
        try:
            api_key = secrets.token_urlsafe(24)
            account = log_path.with_suffix(".account") if self.launch.overlay else None
            process = self._start(reserved.port, api_key, scratch, log_path, account)
            base_url = f"http://{HOST}:{reserved.port}"
            answers = wait_until_ready(
                process,
                base_url=base_url,
                port=reserved.port,
                api_key=api_key,
                model=self.launch.model,
                until=started + self.timeout_s,
            )
            config = self._config(answers, log_path)
            server = Server(
                settings=self.settings,
                base_url=base_url,
                api_key=api_key,
                model=self.launch.model.served_name,
                vocab_size=self.launch.model.vocab_size,
                max_model_len=_whole(answers.model_entry.get("max_model_len")),
                pid=process.pid,
                log_path=log_path,
                boot_s=time.monotonic() - started,
                engine=self._info(answers, config, log_path),
                config=config,
                differences=bootlog.differences(self.launch.arguments, config),
                accounting_path=account,
                _process=process,
                _port=reserved.port,
                _gpu_before=gpu_before,
                _gpu_during=used_bytes() if is_gpu else (),
            )
            self._check_kept(server)
            return server
        except BaseException as error:
            after_s = time.monotonic() - started
            code = None if process is None else process.exit_code()
            if process is not None:
                process.stop()
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, DiedError | NotOursError | TimeUpError | WrongAnswerError):
                raise self._explained(error, code, log_path, after_s) from error
            raise
        finally:
            reserved.release()

    def _start(
        self, port: int, api_key: str, scratch: Path, log_path: Path, account: Path | None
    ) -> Supervised:
        overlay = {}
        if account is not None:
            overlay = self.launch.fill_overlay(scratch / "overlay", account)
        return Supervised(
            self.launch.command(self.probe, host=HOST, port=port),
            environ=engine_environ(
                self.environ,
                python=self.probe.python,
                offline=self.launch.model.is_local,
                api_key=api_key,
                overlay=overlay,
                extra=self.launch.environ,
            ),
            cwd=scratch,
            log=log_path,
            remove=[scratch],
            grace_s=self.stop_grace_s,
        )

    def _config(self, answers: Answers, log_path: Path) -> dict[str, Any]:
        config = bootlog.effective_config(bootlog.read_log(log_path), metrics=answers.metrics)
        if answers.server_info is not None:
            config |= bootlog.from_server_info(answers.server_info)
        # Where it listens, and where its model lies, says nothing about how it runs.
        return {k: v for k, v in config.items() if k not in ("host", "port", "model", "api_key")}

    def _info(self, answers: Answers, config: Mapping[str, Any], log_path: Path) -> EngineInfo:
        launch = self.launch
        name = Path(launch.device).stem if "/" in launch.device else launch.device
        plain = {k: v if isinstance(v, int | float | str) else str(v) for k, v in config.items()}
        return EngineInfo(
            target=launch.target,
            device=f"emulated-{name}" if launch.target == "emulated" else name,
            model=launch.modelled,
            vllm_version=answers.version or self.probe.vllm_version,
            server_log=str(log_path),
            config=tuple(sorted(plain.items())),
        )

    def _check_kept(self, server: Server) -> None:
        """Refuses a server that took a scheduler setting and then changed it."""
        scheduling = {f.name for f in fields(Settings)}
        changed = [
            f"{name}: {text}"
            for name, text in server.differences.items()
            if name in scheduling and name in self.launch.asked
        ]
        if changed:
            raise SettingsError(
                f"vLLM {server.engine.vllm_version} took the settings and changed them:\n  "
                + "\n  ".join(changed)
                + f"\nsee why: less {server.log_path}"
            )

    def _explained(
        self, error: Exception, code: int | None, log_path: Path, after_s: float
    ) -> Exception:
        """What to raise for a server that died, hung or answered wrongly, with its log's words."""
        log = bootlog.read_log(log_path)
        if isinstance(error, NotOursError) or bootlog.address_is_taken(log):
            return _PortTakenError(str(error) or f"Address already in use (log: {log_path})")
        what = f"vLLM {self.probe.vllm_version} with {self.settings}"
        if isinstance(error, DiedError):
            head = f"{what} died while booting, {after_s:.1f} s after its start (exit {code})"
            cause = bootlog.root_cause(log, exit_code=code)
        elif isinstance(error, TimeUpError):
            head = f"{what} was not ready within {self.timeout_s:g} s"
            cause = f"last seen: {error}; give it longer with --slo-boot-timeout"
        else:
            head = f"{what} booted, and does not serve"
            cause = str(error)
        last = "\n  ".join(bootlog.last_lines(log) or ["it printed nothing"])
        return BootError(
            f"{head}\n{cause}\n\nlast lines of its log:\n  {last}\n\nwhole log: less {log_path}"
        )


def _new_log(folder: Path, settings: Settings) -> Path:
    """A log file of its own for each boot, readable by us alone: numbered, named by settings."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w=.,+-]+", "_", str(settings))[:80]
    taken = [p.name.partition("-")[0] for p in folder.glob("*-*.log")]
    number = 1 + max((int(n) for n in taken if n.isdecimal()), default=0)
    while True:
        path = folder / f"{number}-{name}.log"
        try:
            # Two processes may count to the same number at once: with other settings, both have it.
            path.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            number += 1
            continue
        return path


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
