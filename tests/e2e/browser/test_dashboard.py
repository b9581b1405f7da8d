"""The dashboard in a real browser: pages, time travel, live updates, keyboard, phones, accessibility."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT, AxeResults
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, ViewportSize, expect

from tests.e2e.browser.dashboard import Dashboard, browser, chromium, take_picture, taking_pictures
from tests.given.logs.dashboard_fleet import (
    Fleet,
    SharingFleet,
    device_fleet,
    example_fleet,
    hostile_fleet,
    hostile_pages,
    shadowed_fleet,
)

pytestmark = pytest.mark.skipif(not chromium(), reason="no chromium here; KAI_TEST_CHROMIUM names one")

#: Every page, by what it is called.
PAGES = {
    "fleet": "/",
    "overview": "/clusters/devices",
    "past overview": "/clusters/fleet?at=120",
    "empty cluster": "/clusters/fleet?at=0",
    "map": "/clusters/fleet/map",
    "map of nodes by job": "/clusters/fleet/map?level=kubernetes.io%2Fhostname&colour=job",
    "jobs": "/clusters/fleet/jobs",
    "nodes": "/clusters/fleet/nodes",
    "charts": "/clusters/fleet/charts",
    "services": "/clusters/fleet/services",
    "hub": "/hub",
    "login": "/login",
    "waiting": "/clusters/fleet/waiting",
    "who": "/clusters/fleet/who?queue=vision",
    "reports": "/clusters/fleet/reports",
    "policies compared": "/clusters/fleet/policies",
    "pod": "/clusters/fleet/stories/Pod/default/notebook-0",
    "waiting pod": "/clusters/fleet/stories/Pod/default/too-large",
    "group": "/clusters/fleet/stories/PodGroup/default/llm-70b",
    "node": "/clusters/fleet/nodes/n001",
    "domain": "/clusters/fleet/domain?topology=Topology+dc&path=b0/r01&colour=queue",
    "queues": "/clusters/fleet/queues",
    "cycles": "/clusters/fleet/cycles",
    "cycle": "/clusters/fleet/cycles/235?step=3",
    "order of a cycle": "/clusters/fleet/cycles/235/order",
    "predictions": "/clusters/fleet/predictions",
    "segments": "/clusters/fleet/segments",
    "search": "/clusters/fleet/search?q=llm",
    "error": "/clusters/fleet?at=999999",
    "devices of a node": "/clusters/devices/nodes/d0",
    "claims of a pod": "/clusters/devices/stories/Pod/default/trainer",
    "shadow": "/clusters/shadowed/shadow",
    "GPUs of a node": "/clusters/sharing/nodes/s0",
    "pod with a share": "/clusters/sharing/stories/Pod/default/notebook-0",
}

DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}
#: As narrow as a page must fit.
NARROW: ViewportSize = {"width": 320, "height": 740}
#: Pages that the documentation shows, by the picture's name: `KAI_TEST_PICTURES=docs/assets` takes them.
PICTURES = {
    "past overview": ("overview", "light"),
    "devices of a node": ("node", "dark"),
    "waiting": ("waiting", "light"),
    "cycle": ("cycle", "light"),
    "charts": ("charts", "light"),
    "map of nodes by job": ("map", "light"),
}
#: A dot that pulses for as long as a page is live has it painted sixty times a second: a quarter of these tests' CPU.
STILL: dict[str, Any] = {"viewport": DESK, "reduced_motion": "reduce"}


def as_on_a_desk(page: Page) -> None:
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return example_fleet()


@pytest.fixture(scope="module")
def dashboard(fleet: Fleet) -> Iterator[Dashboard]:
    with Dashboard(fleet, device_fleet(), shadowed_fleet(), SharingFleet()) as served:
        yield served


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def reader(chrome: Browser) -> Page:
    """A page for one address after another: a profile of its own for each would cost as much as three addresses.

    It has axe at each address: to be given its script by each run took as long as the run.
    """
    page = chrome.new_page(**STILL)
    page.add_init_script(AXE_SCRIPT)
    page.set_default_timeout(30_000)
    return page


@contextmanager
def watched(dashboard: Dashboard) -> Iterator[Callable[[Page], None]]:
    """Watches pages: nothing may be reported on their console, or asked of another server."""
    problems, pages = list[str](), list[Page]()

    def heard(message: ConsoleMessage) -> None:
        if message.type != "log":
            problems.append(message.text)

    def failed(error: Error) -> None:
        problems.append(str(error))

    def asked(request: Request) -> None:
        if not request.url.startswith((dashboard.url, "data:")):
            problems.append(f"asked for {request.url}")

    def watch(page: Page) -> None:
        pages.append(page)
        page.on("console", heard)
        page.on("pageerror", failed)
        page.on("request", asked)

    yield watch
    for page in pages:
        page.remove_listener("console", heard)
        page.remove_listener("pageerror", failed)
        page.remove_listener("request", asked)
    assert [one for one in problems if not re.search("status of (4|503)", one)] == []


@pytest.fixture
def opened(chrome: Browser, reader: Page, dashboard: Dashboard) -> Iterator[Callable[..., Page]]:
    """Opens an address: on the page of all tests first, then, and with options, in a fresh profile."""
    contexts, pages = list[BrowserContext](), list[Page]()
    with watched(dashboard) as watch:

        def go(path: str, **options: Any) -> Page:
            if options or pages:
                context = chrome.new_context(**STILL, **options)
                contexts.append(context)
                page = context.new_page()
                page.set_default_timeout(30_000)
            else:
                page = reader
                as_on_a_desk(page)
            pages.append(page)
            watch(page)
            page.goto(dashboard.url + path)
            return page

        yield go
        for context in contexts:
            context.close()


#: A page has the script already.
_AXE = Axe("0")
#: The pages have no frames, and load no style sheet of another server.
_PLAIN: dict[str, Any] = {"resultTypes": ["violations"], "iframes": False, "preload": False}
#: Judges the contrast of text, of each look once: its colour and size, and what is behind it.
_CONTRAST = """([seen, options]) => {
  const looks = new Set(seen), fresh = new Set(), behind = new Map([[null, ""]]);
  function back(one) {
    if (!behind.has(one)) {
      const { backgroundColor, backgroundImage, opacity } = getComputedStyle(one);
      const own = `${backgroundColor} ${backgroundImage} ${opacity}`;
      behind.set(one, back(one.parentElement) + (own === "rgba(0, 0, 0, 0) none 1" ? "" : `|${own}`));
    }
    return behind.get(one);
  }
  for (const one of document.body.querySelectorAll("*")) {
    one.removeAttribute("data-look");
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text && !["INPUT", "SELECT", "TEXTAREA"].includes(one.nodeName)) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(one);
    const look = `${color} ${fontSize} ${fontWeight}${back(one)}`;
    if (looks.has(look) || fresh.has(look)) continue;
    fresh.add(look);
    one.setAttribute("data-look", "");
  }
  if (!fresh.size) return [[], null];
  return axe.run({ include: [["[data-look]"]] }, options).then((results) => [[...fresh], results]);
}"""


@pytest.fixture(scope="module")
def looks() -> dict[str, set[str]]:
    """The looks of text that pages had, in light and in dark: judging all text again took half of these tests' CPU."""
    return {"light": set(), "dark": set()}


