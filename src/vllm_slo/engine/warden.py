"""The process between us and a server: it ends the whole server when we ask, and when we die.

Run alone as `python -I -S warden.py`, in a session of its own, with only the standard library. Its
environment is the server's.

- Standard input is a pipe that we hold. Its first line is JSON: argv, cwd, log, secrets, what to
  remove at the end, and how long to wait at a stop. A further byte, or the pipe's end, ends the
  server. A copy of the pipe may live on in a child that we forked, so a change of parent counts as
  our end too.
- It is a subreaper: what the server leaves behind when it dies becomes a child of this process, so
  every survivor can be found and killed, whatever session or group it moved to.
- The server dies with this process (PR_SET_PDEATHSIG), should someone kill it.
- The server's output passes through here on its way to the log file, so that no secret is written.
- Standard output carries events to us, one JSON object a line: started, exited, stopped.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
_LONGEST_LINE = 1 << 16
_MASK = b"[redacted]"


class Log:
    """The log file, written line by line so that a secret is never cut in two."""

    def __init__(self, path: Path, secrets: list[bytes]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._secrets = secrets
        self._rest = b""

    def add(self, data: bytes) -> None:
        data = self._rest + data
        # A progress bar ends its lines with a carriage return.
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end == 0 and len(data) > _LONGEST_LINE:
            end = len(data)
        self._rest = data[end:]
        self._write(data[:end])

    def flush(self) -> None:
        self._write(self._rest)
        self._rest = b""

    def _write(self, data: bytes) -> None:
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        while data:
            data = data[os.write(self._file, data) :]


class Warden:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._grace_s: float = spec["grace_s"]
        self._orphan_grace_s: float = spec["orphan_grace_s"]
        self._parent = os.getppid()
        self._is_told_to_stop = False
        self._remove: list[str] = spec["remove"]
        self._log = Log(Path(spec["log"]), [s.encode() for s in spec["secrets"]])
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        me = os.getpid()

        def in_server() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(1)

        self._server = subprocess.Popen(
            spec["argv"],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_server,
        )
        assert self._server.stdout is not None
        self._output = self._server.stdout.fileno()
        os.set_blocking(self._output, False)
        self._is_output_open = True
        self._say(event="started", pid=self._server.pid)

    def tell_to_stop(self, *_: Any) -> None:
        self._is_told_to_stop = True

    def run(self) -> None:
        """Watches until the server ends or must end, then ends all of it."""
        while True:
            asked = self._wait()
            if self._server.poll() is not None:
                self._exited()
                break
            if asked is not None:
                grace_s = self._grace_s if asked == "stop" else self._orphan_grace_s
                self._signal_session(signal.SIGTERM)
                if self._ends_within(grace_s):
                    self._exited()
                break
        left = self._kill_all()
        if self._is_output_open:
            self._read_output()
        self._log.flush()
        for folder in self._remove:
            shutil.rmtree(folder, ignore_errors=True)
        self._say(event="stopped", code=self._server.poll(), left=left)

    def _wait(self) -> str | None:
        """Handles output for one tick; says `stop` or `orphaned` when the server must end."""
        watched = [0] + ([self._output] if self._is_output_open else [])
        ready, _, _ = select.select(watched, [], [], _TICK_S)
        if self._output in ready:
            self._read_output()
        if self._is_told_to_stop:
            return "stop"
        if 0 in ready:
            return "stop" if os.read(0, 64) else "orphaned"
        return "orphaned" if os.getppid() != self._parent else None

    def _read_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 1 << 16):
                self._log.add(data)
            self._is_output_open = False

    def _exited(self) -> None:
        if self._is_output_open:
            self._read_output()
        self._log.flush()
        self._say(event="exited", code=self._server.returncode)

    def _ends_within(self, seconds: float) -> bool:
        """Waits until the server and all it started end by themselves; says whether it did.

        What outlives the server itself gets one more second: nothing talks to it any longer.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            watched = [self._output] if self._is_output_open else []
            select.select(watched, [], [], _TICK_S / 4)
            if watched:
                self._read_output()
            was_alive = self._server.returncode is None
            self._reap()
            if self._server.returncode is not None:
                if not descendants(os.getpid()):
                    return True
                if was_alive:
                    until = min(until, time.monotonic() + 1.0)
        return self._server.returncode is not None

    def _kill_all(self) -> list[int]:
        """Kills every process that stems from the server until none is left; says which resist."""
        until = time.monotonic() + 5.0
        while True:
            left = descendants(os.getpid())
            if not left:
                return []
            if time.monotonic() > until:
                return left
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._is_output_open:
                self._read_output()
            self._reap()
            time.sleep(0.01)

    def _reap(self) -> None:
        self._server.poll()
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return

    def _signal_session(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, number)

    def _say(self, **event: Any) -> None:
        # Nobody may be there to hear it any more.
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(event).encode() + b"\n")


def descendants(ancestor: int) -> list[int]:
    """Every living process that stems from `ancestor`; one that is dead and not reaped is not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command may hold spaces and brackets: what follows the last one is fixed.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def read_spec() -> dict[str, Any]:
    """The first line of standard input, read byte by byte: what follows it is for `select`."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)  # whoever started us is gone already
        line += byte
    spec: dict[str, Any] = json.loads(line)
    return spec


if __name__ == "__main__":
    warden = Warden(read_spec())
    # Handlers, for an ignored signal would stay ignored in the server.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, warden.tell_to_stop)
    warden.run()
