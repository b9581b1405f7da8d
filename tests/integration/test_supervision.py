"""Processes under supervision: tried again with back-off, killed when silent, given up if they cannot work."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kai_cli.running.processes import KeptServer, Ports, ProcessSpec, SupervisedProcess, Watch
from kaicore.errors import EmbeddedServerError
from kaicore.runtime.embedded import EmbeddedNats
from kaicore.runtime.supervision import Child, Pauses, RotatedFile

from tests.given.processes.waiting import eventually

#: Answers 200 until it is asked to fall silent or to end; each start leaves a line in the file `starts`.
SERVICE = """
import http.server, os, pathlib, socket, sys, threading
port, starts = int(sys.argv[1]), pathlib.Path(sys.argv[2])
fd = os.environ.get("KAI_HTTP_FD")
starts.write_text((starts.read_text() if starts.exists() else "") + f"{os.getpid()}\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hang":
            server.silent = True
        if server.silent:
            threading.Event().wait()
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
if fd is None:
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        print(f"port {port}: {error}")
        sys.exit(2)
else:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(fd))
server.silent = False
server.serve_forever()
"""

PATIENCE_S = 60.0


class Watched:
    """A supervised process, and the messages to its operator."""

    def __init__(
        self,
        root: Path,
        *command: str,
        port: int,
        listening: socket.socket | None = None,
        pauses: Pauses | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.reported: list[str] = []
        self.heard = asyncio.Event()
        self.starts = root / "starts"
        spec = ProcessSpec(
            name="it",
            command=(sys.executable, "-c", *command),
            ready_url=f"http://127.0.0.1:{port}/readyz",
            listening=listening,
        )
        self.log = root / "log"
        self.process = SupervisedProcess(spec, log_file=self.log, report=self._report, pauses=pauses, watch=watch)

    def _report(self, line: str) -> None:
        self.reported.append(line)
        self.heard.set()

    async def until_reported(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.reported) < times:
                self.heard.clear()
                await self.heard.wait()

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.process.ready.wait()


@asynccontextmanager
async def supervised(
    root: Path,
    *command: str,
    port: int = 0,
    listening: socket.socket | None = None,
    pauses: Pauses | None = None,
    watch: Watch | None = None,
) -> AsyncIterator[Watched]:
    watched = Watched(root, *command, port=port, listening=listening, pauses=pauses, watch=watch)
    watched.process.start()
    try:
        yield watched
    finally:
        await watched.process.stop()


@pytest.fixture
def port(tmp_path: Path) -> int:
    return Ports(tmp_path / "ports.json").port("it")


async def test_a_process_that_keeps_ending_is_tried_again_after_ever_longer_pauses(tmp_path: Path) -> None:
    code = 'import sys; sys.stderr.write(\'{"error": "no luck"}\\n\'); sys.exit(7)'
    async with supervised(tmp_path, code, pauses=Pauses(0.01, 0.3, PATIENCE_S)) as watched:
        await watched.until_reported(7)
    pauses = [line.partition(" again in ")[2].partition(" s;")[0] for line in watched.reported]
    assert pauses[:7] == ["0.0", "0.0", "0.0", "0.1", "0.2", "0.3", "0.3"]
    assert watched.reported[0].startswith("it: ended with code 7 (no luck), ")
    assert not watched.process.hopeless.is_set()


async def test_a_process_that_ends_while_all_are_stopped_is_not_reported(tmp_path: Path) -> None:
    async with supervised(tmp_path, "import signal; signal.pause()", pauses=Pauses(0.01)) as watched:
        pid = await eventually(lambda: watched.process.pid)
        watched.process.stop_restarting()
        os.kill(pid, signal.SIGTERM)
        await eventually(lambda: watched.process.pid is None)
    assert (watched.reported, watched.process.restarts) == ([], 0)


async def test_what_ran_well_for_a_while_is_started_again_at_once(tmp_path: Path) -> None:
    async with supervised(tmp_path, "raise SystemExit(1)", pauses=Pauses(0.2, forgiven=0.0)) as watched:
        await watched.until_reported(3)
    assert all("again in 0.2 s" in line for line in watched.reported)


async def test_settings_that_cannot_work_are_tried_a_few_times_and_then_given_up(tmp_path: Path) -> None:
    code = "import sys; print('kai: no such profile'); sys.exit(2)"
    async with supervised(tmp_path, code, pauses=Pauses(0.01)) as watched:
        async with asyncio.timeout(PATIENCE_S):
            await watched.process.hopeless.wait()
        assert watched.process.why_hopeless == (
            f"it: kai: no such profile (given up after 6 starts in a row; see {watched.log})"
        )
        assert (watched.process.restarts, watched.process.pid) == (5, None)
    assert len(watched.reported) == 5
    assert all("ended with code 2 (kai: no such profile), again in " in line for line in watched.reported)


async def test_a_port_taken_for_a_while_does_not_end_a_process_for_good(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as taken:
        service = (SERVICE, str(port), str(tmp_path / "starts"))
        async with supervised(tmp_path, *service, port=port, pauses=Pauses(0.05)) as watched:
            await watched.until_reported(2)
            taken.close()
            await watched.until_ready()
            assert "Address already in use" in watched.reported[0]
            assert not watched.process.hopeless.is_set()


async def test_the_error_of_an_earlier_end_is_not_told_of_a_later_one(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; first = pathlib.Path(sys.argv[1])\n"
        "if not first.exists(): first.touch(); sys.exit('an old error')\n"
        "sys.exit(1)"
    )
    async with supervised(tmp_path, code, str(tmp_path / "first"), pauses=Pauses(0.01)) as watched:
        await watched.until_reported(2)
    assert "ended with code 1 (an old error)" in watched.reported[0]
    assert "ended with code 1 (it said nothing)" in watched.reported[1]
    assert watched.log.read_text() == "an old error\n"


async def test_a_disk_that_is_full_ends_no_process_that_logs(tmp_path: Path, port: int) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    talkative = "import sys; sys.stderr.write(('x' * 99 + chr(10)) * 50_000)\n" + SERVICE
    async with supervised(tmp_path, talkative, str(port), str(tmp_path / "starts"), port=port) as watched:
        await watched.until_ready()
    assert watched.reported == []


def test_a_log_file_is_put_aside_when_it_is_large(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", most_bytes=100)
    for number in range(30):
        file.write(b"%02d" % number + b"x" * 27 + b"\n")
    file.close()
    kept = {path.name: path.read_bytes()[:2] for path in tmp_path.iterdir()}
    assert kept == {"log": b"27", "log.1": b"24", "log.2": b"21", "log.3": b"18"}
    file = RotatedFile(tmp_path / "log", most_bytes=100)
    file.write(b"y" * 20 + b"\n")
    file.close()
    assert (tmp_path / "log.1").read_bytes()[:2] == b"27", "what an earlier run wrote counts"


async def test_no_other_process_can_take_the_port_of_one_that_is_away(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "ports.json")
    listening = ports.listen("it")
    port = listening.getsockname()[1]
    assert ports.port("it") == port
    service = (SERVICE, str(port), str(tmp_path / "starts"))
    async with supervised(tmp_path, *service, port=port, listening=listening, pauses=Pauses(2.0)) as watched:
        await watched.until_ready()
        first = watched.process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await watched.until_reported(1)
        assert watched.process.pid is None
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port)).close()
        await watched.until_ready()
        assert watched.process.pid != first
    ports.close()
    socket.create_server(("127.0.0.1", port)).close()


async def test_a_process_that_falls_silent_is_killed_and_started_again(tmp_path: Path, port: int) -> None:
    watch = Watch(check_s=0.02, answer_s=0.3, most_silent=2)
    service = (SERVICE, str(port), str(tmp_path / "starts"))
    async with supervised(tmp_path, *service, port=port, pauses=Pauses(0.01), watch=watch) as watched:
        await watched.until_ready()
        first = watched.process.pid
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hang HTTP/1.0\r\n\r\n")
        await writer.drain()
        await watched.until_reported(2)
        writer.close()
        assert watched.reported[0] == "it: does not answer, killed"
        assert watched.reported[1].startswith("it: ended with code -9 ")
        await watched.until_ready()
        assert watched.process.pid != first
    assert len(watched.starts.read_text().splitlines()) == 2
    assert watched.process.pid is None


async def test_a_process_that_does_not_end_is_killed_and_one_that_has_ended_is_not_signalled() -> None:
    stubborn = Child(
        [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"],
        stdout=(pipe := os.pipe())[1],
    )
    await asyncio.to_thread(os.read, pipe[0], 1)
    for end in pipe:
        os.close(end)
    killed: list[bool] = []
    assert await stubborn.stop(patience_s=0.05, killing=lambda: killed.append(stubborn.running)) == -signal.SIGKILL
    assert killed == [True]
    stubborn.send(signal.SIGKILL)
    assert await stubborn.stop(patience_s=0, killing=lambda: killed.append(True)) == -signal.SIGKILL
    assert killed == [True]


async def test_a_process_that_ends_is_not_waited_for_until_it_is_ready() -> None:
    async def never() -> bool:
        return False

    assert not await Child([sys.executable, "-c", ""]).until_ready(never, within_s=PATIENCE_S)


class Server(EmbeddedNats):
    """A server with starts that fail with the given problems, and then succeed."""

    def __init__(self, directory: Path, *problems: str) -> None:
        super().__init__(directory)
        self.problems = list(problems)
        self.dead, self.started = asyncio.Event(), asyncio.Event()

    @property
    def pid(self) -> int | None:
        return None if self.dead.is_set() else 1

    async def start(self) -> None:
        if self.problems:
            raise EmbeddedServerError(self.problems.pop(0))
        self.dead.clear()
        self.started.set()

    async def ended(self) -> None:
        await self.dead.wait()


async def test_an_embedded_server_that_dies_is_started_again_and_each_trouble_is_reported_once(tmp_path: Path) -> None:
    server, reported = Server(tmp_path, "no room", "no room", "no port"), asyncio.Queue[str]()
    kept = KeptServer(server, reported.put_nowait, pauses=Pauses(0.001))
    kept.start()
    for death in (1, 2):
        server.started.clear()
        server.dead.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reported.get()).startswith("NATS died, starting it again; see ")
            if death == 1:
                assert await reported.get() == "NATS does not start: no room; tried again until it does"
                assert await reported.get() == "NATS does not start: no port; tried again until it does"
            assert await reported.get() == "NATS is up again"
            await server.started.wait()
    await kept.stop()
    assert reported.empty()
