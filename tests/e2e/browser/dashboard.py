"""The dashboard served from a log in memory, and a headless Chromium that looks at it."""

import asyncio
import base64
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kai_api.board import Board, ServiceLine
from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kaicore.analysis.ask.projections.store import OCCUPANCY, Generation, ViewStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.runtime.service import Health
from kaicore.runtime.service.http_server import HttpServer
from playwright.sync_api import Browser, Page, sync_playwright

from tests.given.logs.dashboard_fleet import Fleet, FleetLog
from tests.given.logs.projected import projected

#: Encodes a picture as WebP, which Chromium can and Python's standard library cannot.
_TO_WEBP = """async (png) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").drawImage(image, 0, 0);
  const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: "image/webp", quality: 0.82 })).arrayBuffer());
  return btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ""));
}"""

#: What a Chromium does of its own accord, and what a container has not, is switched off.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """The path of a Chromium; empty where there is none."""
    return os.environ.get("KAI_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


class FleetRows(ViewStore):
    """The read models of fleets as they began: how full they were, whatever span is asked for."""

    def __init__(self, *fleets: Fleet) -> None:
        self._rows = {fleet.cluster: list(projected(fleet.events).occupancy.values()) for fleet in fleets}

    async def live(self, cluster: str) -> Generation | None:
        return Generation(1, 4, 1, 1, live=True) if self._rows.get(cluster) else None

    async def rows(self, table: Any, cluster: str, generation: int, **_: Any) -> list[Any]:
        return self._rows.get(cluster, []) if table is OCCUPANCY else []


class Dashboard:
    """The API over some fleets' logs, in a thread of its own.

    Attributes:
        board: what its pages show besides the log.
    """

    def __init__(self, *fleets: Fleet) -> None:
        self._logs, self._views = FleetLog(*fleets), FleetRows(*fleets)
        self.board = Board(links=(("logs", "https://logs.example/{namespace}/{name}"),))
        self.board.services.lines = (ServiceLine("binder", "ready"), ServiceLine("relay", "no answer", "refused"))
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._address: Future[str] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    @property
    def url(self) -> str:
        return f"http://{self._address.result(30)}"

    def store(self) -> None:
        """Let the log have what the fleets have recorded since."""
        asyncio.run_coroutine_threadsafe(self._logs.store(), self._loop).result(30)

    async def _serve(self) -> None:
        await self._logs.store()
        health = Health("log")
        health.met("log")
        live = LiveLog(self._logs.log)
        inquiry, answers = Inquiry(self._logs.log), LongAnswers("", at_once=1, most_s=1)
        app = make_app(inquiry, health, answers, live=live, views=self._views, board=self.board)
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


def taking_pictures() -> str:
    """The folder that `KAI_TEST_PICTURES` names for pictures of the documentation; empty for none."""
    return os.environ.get("KAI_TEST_PICTURES", "")


def take_picture(page: Page, name: str) -> None:
    """Write what a page shows into the folder of pictures, if there is one."""
    if folder := taking_pictures():
        encoder = page.context.browser.new_page()  # type: ignore[union-attr]
        encoded = encoder.evaluate(_TO_WEBP, base64.b64encode(page.screenshot()).decode())
        (Path(folder) / f"dashboard-{name}.webp").write_bytes(base64.b64decode(encoded))
        encoder.close()


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium with a profile of its own."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(_FLAGS))
        try:
            yield started
        finally:
            started.close()
