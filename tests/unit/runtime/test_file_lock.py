"""One `flock` for a file or a directory, kept by the processes that inherit it."""

import subprocess
import sys
from pathlib import Path

import pytest
from kaicore.runtime.file_lock import FileLock


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_lock_that_is_held_is_taken_again_only_after_its_release(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock" if kind == "file" else tmp_path
    with FileLock(path) as second:
        with FileLock(path) as first:
            assert first.taken()
            assert not second.taken()
        assert second.taken()


def test_a_released_lock_stays_with_the_process_that_inherited_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.taken()
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,), text=True
    )
    lock.release()
    with FileLock(tmp_path / "lock") as other:
        assert not other.taken()
        child.communicate("\n", timeout=60)
        assert other.taken()
