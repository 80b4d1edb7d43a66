import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_slo.files import check_writable, rewrite, write_whole

CRASH = """
import os, sys
from pathlib import Path
from vllm_slo.files import rewrite
Path.replace = lambda *_: os._exit(9)  # power cut between write and rename
rewrite(Path(sys.argv[1]), lambda old: old + "new")
"""
APPEND = """
import sys
from pathlib import Path
from vllm_slo.files import rewrite
sys.stdin.readline()
for i in range(40):
    rewrite(Path(sys.argv[1]), lambda old: (old or "") + f"{sys.argv[2]}{i} ")
"""


def test_a_crash_between_write_and_rename_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text("old")
    died = subprocess.run([sys.executable, "-c", CRASH, path], check=False)
    assert 9 == died.returncode
    assert "old" == path.read_text()
    assert [path] == list(tmp_path.glob("*.toml"))
    assert rewrite(path, lambda old: f"{old} and new")
    assert "old and new" == path.read_text()


def test_an_error_between_write_and_rename_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "m.toml"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        rewrite(path, lambda _: "new")
    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "new folder" / "m.toml"
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, path, name], stdin=subprocess.PIPE)
        for name in "abc"
    ]
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.close()
    assert [0, 0, 0] == [writer.wait(timeout=60) for writer in writers]
    assert {f"{name}{i}" for name in "abc" for i in range(40)} == set(path.read_text().split())


@pytest.mark.parametrize("mode", [0o640, 0o664, 0o600])
def test_a_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "m.toml"
    path.write_text("old")
    path.chmod(mode)
    rewrite(path, lambda _: "new")
    assert mode == path.stat().st_mode & 0o777


def test_a_new_file_has_the_mode_that_any_new_file_has(tmp_path):
    (tmp_path / "usual").touch()
    rewrite(tmp_path / "m.toml", lambda _: "new")
    assert (tmp_path / "usual").stat().st_mode == (tmp_path / "m.toml").stat().st_mode


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "real.toml").write_text("old")
    (tmp_path / "m.toml").symlink_to("real.toml")
    rewrite(tmp_path / "m.toml", lambda _: "new")
    assert (tmp_path / "m.toml").is_symlink()
    assert "new" == (tmp_path / "real.toml").read_text()


def test_what_does_not_change_is_not_written(tmp_path):
    path = tmp_path / "m.toml"
    path.write_text("old")
    os.utime(path, ns=(1, 1))
    assert not rewrite(path, lambda old: old)
    assert 1 == path.stat().st_mtime_ns


def test_windows_line_ends_are_kept(tmp_path):
    path = tmp_path / "m.toml"
    path.write_bytes(b"a\r\n")
    rewrite(path, lambda old: old + "b\r\n")
    assert b"a\r\nb\r\n" == path.read_bytes()


def test_a_whole_write_makes_its_folder_and_keeps_the_mode(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_whole(path, "one")
    path.chmod(0o640)
    write_whole(path, "two")
    assert ("two", 0o640, [path]) == (
        path.read_text(),
        path.stat().st_mode & 0o777,
        list(path.parent.iterdir()),
    )


def test_a_path_that_cannot_be_written_is_known_beforehand(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x.json"):
        with pytest.raises(OSError, match=r"directory|exists"):
            check_writable(path)
    check_writable(tmp_path / "new" / "x.json")
    assert [] == list((tmp_path / "new").iterdir())
