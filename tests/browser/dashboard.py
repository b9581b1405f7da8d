"""The dashboard served from a log in memory, and a headless Chromium that looks at it."""

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kaicore.analysis.ask.queries import Inquiry
from kaicore.runtime.service import Health
from kaicore.runtime.service.http_server import HttpServer
from playwright.sync_api import Browser, sync_playwright

from tests.dashboard_fleet import Fleet, FleetLog

#: What a Chromium does of its own accord, and what a container has not, is switched off.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """The path of a Chromium; empty where there is none."""
    return os.environ.get("KAI_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


class Dashboard:
    """The API over some fleets' logs, in a thread of its own."""

    def __init__(self, *fleets: Fleet) -> None:
        self._logs = FleetLog(*fleets)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    @property
    def url(self) -> str:
        """The address where it answers."""
        return f"http://{self._address.result(30)}"

    def store(self) -> None:
        """Let the log have what the fleets have recorded since."""
        asyncio.run_coroutine_threadsafe(self._logs.store(), self._loop).result(30)

    async def _serve(self) -> None:
        await self._logs.store()
        health = Health("log")
        health.met("log")
        live = LiveLog(self._logs.log)
        app = make_app(Inquiry(self._logs.log), health, LongAnswers("", at_once=1, most_s=1), live=live)
        server = HttpServer(app, host="127.0.0.1", port=0)
        self._address.set_result(server.address)
        serving = asyncio.create_task(server.run(self._stopping))
        await self._stopping.wait()
        live.close()
        await serving

    def __enter__(self) -> "Dashboard":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)
        self._loop.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium with a profile of its own."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(_FLAGS))
        try:
            yield started
        finally:
            started.close()
