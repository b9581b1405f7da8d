"""The dashboard's pages over HTTP, from a log in Postgres: what they send along, and what they say of bad input."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import pytest
from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kaicore.analysis.ask.queries import Inquiry
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events import payloads
from kaicore.rules.model.reservation import NodeReservation
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service import Health
from yarl import URL

from tests.given.cluster.factory import pod
from tests.given.logs.dashboard_fleet import MARKUP, FleetLog, hostile_fleet, hostile_pages
from tests.given.servers.http_app import served_app
from tests.integration.scheduling import Facts, deciding, placed, scheduling
from tests.integration.test_api_access import make_key


@asynccontextmanager
async def served(log: EventLog, access: HttpAccess | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    health, live = Health("log"), LiveLog(log)
    health.met("log")
    app = make_app(Inquiry(log), health, LongAnswers("", at_once=1, most_s=1), access, live=live)
    async with served_app(app) as url:
        async with aiohttp.ClientSession(url, headers={"Accept": "text/html"}) as session:
            yield session
        live.close()


@pytest.fixture
async def pages(postgres_log: EventLog, cluster_name: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with deciding(postgres_log, cluster_name, nodes=2) as facts:
        await facts.add_pods("never", cpu=1, gpu=5)
        again = {"recurrence": "FREQ=WEEKLY", "nodes": ("n0", "n1")}
        window = NodeReservation("uid", "upgrade", "1", 0, 3_600_000_000, **again)
        await facts.append(("reservation/upgrade", payloads.ReservationObserved(window)))
    async with served(postgres_log) as session:
        yield session


async def said(session: aiohttp.ClientSession, path: str, *, status: int = 200) -> str:
    async with session.get(path) as answer:
        assert (answer.status, answer.content_type) == (status, "text/html"), path
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        return await answer.text()


async def test_every_page_is_answered_now_and_at_every_moment(
    pages: aiohttp.ClientSession, postgres_log: EventLog, cluster_name: str
) -> None:
    here, head = f"/clusters/{cluster_name}", (await postgres_log.head(cluster_name)).position
    assert cluster_name in await said(pages, "/")
    every = (
        "",
        "/map",
        "/queues",
        "/waiting",
        "/cycles",
        "/predictions",
        "/reports",
        "/segments",
        "/jobs",
        "/nodes",
        "/reservations",
        "/charts?span=1d",
        "/search?q=a",
        "/who?queue=default",
    )
    for path in (*every, "/nodes/n0", "/stories/Pod/default/a"):
        assert "Live" in await said(pages, here + path)
    calendar = await said(pages, f"{here}/reservations")
    assert all(part in calendar for part in ("upgrade", "FREQ=WEEKLY", "In the way of upgrade", ">default/a</a>"))
    assert calendar.count('class="held"') in (4, 5), "a window for each of four weeks"
    for position in range(head + 1):
        text = await said(pages, f"{here}?at={position}")
        assert f"position {position}" in text
        assert f'href="{here}/waiting?at={position}"' in text
    assert "default/never" in await said(pages, f"{here}/waiting")
    assert "Nothing waits" in await said(pages, f"{here}/waiting?at=1")
    for cycle in await postgres_log.read(cluster_name, where=Filter(types=("CycleCompleted",))):
        order = await said(pages, f"{here}/cycles/{cycle.position}/order")
    assert "allocate" in order
    assert "default/never" in order


class Markup(HTMLParser):
    """The scripts of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        own = (given.get("src") or "").startswith("/static/")
        if tag in ("img", "iframe", "object", "embed", "base") or (tag == "script" and not own):
            self.runs.append(f"{tag} {given}")
        self.runs += [f"{tag} {name}" for name in given if name.startswith("on")]
        self.runs += [f"{tag} {value}" for value in given.values() if (value or "").lower().startswith("javascript:")]

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_markup_in_stored_objects_is_shown_as_text_on_every_page() -> None:
    fleet = hostile_fleet()
    logs = FleetLog(fleet)
    await logs.store()
    shown = 0
    async with served(logs.log) as session:
        for path in hostile_pages(fleet):
            async with session.get(URL(path, encoded=True)) as answer:
                assert answer.status in (200, 404), path
                page = Markup()
                page.feed(await answer.text())
            assert page.runs == [], path
            shown += MARKUP in page.text
    assert shown > 8


