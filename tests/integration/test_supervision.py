"""Processes under supervision: tried again with back-off, killed when silent, given up if they cannot work."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kai_cli import processes
from kai_cli.ports import Ports
from kai_cli.processes import ProcessSpec, SupervisedProcess

#: Answers 200 until somebody asks it to fall silent or to end; each start leaves a line in the file `starts`.
SERVICE = """
import http.server, os, pathlib, sys, threading
port, starts = int(sys.argv[1]), pathlib.Path(sys.argv[2])
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
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.silent = False
server.serve_forever()
"""

PATIENCE_S = 60.0


class Watched:
    """A supervised process, and what its operator was told."""

    def __init__(self, root: Path, *command: str, port: int) -> None:
        self.told: list[str] = []
        self.heard = asyncio.Event()
        self.starts = root / "starts"
        spec = ProcessSpec(
            name="it", command=(sys.executable, "-c", *command), ready_url=f"http://127.0.0.1:{port}/readyz"
        )
        self.process = SupervisedProcess(spec, log_file=root / "log", tell=self._tell)

    def _tell(self, line: str) -> None:
        self.told.append(line)
        self.heard.set()

    async def until_told(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.told) < times:
                self.heard.clear()
                await self.heard.wait()

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.process.ready.wait()


@asynccontextmanager
async def supervised(root: Path, *command: str, port: int = 0) -> AsyncIterator[Watched]:
    watched = Watched(root, *command, port=port)
    watched.process.start()
    try:
        yield watched
    finally:
        await watched.process.stop()


@pytest.fixture
def port(tmp_path: Path) -> int:
    return Ports(tmp_path / "ports.json").port("it")


async def test_a_process_that_keeps_ending_is_tried_again_after_ever_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PAUSE_S", 0.01)
    monkeypatch.setattr(processes, "_MAX_PAUSE_S", 0.3)
    monkeypatch.setattr(processes, "_FORGIVEN_S", PATIENCE_S)
    code = 'import sys; sys.stderr.write(\'{"error": "no luck"}\\n\'); sys.exit(7)'
    async with supervised(tmp_path, code) as watched:
        await watched.until_told(7)
    pauses = [line.partition(" again in ")[2].partition(" s;")[0] for line in watched.told]
    assert pauses[:7] == ["0.0", "0.0", "0.0", "0.1", "0.2", "0.3", "0.3"]
    assert watched.told[0].startswith("it: ended with code 7 (no luck), ")
    assert not watched.process.hopeless.is_set()


async def test_what_ran_well_for_a_while_is_started_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PAUSE_S", 0.2)
    monkeypatch.setattr(processes, "_FORGIVEN_S", 0.0)
    async with supervised(tmp_path, "raise SystemExit(1)") as watched:
        await watched.until_told(3)
    assert all("again in 0.2 s" in line for line in watched.told)


async def test_settings_that_cannot_work_are_not_tried_again(tmp_path: Path) -> None:
    code = "import sys; print('kai: no such profile'); sys.exit(2)"
    async with supervised(tmp_path, code) as watched:
        async with asyncio.timeout(PATIENCE_S):
            await watched.process.hopeless.wait()
        assert watched.process.why_hopeless == "it: kai: no such profile"
        assert (watched.process.restarts, watched.process.pid) == (0, None)
    assert watched.told == []


async def test_a_process_that_falls_silent_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setattr(processes, "_CHECK_S", 0.02)
    monkeypatch.setattr(processes, "_MAX_SILENT", 2)
    monkeypatch.setattr(processes, "_PAUSE_S", 0.01)
    monkeypatch.setattr(processes, "_ANSWER_S", 0.3)
    async with supervised(tmp_path, SERVICE, str(port), str(tmp_path / "starts"), port=port) as watched:
        await watched.until_ready()
        first = watched.process.pid
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /hang HTTP/1.0\r\n\r\n")
        await writer.drain()
        await watched.until_told(2)
        writer.close()
        assert watched.told[0] == "it: does not answer, killed"
        assert watched.told[1].startswith("it: ended with code -9 ")
        await watched.until_ready()
        assert watched.process.pid != first
    assert len(watched.starts.read_text().splitlines()) == 2
    assert watched.process.pid is None
