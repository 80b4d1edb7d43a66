"""The line that says how far a load is: on a terminal alone, past pytest's capture."""

import os
import pty
import subprocess
import sys

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--slo-target=sim"]
LINE = b"uniform round 1/20: 40/40 requests"


def on_a_terminal(suite, *arguments):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=suite.path, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # Linux's end of file for a terminal
                break
            if not read:
                break
            output += read
    os.close(ours)
    assert 0 == process.returncode, output
    return output


def test_a_terminal_sees_the_rounds_go_by_and_then_nothing_of_them(suite, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    output = on_a_terminal(suite)
    assert LINE in output
    last = output.rindex(b"/40 requests")
    assert b"\r" in output[last : output.index(b"service-level objectives")]
    assert LINE not in on_a_terminal(suite, "-q")


def test_a_file_sees_no_progress(suite):
    result = suite.run_apart("-s")
    result.assert_outcomes(passed=1)
    assert LINE.decode() not in result.stdout.str()
