"""The report of a what-if as one file."""

import asyncio
import html
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import HistoryComparison, compare_history
from kaicore.analysis.trial.history.page import axis, page
from kaicore.analysis.trial.shadow import DayReport, Predictions, QueueReport, RejectedPod, Rejections, ShadowReport
from kaicore.analysis.trial.shadow import page as shadow_page

from tests.given.logs.dashboard_fleet import MARKUP
from tests.given.logs.recorded_history import log_of, saturated

#: Elements that have no end tag.
_EMPTY = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Checks that elements nest, and keeps what refers to what."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.labels: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _EMPTY:
            self.open.append(tag)
        self.ids |= {value for name, value in attrs if name == "id" and value}
        self.labels |= {value for name, value in attrs if name == "aria-labelledby" and value}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def comparison() -> HistoryComparison:
    async def make() -> HistoryComparison:
        log = await log_of(saturated(6, seconds=3).cluster.events)
        patch = PatchText(name="x", text="name: '<b>blind</b> & deaf'\nsettings: {numa: false}")
        question = HistoryQuestion(patches=(patch, PatchText(name="more", text="nodes: {add: [{like: gpu-0}]}")))
        return await compare_history(log, "test", question, OfflineKubelets)

    return asyncio.run(make())


@pytest.fixture(scope="module")
def report(comparison: HistoryComparison) -> str:
    return page(comparison)


def marked(value: Any) -> Any:
    """The same with markup in every text that is free."""
    if type(value) is str:
        return f"{MARKUP}{value}"
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: marked(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, dict):
        return {marked(key): marked(one) for key, one in value.items()}
    return type(value)(map(marked, value)) if isinstance(value, list | tuple) else value


def test_report_is_whole_html_and_needs_nothing_else(report: str) -> None:
    outline = Outline()
    outline.feed(report)
    assert outline.open == []
    assert not {"script", "link", "img", "iframe"} & set(outline.tags)
    assert not re.search(r"url\(|@import|https?://|src=", report)
    assert outline.tags.count("figure") == 5
    assert outline.labels <= outline.ids
    assert report.count('role="img"') == 5


def test_report_says_what_was_changed_and_names_are_only_text(report: str) -> None:
    assert "<b>blind" not in report
    assert "&lt;b&gt;blind&lt;/b&gt; &amp; deaf" in report
    assert "like: gpu-0" in report


def test_markup_in_what_a_report_is_about_is_shown_as_text(comparison: HistoryComparison) -> None:
    rejected = RejectedPod(
        namespace="n", name="p", node="gpu-0", reason="r", predicted="no", choice="another node", chosen="gpu-1"
    )
    shadow = ShadowReport(
        cluster="c",
        scheduler="s",
        from_position=1,
        to_position=9,
        begin="b",
        end="e",
        pods=1,
        choices={},
        rejections=Rejections(observed=1, avoided=1, waits=0, not_foreseen=0, not_decided=0, by_reason={"r": 1}),
        predictions=Predictions(rejected_rightly=1, admitted_rightly=0, false_alarms=0, missed=0),
        zones=None,
        chosen_zones=None,
        would_start=0,
        queues=(QueueReport(queue="q", pods=1, rejections=1, avoided=1, would_wait=0),),
        days=(DayReport(day="d", pods=1, rejections=1, avoided=1, would_wait=0),),
        rejected=(rejected,),
        trajectory=None,
        notes=("n",),
    )
    hostile = msgspec.structs.replace(
        comparison, cluster=MARKUP, notes=(MARKUP,), alternatives=tuple(map(marked, comparison.alternatives))
    )
    for made in (page(hostile), shadow_page(marked(shadow), hostile)):
        outline = Outline()
        outline.feed(made)
        assert not {"script", "img"} & set(outline.tags)
        assert html.escape(MARKUP, quote=False) in made.replace("&#34;", '"').replace("&#39;", "'")


def test_axis_ends_at_a_round_figure_beyond_the_largest_value() -> None:
    for most in (0, 0.003, 0.9, 1, 7, 48, 99.9, 12_345):
        one = axis(most)
        assert one.most >= most
        assert one.ticks[-1][0] == one.most
        assert 2 <= len(one.ticks) <= 7
