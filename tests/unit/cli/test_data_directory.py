"""The files that kai deletes when it begins anew: its own data, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kai_cli.demonstration.demo import demo
from kai_cli.running.up import up
from kai_cli.sources.paths import DataDirectory, RunningStack, try_lock
from kaicore.errors import ConfigurationError

from tests.given.servers.servers import scratch_directory


def used_by_kai(root: Path) -> DataDirectory:
    """A folder as a run leaves it."""
    directory = DataDirectory(root)
    directory.claim()
    (directory.postgres / "data").mkdir(parents=True)
    (directory.postgres / "data" / "PG_VERSION").write_text("18")
    directory.logs.mkdir()
    (root / "ports.json").write_text("{}")
    return directory


def everything_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_what_kai_made_is_deleted_and_the_folder_can_be_used_again(tmp_path: Path) -> None:
    directory = used_by_kai(tmp_path / "data")
    for _ in range(2):
        directory.clear()
        assert everything_below(directory.root) == set()
        used_by_kai(directory.root)


def test_an_absent_and_an_empty_folder_need_no_clearing(tmp_path: Path) -> None:
    DataDirectory(tmp_path / "absent").clear()
    DataDirectory(tmp_path).clear()
    assert not (tmp_path / "absent").exists()


def a_strangers_folder(root: Path) -> None:
    (root / "precious.txt").write_text("mine")


def a_folder_that_looks_like_kais(root: Path) -> None:
    (root / "logs").mkdir()
    (root / "logs" / "precious.log").write_text("mine")


def kais_folder_with_something_of_mine(root: Path) -> None:
    used_by_kai(root)
    (root / "precious.txt").write_text("mine")


def my_folder_in_which_kai_ran(root: Path) -> None:
    a_folder_that_looks_like_kais(root)
    DataDirectory(root).claim()
    (root / "postgres").mkdir()


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (a_strangers_folder, "precious.txt"),
        (a_folder_that_looks_like_kais, "kai did not make it"),
        (kais_folder_with_something_of_mine, "precious.txt"),
        (my_folder_in_which_kai_ran, "kai did not make it"),
    ],
)
@pytest.mark.parametrize("flag", ["once", "fresh"])
def test_the_demonstration_deletes_only_its_own_files(prepare: Callable[[Path], None], named: str, flag: str) -> None:
    with scratch_directory() as root:
        prepare(root)
        before = everything_below(root)
        with pytest.raises(ConfigurationError, match=named) as refused:
            demo(data_dir=root, **{flag: True})
        assert str(root) in str(refused.value)
        assert everything_below(root) == before


def test_a_folder_whose_name_is_ours_needs_no_mark_but_must_hold_nothing_else(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.logs.mkdir()
    directory.clear(named_by_us=True)
    assert everything_below(tmp_path) == set()
    a_strangers_folder(tmp_path)
    with pytest.raises(ConfigurationError, match=r"precious\.txt"):
        directory.clear(named_by_us=True)


def test_beginning_anew_leaves_the_comparisons_own_folder_alone(tmp_path: Path) -> None:
    once = used_by_kai(tmp_path / "once")
    directory = used_by_kai(tmp_path)
    kept = everything_below(once.root)
    directory.clear()
    assert everything_below(tmp_path) == {"once", *(f"once/{name}" for name in kept)}


#: Locks a directory, says so, and stays until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from kai_cli.sources.paths import DataDirectory, RunningStack
directory = DataDirectory(Path(sys.argv[1]))
with directory.lock() as held:
    import os
    directory.claim()
    directory.note_running(RunningStack(os.getpid()))
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_kai(root: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.mark.parametrize("flags", [{"once": True}, {"fresh": True}, {}])
def test_a_directory_in_use_is_neither_cleared_nor_started_in(flags: dict[str, bool]) -> None:
    with scratch_directory() as root, another_kai(root) as holder:
        used_by_kai(root)
        before = everything_below(root)
        with pytest.raises(ConfigurationError, match=f"in use by another kai, process {holder.pid}"):
            demo(data_dir=root, **flags)
        with pytest.raises(ConfigurationError, match="in use by another kai"):
            up(data_dir=root)
        assert everything_below(root) == before
        assert (root / "running.json").exists()


def test_the_lock_ends_with_the_process_that_holds_it() -> None:
    with scratch_directory() as root:
        with another_kai(root):
            assert try_lock(root) is None
        with DataDirectory(root).lock():
            assert try_lock(root) is None
        with DataDirectory(root).lock():
            pass


def test_a_child_that_inherited_the_lock_keeps_it_after_its_parents_end() -> None:
    with scratch_directory() as root:
        held = DataDirectory(root).lock()
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(held.fd,))
        held.release()
        assert try_lock(root) is None
        child.communicate()
        DataDirectory(root).lock().release()


def test_a_stack_whose_process_id_is_another_process_now_does_not_run() -> None:
    with scratch_directory() as root:
        directory = DataDirectory(root)
        with directory.lock():
            directory.note_running(RunningStack(os.getpid()))
            assert directory.running() is not None
        assert directory.running() is None, "no process has the directory, though there is a process of that id"
