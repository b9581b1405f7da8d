"""Take the pictures of the dashboard that the documentation shows: `python scripts/screenshots.py`.

It runs the demonstration in a directory of its own, waits until its work is done, and looks back at the moment at which
most GPUs were used: no picture depends on when it was taken. Needs a Chromium (`KAI_TEST_CHROMIUM` names one).
"""

import base64
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "assets"
_SIZE = {"width": 1280, "height": 800}
_PHONE = {"width": 360, "height": 740}
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
#: Seconds without a line of progress after which the demonstration's work is done, and that it has for it.
_QUIET_S, _PATIENCE_S = 10.0, 240.0
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


@contextmanager
def demonstration() -> Iterator[str]:
    """Run the demonstration until its work is done; yield an address that logs in."""
    kai = Path(sys.executable).parent / "kai"
    with tempfile.TemporaryDirectory() as directory:
        command = [str(kai), "demo", "--for", "0s", "--data-dir", directory]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            _wait(running)
            asked = [str(kai), "dashboard", "--data-dir", directory]
            login = subprocess.run(asked, capture_output=True, text=True, check=True)
            yield login.stdout.split()[-1]
        finally:
            running.terminate()
            running.wait(60)


def _wait(running: "subprocess.Popen[bytes]") -> None:
    """Return when the demonstration has printed progress, and then nothing new for a while."""
    assert running.stdout is not None
    printed, began = b"", time.monotonic()
    while time.monotonic() - began < _PATIENCE_S:
        ready, _, _ = select.select([running.stdout], [], [], _QUIET_S)
        if not ready and b" events" in printed:
            return
        printed += os.read(running.stdout.fileno(), 65536) if ready else b""
        if running.poll() is not None:
            break
    raise SystemExit(f"the demonstration did not get far: {printed.decode()}")


class Api:
    """Answers of the API, to a browser that is logged in."""

    def __init__(self, browser: Browser, login: str) -> None:
        self.url = login.partition("/login")[0]
        context = browser.new_context()
        page = context.new_page()
        page.goto(login)
        page.wait_for_url(f"{self.url}/")
        self.session = context.storage_state()
        self._request = context.request

    def items(self, path: str) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self._request.get(self.url + path).json()["items"]
        return answer

    def largest(self) -> dict[str, Any]:
        """The cycle that placed most pods and left some waiting."""
        return max(self.items("/v1/clusters/demo/cycles"), key=lambda one: (one["placed"] < one["pods"], one["placed"]))

    def busiest(self) -> dict[str, Any]:
        """The cycle after which most GPUs were used."""
        cycles = (one for one in self.items("/v1/clusters/demo/cycles") if one["placed"])
        return max(cycles, key=lambda one: (self._used(one["position"]), one["placed"]))

    def _used(self, position: int) -> int:
        nodes = self.items(f"/v1/clusters/demo/nodes?at={position}")
        held = (item for node in nodes for item in node["resources"] if item["resource"].endswith("/gpu"))
        return sum(int(item["used"]) for item in held)


def take(browser: Browser, api: Api, paths: dict[str, tuple[str, str, dict[str, int]]]) -> None:
    """Take pictures: by name the path, `light` or `dark`, and the window's size."""
    encoder = browser.new_page()
    for name, (path, scheme, size) in paths.items():
        context = browser.new_context(viewport=size, color_scheme=scheme, storage_state=api.session)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(api.url + path)
        page.wait_for_timeout(300)
        encoded = encoder.evaluate(_TO_WEBP, base64.b64encode(page.screenshot()).decode())
        (PICTURES / f"dashboard-{name}.webp").write_bytes(base64.b64decode(encoded))
        context.close()


def main() -> None:
    chromium = os.environ.get("KAI_TEST_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium here; KAI_TEST_CHROMIUM names one")
    with demonstration() as login, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        api = Api(browser, login)
        cycle, largest = api.busiest(), api.largest()
        at = cycle["position"] + 2 * cycle["placed"]
        nodes = api.items(f"/v1/clusters/demo/nodes?at={at}")
        node = max(nodes, key=lambda one: (bool(one["zones"]), one["pods"]))["name"]
        here = "/clusters/demo"
        paths = {
            "overview": (f"{here}?at={at}", "light", _SIZE),
            "node": (f"{here}/nodes/{node}?at={at}", "dark", _SIZE),
            "waiting": (f"{here}/waiting?at={largest['position'] + 2 * largest['placed']}", "light", _SIZE),
            "cycle": (f"{here}/cycles/{largest['position']}?step=2", "light", _SIZE),
            "phone": (f"{here}?at={at}", "dark", _PHONE),
        }
        take(browser, api, paths)
        browser.close()


if __name__ == "__main__":
    main()
