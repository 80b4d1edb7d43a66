"""Nothing of a server outlives us, whichever way we end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.engine.conftest import is_running
from tests.standin.fake import fake_environment
from vllm_slo.engine.environ import engine_environ, secrets_of
from vllm_slo.engine.supervise import Supervised

BOOTS_AND_WAITS = """
import sys, time
from pathlib import Path
from vllm_slo.engine import boot
from vllm_slo.settings import Settings
server = boot(Settings(), environment=sys.argv[1], model="shape:tiny", target="gpu",
              report_dir=Path(sys.argv[2]), cache_dir=Path(sys.argv[3]))
print(server.pid, flush=True)
{then}
time.sleep(600)
"""


def all_gone(pids, seconds):
    end = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return [pid for pid in pids if is_running(pid)]


def start_and_kill(tmp_path, cache_dir, number, *, then=""):
    fake = fake_environment(tmp_path / "engine", ignore_sigterm=True, orphan=True)
    script = BOOTS_AND_WAITS.format(then=then)
    command = [sys.executable, "-c", script, fake.python, str(tmp_path / "report"), str(cache_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ours:
        server = int(ours.stdout.readline())
        (orphan,) = fake.orphans()
        assert is_running(server)
        assert is_running(orphan)
        ours.send_signal(number)
        # What the process leaves may hold its output open.
        ours.stdout.close()
        ours.wait()
    return [server, orphan]


def test_our_sudden_death_takes_the_server_and_its_children_along(tmp_path, cache_dir):
    pids = start_and_kill(tmp_path, cache_dir, signal.SIGKILL)
    assert [] == all_gone(pids, seconds=5.0)


def test_a_forked_child_that_holds_our_pipe_keeps_nothing_alive(tmp_path, cache_dir):
    then = "import os\nif os.fork() == 0: os.setsid(); time.sleep(30); os._exit(0)"
    pids = start_and_kill(tmp_path, cache_dir, signal.SIGKILL, then=then)
    assert [] == all_gone(pids, seconds=5.0)


def start(tmp_path, code, **options):
    log = tmp_path / "log"
    return Supervised(
        [sys.executable, "-c", code], environ=os.environ, cwd=tmp_path, log=log, **options
    )


def test_the_end_of_a_warden_is_the_end_of_its_server(tmp_path):
    code = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    server = start(tmp_path, code)
    warden = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(warden, signal.SIGKILL)
    assert [] == all_gone([server.pid], seconds=5.0)
    assert -9 == server.wait(5.0)
    assert [] == server.stop()


def test_exit_code_and_last_words_are_there_when_death_is_known(tmp_path):
    server = start(tmp_path, "import sys; print('last words', end=''); sys.exit(7)")
    assert 7 == server.wait(30.0)
    assert "last words" == (tmp_path / "log").read_text()
    server.stop()


def test_a_server_in_its_own_session_does_not_hear_our_ctrl_c(tmp_path):
    server = start(tmp_path, "import os, time; print(os.getsid(0), flush=True); time.sleep(60)")
    assert server.pid == os.getsid(server.pid) != os.getsid(0)
    server.stop()


def test_a_program_that_is_not_there_is_an_error_at_once(tmp_path):
    import pytest

    from vllm_slo.errors import BootError

    with pytest.raises(BootError, match="/no/such/python: cannot be started"):
        Supervised(["/no/such/python"], environ=os.environ, cwd=tmp_path, log=tmp_path / "log")


def test_a_secret_that_is_cut_by_a_write_is_still_kept_off_the_log(tmp_path):
    code = (
        "import os, time\n"
        "os.write(1, b'a hf_abcd'); time.sleep(0.3); os.write(1, b'efgh1234 z\\n')\n"
        "os.write(1, b'40%\\r80%\\r')\n"
    )
    environ = dict(os.environ) | {"HF_TOKEN": "hf_abcdefgh1234"}
    server = Supervised(
        [sys.executable, "-c", code], environ=environ, cwd=tmp_path, log=tmp_path / "log"
    )
    assert 0 == server.wait(30.0)
    server.stop()
    assert b"a [redacted] z\n40%\r80%\r" == (tmp_path / "log").read_bytes()


def test_secrets_are_known_by_their_names(tmp_path):
    environ = {
        "HF_TOKEN": "hf_0123456789",
        "OPENAI_API_KEY": "sk-0123456789",
        "AWS_SECRET_ACCESS_KEY": "/0123456789abc",
        "TOKENIZERS_PARALLELISM": "false-and-long",
        "SSH_KEY": str(tmp_path),
        "SHORT_TOKEN": "abc",
        "HOME": "/home/somebody",
    }
    assert {"hf_0123456789", "sk-0123456789", "/0123456789abc"} == set(secrets_of(environ))


def test_callers_variables_win_and_an_old_key_does_not_stay():
    made = engine_environ(
        {"PATH": "/bin", "VLLM_API_KEY": "old"},
        python=Path("/engine/bin/python"),
        offline=False,
        extra={"VLLM_NO_USAGE_STATS": "0"},
    )
    assert ("/engine/bin:/bin", "0") == (made["PATH"], made["VLLM_NO_USAGE_STATS"])
    assert "VLLM_API_KEY" not in made
    assert "HF_HUB_OFFLINE" not in made