async def test_bad_input_is_answered_by_a_page_that_says_what_is_wrong(
    pages: aiohttp.ClientSession, postgres_log: EventLog, cluster_name: str
) -> None:
    here = f"/clusters/{cluster_name}"
    for path, status, why in (
        ("/clusters/none", 404, "no cluster"),
        (f"{here}?at=99999", 400, "beyond the log"),
        (f"{here}?at=-1", 400, "no moment"),
        (f"{here}?at=yesterday", 400, "no moment"),
        (f"{here}?et=5", 400, "unknown query parameter"),
        (f"{here}/nodes/n00", 404, "did you mean"),
        (f"{here}/stories/Pod/default/nevr", 404, "did you mean"),
        (f"{here}/cycles/1", 404, "no cycle is recorded at position 1"),
        (f"{here}/domain?path=r9", 404, "no nodes in"),
        (f"{here}/charts?span=2y", 400, "is none of"),
        (f"{here}/waiting?number=0", 400, "number"),
        (f"{here}/who?queue=default&set=numma=1", 400, "did you mean"),
        (f"{here}/segments?sizes=x", 400, "x"),
        ("/static/none.css", 404, "no file"),
    ):
        assert why in await said(pages, path, status=status), path
    await postgres_log.close()
    assert "is closed" in await said(pages, here, status=503)


async def test_news_tells_positions_as_the_log_grows(
    pages: aiohttp.ClientSession, postgres_log: EventLog, cluster_name: str
) -> None:
    head = (await postgres_log.head(cluster_name)).position
    async with pages.get(f"/clusters/{cluster_name}/news?after={head}") as answer, asyncio.timeout(60):
        assert answer.content_type == "text/event-stream"
        await Later(postgres_log, cluster_name).add_pods("later", cpu=1)
        lines = [line async for line in _lines(answer, 2)]
    assert lines == [f"id: {head + 1}", f"data: {head + 1}"]


class Later(Facts):
    """Facts with other ids than the first ones."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        super().__init__(log, cluster)
        self._count = 1000


async def _lines(answer: aiohttp.ClientResponse, count: int) -> AsyncIterator[str]:
    """Yield the first lines that are not empty and not about services."""
    while count:
        line = (await answer.content.readline()).decode().strip()
        if line == "event: services":
            assert await answer.content.readline() == b"data: []\n"
        elif line:
            count -= 1
            yield line


async def test_who_is_not_logged_in_is_led_to_the_login_and_back(postgres_log: EventLog, cluster_name: str) -> None:
    await Facts(postgres_log, cluster_name).add_nodes(1)
    async with (
        served(postgres_log, HttpAccess(anonymous="no")) as session,
        session.get(f"/clusters/{cluster_name}?at=1", allow_redirects=False) as answer,
    ):
        assert answer.status == 303
        assert answer.headers["Location"] == f"/login?next=%2Fclusters%2F{cluster_name}%3Fat%3D1"


async def test_a_caller_of_a_namespace_sees_his_pages_and_nothing_of_others(
    postgres_log: EventLog, cluster_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    key = make_key(file, "red", f"{cluster_name}/red", capsys=capsys)
    facts, here = Facts(postgres_log, cluster_name), f"/clusters/{cluster_name}"
    await facts.add_nodes(1)
    async with scheduling(postgres_log, cluster_name):
        for namespace in ("red", "blue"):
            one = pod(f"{namespace}-train", namespace=namespace, uid=f"uid-{namespace}", cpu=2, gpu=1)
            await facts.append((f"pod/{one.uid}", payloads.PodObserved(one)))
        await placed(postgres_log, cluster_name, 2)
    async with served(postgres_log, HttpAccess(anonymous="no", file=AccessFile(file))) as session:
        session.headers["Authorization"] = f"Bearer {key}"
        assert f'href="{here}"' in await said(session, "/")
        for path in (here, f"{here}?at=5", f"{here}/waiting", f"{here}/stories/Pod/red/red-train"):
            text = await said(session, path)
            assert "blue" not in text
            assert f'href="{here}/nodes' not in text
        assert "red-train" in await said(session, here)
        assert "blue-train" not in await said(session, f"{here}/search?q=train", status=200)
        for path in ("nodes/n0", "map", "queues", "cycles", "predictions", "segments", "stories/Node/red/n0"):
            await said(session, f"{here}/{path}", status=403)
        await said(session, f"{here}/stories/Pod/blue/blue-train", status=403)
        wrong = await said(session, f"{here}/stories/Pod/red/blue-trian", status=404)
        assert "blue-train" not in wrong


async def test_files_are_kept_by_browsers_and_packed(postgres_log: EventLog) -> None:
    async with served(postgres_log) as session, session.get("/static/kai.css?v=1") as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert "immutable" in answer.headers["Cache-Control"]
        assert "--accent" in await answer.text()
    async with served(postgres_log) as session:
        assert "No cluster yet" in await said(session, "/")
