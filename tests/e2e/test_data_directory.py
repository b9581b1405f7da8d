"""A data directory that is in use: nothing that a second kai does there harms the first."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from kai_cli.directory_lock import try_lock

from tests.e2e.live_stack import PATIENCE_S, LiveStack
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow


def kai(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kai_cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def of_all_tests() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        live = LiveStack(root)
        yield live
        if live.alive:
            live.interrupt()


@pytest.fixture
def stack(of_all_tests: LiveStack) -> LiveStack:
    """A stack that runs: one for the module, which is started again only after a test that has killed it."""
    if not of_all_tests.alive:
        of_all_tests.start()
    return of_all_tests


def test_a_second_kai_on_a_directory_in_use_is_refused_and_the_first_loses_nothing(stack: LiveStack) -> None:
    root = str(stack.directory.root)
    recorded = stack.directory.running_file.read_bytes()
    for second in (("up",), ("demo",), ("demo", "--fresh"), ("demo", "--once")):
        done = kai(*second, "--data-dir", root)
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"process {json.loads(recorded)['pid']}" in done.stderr
        assert stack.directory.running_file.read_bytes() == recorded
    assert (stack.directory.postgres / "data" / "PG_VERSION").exists()
    assert stack.ask("audit", "verify")["ok"]


def test_after_kill_minus_9_the_directory_is_free_only_when_servers_and_services_are_gone(stack: LiveStack) -> None:
    fleet = stack.pid_of("kai_fleet.main")
    subprocess.run(["kill", "-STOP", str(fleet)], check=True)
    try:
        stack.kill()
        assert stack.directory.running() is None
        assert try_lock(stack.directory.root) is None, "a process of the killed stack still lives"
    finally:
        subprocess.run(["kill", "-CONT", str(fleet)], check=True)
    deadline = time.monotonic() + PATIENCE_S
    while (held := try_lock(stack.directory.root)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    held.release()
    assert stack.ask("audit", "verify")["ok"], "the log outlived it"
