"""The fork server, asked by a supervisor as `kai up` asks it: in a process that forks before it does anything else."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, signal, sys
COUNTED = [os.getpid()]
def main():
    match sys.argv[1:]:
        case ["tell", *rest]:
            os.write(int(os.environ["WRITE_TO"]), b"inherited")
            session = os.getsid(0) == os.getpid()
            own = {name: value for name, value in os.environ.items() if name in ("A", "B", "KAI_PARENT_PID")}
            comm, open_ones = open("/proc/self/comm").read().strip(), sorted(map(int, os.listdir("/proc/self/fd")))
            print(json.dumps([rest, own, session, comm, sys.stdin.read(), COUNTED[0] != os.getpid(), os.getppid()]))
            # One is that of the listing.
            print(json.dumps([len(open_ones) - 1, int(os.environ["WRITE_TO"]) in open_ones]))
            sys.exit(3)
        case ["fail"]:
            raise ValueError("so it goes")
        case ["say"]:
            sys.exit("what it says")
        case ["wait"]:
            from kaicore.runtime.process_context import bound_to_parent
            assert bound_to_parent()
            os.write(1, b"waits\\n")
            signal.pause()
"""

SUPERVISOR = """
import asyncio, json, os, signal, sys, tempfile
from pathlib import Path
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import Child

async def ended(forks, *arguments, **more):
    with tempfile.TemporaryFile() as output:
        given = {**os.environ, "KAI_PARENT_PID": str(os.getpid()), **more.pop("environment", {})}
        command = [sys.executable, "-m", "a_program", *arguments]
        child = Child(command, environment=given, stdout=output, stderr=output, forks=forks, **more)
        return child.pid, await child.ended(), Path(f"/proc/self/fd/{output.fileno()}").read_text()

async def waiting(forks):
    reading, writing = os.pipe()
    command, given = [sys.executable, "-m", "a_program", "wait"], {**os.environ, "KAI_PARENT_PID": str(os.getpid())}
    child = Child(command, environment=given, stdout=writing, forks=forks)
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 64) == b"waits\\n"
    return child

def children():
    return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))

with ForkServer.fork(["a_program", "there_is_no_such"], at_once=False) as forks:
    (server,) = children()
    print(json.dumps(asyncio.run(main(forks))))
"""


def script_of(tmp_path: Path, main: str) -> str:
    """The supervisor with this `main`, beside its program."""
    (tmp_path / "a_program.py").write_text(PROGRAM + '\nif __name__ == "__main__":\n    main()\n')
    before, _, after = SUPERVISOR.partition("with ForkServer")
    return f"{before}{textwrap.dedent(main)}\nwith ForkServer{after}"


def supervised(tmp_path: Path, main: str) -> Any:
    """Run a supervisor with this `main`; what it returned."""
    command = [sys.executable, "-c", script_of(tmp_path, main)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_program_gets_what_it_would_get_of_its_own_and_nothing_of_the_supervisor(tmp_path: Path) -> None:
    asked = """
    async def main(forks):
        await forks.imported()
        os.environ["B"] = "of the supervisor, later"
        kept = os.open("a_program.py", os.O_RDONLY)
        reading, writing = os.pipe()
        given = {"A": "of its own", "WRITE_TO": str(writing)}
        pid, code, said = await ended(forks, "tell", "--flag", environment=given, inherit=(writing,))
        return pid, code, said, os.read(reading, 64).decode(), server
    """
    _, code, said, inherited, server = supervised(tmp_path, asked)
    told, open_ones = map(json.loads, said.splitlines())
    own = {"A": "of its own", "B": "of the supervisor, later", "KAI_PARENT_PID": str(server)}
    assert told == [["--flag"], own, True, "a-program", "", True, server]
    assert open_ones == [4, True], "three standard streams, and what it inherited"
    assert (code, inherited) == (3, "inherited")


def test_ends_are_reported_as_of_any_process(tmp_path: Path) -> None:
    asked = """
    async def main(forks):
        await forks.imported()
        failed, said = await ended(forks, "fail"), await ended(forks, "say")
        child = await waiting(forks)
        assert child.running
        child.send(signal.SIGKILL)
        killed = await child.ended()
        child.send(signal.SIGTERM)
        another = await waiting(forks)
        return failed[1:], said[1:], killed, child.code, await another.stop(patience_s=60)
    """
    failed, said, killed, kept, stopped = supervised(tmp_path, asked)
    assert failed[0] == 1
    assert failed[1].endswith("ValueError: so it goes\n")
    assert said == [1, "what it says\n"]
    assert (killed, kept, stopped) == (-9, -9, -15)


def test_killed_server_takes_its_programs_with_it_and_the_next_are_started_without_it(tmp_path: Path) -> None:
    asked = """
    async def main(forks):
        await forks.imported()
        child = await waiting(forks)
        forked = child.pid not in children()
        os.kill(server, signal.SIGKILL)
        await child.ended()
        another = await waiting(forks)
        alone = another.pid in children()
        await another.kill()
        return forked, child.code, alone
    """
    assert supervised(tmp_path, asked) == [True, -9, True]


def test_killed_supervisor_takes_server_and_programs_with_it(tmp_path: Path) -> None:
    asked = """
    async def main(forks):
        await forks.imported()
        await waiting(forks)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", script_of(tmp_path, asked)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as supervisor:
        # Server and program have its standard error: this ends when both have ended.
        _, said = supervisor.communicate(timeout=60)
    assert (supervisor.returncode, said) == (-9, b"")


MADE_BEFORE = """
import asyncio, os, sys, tempfile
from kaicore.runtime.fork_server import ForkServer
from kaicore.runtime.supervision import Child

def make():
    import a_program
    a_program.make()

async def main(forks):
    await forks.imported()
    for _ in range(2):
        with tempfile.TemporaryFile() as output:
            command = [sys.executable, "-m", "a_program"]
            await Child(command, environment=dict(os.environ), stdout=output, forks=forks).ended()
            output.seek(0)
            sys.stdout.write(output.read().decode())

with ForkServer.fork(["a_program"], then=make) as forks:
    asyncio.run(main(forks))
"""


def outputs(tmp_path: Path, program: str) -> list[str]:
    """The lines of two runs of a program with a `make` that runs before them."""
    (tmp_path / "a_program.py").write_text(program)
    command = [sys.executable, "-c", MADE_BEFORE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_what_is_made_once_the_modules_are_imported_is_in_every_program(tmp_path: Path) -> None:
    program = """
import os
MADE_IN = []
def make():
    import a_program
    a_program.MADE_IN.append(os.getpid())
def main():
    print(len(MADE_IN), os.getppid() in MADE_IN)
"""
    assert outputs(tmp_path, program) == ["1 True", "1 True"]


def test_first_objects_of_a_program_are_in_few_pools_though_others_have_free_places(tmp_path: Path) -> None:
    program = """
MADE = []
def make():
    import a_program
    made = [bytes(300 - 33) for _ in range(20_000)]
    del made[::100]
    a_program.MADE.append(made)
def main():
    new = [bytes(300 - 33) for _ in range(100)]
    print(len({id(one) >> 14 for one in new}) < 10)
"""
    assert outputs(tmp_path, program) == ["True", "True"]
