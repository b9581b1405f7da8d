"""The dashboard at 10,000 nodes: bytes and milliseconds of pages, first paint and slider latency in a real Chromium.

`python -m tests.measured.bench dashboard` runs it alone. Without a Chromium (`KAI_TEST_CHROMIUM` names one) only the
pages are measured.
"""

import time
import urllib.request
from collections.abc import Iterator

from playwright.sync_api import Page

from tests.e2e.browser.dashboard import Dashboard, browser, chromium
from tests.given.logs.dashboard_fleet import Fleet
from tests.measured.bench.figures import Figure, figure

RUNS = 5
NODES, RUNNING, WAITING = 10_000, 300, 200
_PAGES = {
    "overview": "/clusters/large",
    "map": "/clusters/large/map",
    "waiting": "/clusters/large/waiting",
    "queues": "/clusters/large/queues",
    "domain": "/clusters/large/domain?topology=Topology+dc&path=b0/r03",
    "node": "/clusters/large/nodes/n100",
    "segments": "/clusters/large/segments",
    "map by job": "/clusters/large/map?colour=job",
    "jobs": "/clusters/large/jobs",
    "pods": "/clusters/large/pods?order=most+GPUs",
    "nodes": "/clusters/large/nodes?state=idle",
    "charts": "/clusters/large/charts",
    "group": "/clusters/large/stories/PodGroup/default/wait-7",
    "waiting pod": "/clusters/large/stories/Pod/default/wait-7-0",
    "running pod": "/clusters/large/stories/Pod/default/run-7-0",
    "who": "/clusters/large/who?queue=vision",
    "cycles": "/clusters/large/cycles",
    "predictions": "/clusters/large/predictions",
    "search": "/clusters/large/search?q=wait-7",
    "policies": "/clusters/large/policies",
}
#: Resolves with when the page was painted first.
_PAINTED = """() => new Promise((done) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
#: Resolves when the page shows another position than it did.
_SLIDE = """(position) => new Promise((done) => {
  const began = performance.now(), time = document.getElementById("time"), slider = document.getElementById("slider");
  new MutationObserver((_, observer) => {
    if (time.dataset.position !== String(position)) return;
    observer.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  }).observe(time, { attributes: true });
  slider.value = position;
  slider.dispatchEvent(new Event("input"));
})"""


def large_fleet() -> Fleet:
    """10,000 nodes in racks of 32, 300 gangs of 16 GPUs that run, 200 that wait."""
    fleet = Fleet("large", nodes=NODES, per_rack=32, per_block=1024)
    for number in range(RUNNING):
        fleet.job(f"run-{number}", 4, ("language", "vision", "production")[number % 3], cpu=16, memory=128, gpu=4)
    fleet.turn()
    for number in range(WAITING):
        fleet.job(f"wait-{number}", 4, "vision", cpu=16, memory=128, gpu=9 + number % 4)
    fleet.turn()
    return fleet


def figures() -> Iterator[Figure]:
    fleet = large_fleet()
    with Dashboard(fleet) as dashboard:
        for name, path in _PAGES.items():
            answered(dashboard.url + path)
            asked = [answered(dashboard.url + path) for _ in range(RUNS)]
            yield figure(f"dashboard, {NODES} nodes, {name}: until answered", [one for one, _ in asked], "ms")
            yield figure(f"dashboard, {NODES} nodes, {name}: HTML", [asked[0][1] / 1000], "kB")
        if not chromium():
            return
        with browser() as started:
            page = started.new_page(viewport={"width": 1280, "height": 800})
            for name, path in _PAGES.items():
                painted = [first_paint(page, dashboard.url + path) for _ in range(RUNS)]
                yield figure(f"dashboard, {NODES} nodes, {name}: first paint", painted, "ms")
            page.goto(dashboard.url + _PAGES["overview"])
            last = fleet.state.position
            page.evaluate(_SLIDE, last - 1000)
            for name, places in (("back", (800, 850, 900, 950, 990)), ("on", (600, 550, 500, 450, 400))):
                slides = [page.evaluate(_SLIDE, last - place) for place in places]
                yield figure(f"dashboard, {NODES} nodes, overview: slider {name}, until shown", slides, "ms")


def answered(url: str) -> tuple[float, int]:
    """Ask for a page; return the milliseconds until it was answered, and its bytes."""
    began = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": "text/html"})) as answer:
        size = len(answer.read())
    return (time.perf_counter() - began) * 1000, size


def first_paint(page: Page, url: str) -> float:
    """Open a page in a browser; return the milliseconds until its first paint."""
    # What comes behind a paint would delay the next page.
    page.goto(url, wait_until="networkidle")
    painted: float = page.evaluate(_PAINTED)
    return painted