def judge_contrast(page: Page, looks: set[str]) -> None:
    fresh, found = page.evaluate(_CONTRAST, [sorted(looks), {**_PLAIN, "runOnly": ["color-contrast"]}])
    looks.update(fresh)
    if found is not None:
        results = AxeResults(found)
        assert results.violations_count == 0, results.generate_report()


def show(page: Page, address: str) -> None:
    """Show an address: in place, by the page's own script, if what it shows is of the same cluster.

    A document for each address would cost twice as much, most of it for scripts that are compiled again.
    """
    now, then = (re.match(r".*/clusters/[^/?]+", one) for one in (page.url, address))
    if now and then and now[0] == then[0] and page.locator("#time").count() and not taking_pictures():
        assert page.evaluate("address => show(address, 'replaceState')", address)
    else:
        page.goto(address)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_fault_of_accessibility_in_light_and_dark_and_fits_on_a_phone(
    reader: Page, dashboard: Dashboard, looks: dict[str, set[str]], name: str
) -> None:
    with watched(dashboard) as watch:
        watch(reader)
        as_on_a_desk(reader)
        show(reader, dashboard.url + PAGES[name])
        # A story gets its last parts behind the first paint.
        expect(reader.locator("[data-more]")).to_have_count(0)
        others = _AXE.run(reader, options={**_PLAIN, "rules": {"color-contrast": {"enabled": False}}})
        assert others.violations_count == 0, others.generate_report()
        judge_contrast(reader, looks["light"])
        reader.emulate_media(color_scheme="dark")
        picture, scheme = PICTURES.get(name, ("", "light"))
        if scheme == "light" and picture:
            take_picture(reader, picture)
        judge_contrast(reader, looks["dark"])
        if scheme == "dark":
            take_picture(reader, picture)
        if name == "past overview":
            reader.set_viewport_size(PHONE)
            take_picture(reader, "phone")
        reader.set_viewport_size(NARROW)
        top, width = reader.evaluate(
            "[document.getElementById('main').getBoundingClientRect().top, document.documentElement.scrollWidth]"
        )
        assert top <= NARROW["height"] / 10
        assert width <= NARROW["width"], "it scrolls sideways"


