"""Our end of a supervised server process: start it, hear how it fares, end all of it."""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_slo.engine.environ import secrets_of
from vllm_slo.errors import BootError

_WARDEN = Path(__file__).with_name("warden.py")
# A server that is asked to end finishes what it has; one whose user was killed has 5 s in all.
GRACE_S = 15.0
_ORPHAN_GRACE_S = 1.0
# The warden's own time to kill what resists, beyond the grace.
_KILL_S = 10.0


class Supervised:
    """A server process under a warden (warden.py), which ends it when we ask or die.

    `pid` is the server's own, and the number of its session and process group. The folders in
    `remove` are deleted when it has ended.

    Raises:
        BootError: the process cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        log: Path,
        remove: Sequence[Path] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        self._grace_s = grace_s
        self._lock = threading.RLock()
        self._events: dict[str, dict[str, Any]] = {}
        self._buffer = b""
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WARDEN)],
            env=dict(environ),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        spec = {
            "argv": list(argv),
            "cwd": str(cwd),
            "log": str(log),
            "secrets": secrets_of(environ),
            "remove": [str(path) for path in remove],
            "grace_s": grace_s,
            "orphan_grace_s": _ORPHAN_GRACE_S,
        }
        try:
            self._write(json.dumps(spec).encode() + b"\n")
            self.pid = self._started(argv[0])
        except BaseException:
            self.close()
            raise

    def exit_code(self) -> int | None:
        """The server's exit code (negative: a signal), `None` while it lives."""
        self._hear(0.0)
        event = self._events.get("exited") or self._events.get("stopped")
        if event is not None:
            return int(event["code"]) if event["code"] is not None else -9
        # The warden is gone without a word: the server died with it.
        return -9 if self._warden.poll() is not None else None

    def wait(self, timeout_s: float) -> int | None:
        """Waits for the server to end, at most `timeout_s`; returns as `exit_code` does."""
        until = time.monotonic() + timeout_s
        while True:
            code = self.exit_code()
            left = until - time.monotonic()
            if code is not None or left <= 0:
                return code
            self._hear(min(left, 0.5))

    def stop(self) -> list[int]:
        """Ends the server and all that stems from it; gives the processes that could not be ended.

        Safe to call again.
        """
        self._write(b"!")
        until = time.monotonic() + self._grace_s + _KILL_S
        while "stopped" not in self._events and time.monotonic() < until:
            if self._warden.poll() is not None:
                self._hear(0.0)
                break
            self._hear(0.2)
        self.close()
        if "stopped" in self._events:
            return [int(pid) for pid in self._events["stopped"]["left"]]
        # A warden that was itself killed took the server with it, but not what the server started.
        return [pid for pid in _of_session(self.pid) if not _killed(pid)]

    def close(self) -> None:
        """Lets go of the warden, which then ends the server if it lives."""
        with self._lock:
            for pipe in (self._warden.stdin, self._warden.stdout, self._warden.stderr):
                if pipe is not None and not pipe.closed:
                    with contextlib.suppress(OSError):
                        pipe.close()
        try:
            self._warden.wait(timeout=_KILL_S)
        except subprocess.TimeoutExpired:
            self._warden.kill()
            self._warden.wait()

    def _started(self, program: str) -> int:
        until = time.monotonic() + 30.0
        while "started" not in self._events:
            self._hear(0.5)
            if self._warden.poll() is not None or time.monotonic() > until:
                self._hear(0.0)
                break
        if "started" in self._events:
            return int(self._events["started"]["pid"])
        self._warden.kill()
        assert self._warden.stderr is not None
        said = self._warden.stderr.read().decode(errors="replace").strip().splitlines()
        raise BootError(f"{program}: cannot be started: {said[-1] if said else 'no answer'}")

    def _write(self, data: bytes) -> None:
        with self._lock:
            pipe = self._warden.stdin
            if pipe is None or pipe.closed:
                return
            with contextlib.suppress(OSError):  # the warden has ended already
                pipe.write(data)
                pipe.flush()

    def _hear(self, timeout_s: float) -> None:
        """Takes in what the warden has said, waiting for a word at most `timeout_s`."""
        with self._lock:
            pipe = self._warden.stdout
            if pipe is None or pipe.closed:
                return
            handle = pipe.fileno()
            while select.select([handle], [], [], timeout_s)[0]:
                timeout_s = 0.0
                data = os.read(handle, 4096)
                if not data:
                    return
                *lines, self._buffer = (self._buffer + data).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    self._events[event["event"]] = event


def _of_session(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def _killed(pid: int) -> bool:
    """Kills one process of a server, and says whether it is gone within a second."""
    for _ in range(20):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        time.sleep(0.05)
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
    return False