#: Parts of addresses, one for each way in which pages show what is stored.
_SHOWING = ("/map?colour", "/charts", "/jobs", "/who", "/nodes/%3C", "/stories/Pod/", "/cycles/46", "/search")


def test_markup_in_stored_objects_runs_on_no_page(reader: Page) -> None:
    """The page's policy would stop it, too: so whatever the policy has to stop is a fault.

    Every page has it as text: `tests/integration/test_dashboard_pages.py`.
    """
    fleet = hostile_fleet()
    with Dashboard(fleet) as served, watched(served) as watch:
        watch(reader)
        as_on_a_desk(reader)
        for part in _SHOWING:
            path = next(path for path in hostile_pages(fleet) if part in path)
            reader.goto(served.url + path)
            assert reader.title() != "1", path
            assert reader.locator("img[src=x], [onerror], script:not([src])").count() == 0, path
        reader.goto("about:blank")


def test_the_slider_goes_to_the_past_and_back_to_live(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/fleet")
    time = page.get_by_label("Moment in the log")
    expect(time).to_contain_text("Live")
    page.get_by_role("slider", name="Position in the log").focus()
    page.keyboard.press("Home")
    expect(time).to_contain_text("position 0 of")
    expect(page.get_by_text("No nodes yet.")).to_be_visible()
    assert "at=0" in page.url
    assert page.evaluate("document.activeElement.id") == "slider"
    page.get_by_role("link", name="After the next cycle").click()
    expect(time).not_to_contain_text("position 0 of")
    expect(page.get_by_role("link", name="default/1", exact=True)).to_be_visible()
    page.go_back()
    expect(time).to_contain_text("position 0 of")
    page.get_by_role("link", name="Back to live").click()
    expect(time).to_contain_text("Live")
    assert "at=" not in page.url


def test_a_permalink_shows_the_same_in_another_browser(opened: Callable[..., Page], fleet: Fleet) -> None:
    page = opened("/clusters/fleet/waiting")
    page.get_by_role("link", name="Permalink").click()
    expect(page.get_by_label("Moment in the log")).to_contain_text("Past")
    other = opened(page.url.partition("://")[2].partition("/")[2].join(("/", "")))
    assert other.locator("main").inner_text() == page.locator("main").inner_text()
    assert f"at={fleet.state.position}" in other.url


def test_a_live_page_follows_the_log_and_keeps_the_focus(
    opened: Callable[..., Page], fleet: Fleet, dashboard: Dashboard
) -> None:
    page = opened("/clusters/fleet/waiting")
    past = opened("/clusters/fleet/waiting?at=300")
    link = page.get_by_role("link", name="default/pretrain")
    link.focus()
    fleet.later(1)
    fleet.single("newcomer", "vision", cpu=1, memory=1, gpu=9)
    dashboard.store()
    expect(page.get_by_text("default/newcomer")).to_be_visible()
    expect(link).to_be_focused()
    assert past.get_by_text("default/newcomer").count() == 0


def test_everything_is_reached_with_the_keyboard(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/fleet")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    expect(page.locator("main a, main [tabindex='0']").first).to_be_focused()
    page.get_by_label("Position or time").focus()
    page.keyboard.type("100")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Moment in the log")).to_contain_text("position 100 of")


def test_a_cycle_is_replayed_step_by_step(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/fleet/cycles")
    page.get_by_role("link", name="default/6", exact=True).click()
    expect(page.get_by_role("heading", name="What it was decided on")).to_be_visible()
    page.get_by_label("Steps").get_by_role("link", name="Next").click()
    expect(page.get_by_role("heading", name="Place default/sweep-0", exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name="after this step")).to_be_visible()
    page.get_by_role("link", name="End", exact=True).click()
    expect(page.get_by_role("heading", name="What is left waiting")).to_be_visible()
    page.get_by_role("link", name="Back to live").click()
    expect(page.get_by_label("Moment in the log")).to_contain_text("Live")


def test_every_page_names_problems_and_each_leads_to_what_has_it(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/devices/nodes")
    page.get_by_role("link", name="2 problems").click()
    page.get_by_role("link", name="relay: no answer; refused").click()
    expect(page.get_by_role("row", name="binder ready")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="1 group starves").click()
    expect(page.get_by_role("heading", name="Jobs 1")).to_be_visible()
    assert "state=starving" in page.url
    page.get_by_role("link", name="default/too-many").click()
    logs = page.get_by_role("link", name="logs")
    expect(logs).to_have_attribute("href", "https://logs.example/default/too-many")


def test_a_page_that_hears_nothing_more_says_how_old_its_data_is(opened: Callable[..., Page]) -> None:
    page = opened("/login")
    page.route("**/news*", lambda route: route.fulfill(status=404))
    page.goto(page.url.replace("/login", "/clusters/fleet/waiting"))
    expect(page.locator("#lost")).to_have_text(re.compile(r"^Disconnected, data \d s old$"))
    page.unroute("**/news*")
    page.reload()
    expect(page.locator("#lost")).to_be_hidden()


def test_a_live_page_keeps_what_it_shows_while_nothing_newer_can_be_had(
    opened: Callable[..., Page], fleet: Fleet, dashboard: Dashboard
) -> None:
    page = opened("/clusters/fleet/waiting")
    page.route("**/waiting", lambda route: route.fulfill(status=503, content_type="text/html", body="<main id=main>"))
    fleet.later(1)
    fleet.single("belated", "vision", cpu=1, memory=1, gpu=9)
    dashboard.store()
    expect(page.locator("#lost")).to_be_visible()
    expect(page.get_by_role("link", name="default/pretrain")).to_be_visible()
    expect(page.get_by_label("Moment in the log")).to_contain_text("Live")
    page.unroute("**/waiting")
    expect(page.get_by_text("default/belated")).to_be_visible()
    expect(page.locator("#lost")).to_be_hidden()


def test_a_pointer_on_a_chart_moves_the_slider(opened: Callable[..., Page], fleet: Fleet) -> None:
    page = opened("/clusters/fleet/charts?span=6h")
    slider, chart = page.get_by_role("slider", name="Position in the log"), page.locator("svg.chart").first
    last = slider.input_value()
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] * 0.7, "y": 20})
    expect(page.get_by_label("Moment in the log")).to_contain_text("Past")
    assert 0 < int(slider.input_value()) < int(last)
    assert f"until={fleet.state.position}" in page.url
    expect(page.locator(".moment-mark").first).to_have_attribute("x1", re.compile(r"^6\d\d"))


def test_the_theme_is_chosen_and_kept(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/fleet", color_scheme="light")
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 16, 20)"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.get_by_role("button", name="Light theme")).to_be_visible()


def test_without_scripts_pages_and_travel_work(opened: Callable[..., Page]) -> None:
    page = opened("/clusters/fleet", java_script_enabled=False)
    page.get_by_role("textbox", name="Position or time").fill("100")
    page.get_by_role("button", name="Go").click()
    assert "position 100" in page.locator("#time").inner_text()
    page.get_by_role("link", name="Map", exact=True).first.click()
    assert "at=100" in page.url
