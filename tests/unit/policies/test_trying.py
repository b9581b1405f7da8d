"""`kai policy try`: a recorded window with a policy and without it, by the rerun of what-ifs.

Its report is read as people read it: the plots by the ticks of their axes, and the table by its texts.
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import pytest
from kai_cli.sources.policies import policy_of
from kai_cli.trials.policy_trials import trial_text, with_policy
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import HistoryQuestion
from kaicore.analysis.trial.history.comparison import Fares, HistoryComparison, compare_history
from kaicore.analysis.trial.history.page import page
from kaicore.rules.engine.policies.book import PolicyBook, PolicyMismatch
from kaicore.runtime.policies.loading import LoadedPolicy

from tests.given.doubles.virtual_storm import VirtualStorm
from tests.given.logs.exported import write_file
from tests.given.logs.recorded_history import log_of, saturated
from tests.given.processes.kai_commands import kai
from tests.given.recorded import read_log, recorded_logs

#: Refuses every node.
REFUSES = """
import numpy as np
from kaicore.policy import Policy

class Refuses(Policy):
    name, version = "refuses", "1"

    def filter(self, nodes, work, facts):
        return np.zeros(len(nodes), np.bool_)
"""
RAISES = REFUSES.replace('"refuses"', '"raises"').replace(
    "return np.zeros(len(nodes), np.bool_)", 'raise KeyError("x")'
)
#: Refuses two nodes of three.
THIRDS = REFUSES.replace('"refuses"', '"thirds"').replace(
    "np.zeros(len(nodes), np.bool_)", "np.arange(len(nodes)) % 3 == 0"
)


def loaded(folder: Path, text: str, *queues: str) -> LoadedPolicy:
    (folder / "tried.py").write_text(text)
    return policy_of(str(folder / "tried.py"), queues=queues)


def tried(storm: VirtualStorm, *policies: LoadedPolicy, known: bool = True) -> HistoryComparison:
    book = PolicyBook()
    for policy in policies if known else ():
        book.add(policy.kind, policy.setting.digest)

    async def ask() -> HistoryComparison:
        question = HistoryQuestion(patches=tuple(map(with_policy, policies)))
        log = await log_of(storm.cluster.events)
        return await compare_history(log, "test", question, OfflineKubelets, policies=book)

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def storm() -> VirtualStorm:
    return saturated(12)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> list[LoadedPolicy]:
    """One that refuses every node, the same for a queue without work, and one that raises."""
    folder = tmp_path_factory.mktemp("policies")
    elsewhere = REFUSES.replace('"refuses"', '"elsewhere"')
    return [loaded(folder, REFUSES), loaded(folder, elsewhere, "elsewhere"), loaded(folder, RAISES)]


@pytest.fixture(scope="module")
def answer(storm: VirtualStorm, policies: list[LoadedPolicy]) -> HistoryComparison:
    return tried(storm, *policies)


def test_policy_that_refuses_every_node_loses_against_the_window_without_it(
    answer: HistoryComparison, policies: list[LoadedPolicy]
) -> None:
    policy, alternative = policies[0], answer.alternatives[0]
    assert answer.baseline.started > 8
    assert alternative.result.started == 0
    assert [one.fares for one in alternative.queues] == [Fares.LOSES]
    text = trial_text(answer, policy)
    assert text.startswith(f"policy refuses 1 (filter; digest {policy.setting.digest[:12]}), for all queues\n")
    for part in ("the baseline is as recorded for", "with refuses", "waits by queue", "loses   namespace/default"):
        assert part in text
    assert policy.setting.digest in page(answer)


def test_policy_of_another_queue_changes_nothing(answer: HistoryComparison) -> None:
    assert answer.alternatives[1].result.started == answer.baseline.started


def test_policy_that_raises_is_left_out_of_every_cycle_and_a_note_says_so(answer: HistoryComparison) -> None:
    assert answer.alternatives[2].result.started == answer.baseline.started
    assert any("with raises: policy raises was left out of" in note and "Raised" in note for note in answer.notes)


def test_policy_without_code_is_refused(storm: VirtualStorm, policies: list[LoadedPolicy]) -> None:
    with pytest.raises(PolicyMismatch, match="refuses"):
        tried(storm, policies[0], known=False)


def on_ticks(ticks: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """What a place on an axis stands for, by the places and values of its ticks."""
    (first, least), *_, (last, most) = ticks
    return lambda at: least + (at - first) * (most - least) / (last - first)


def amount(text: str) -> tuple[float, float]:
    """What a text stands for, in its smallest unit, and how exact it is."""
    number, unit = re.fullmatch(r"([\d.]+) ?(.*)", text).groups()  # type: ignore[union-attr]
    scale = {"%": 0.01, "min": 60.0, "h": 3600.0}.get(unit, 1.0)
    return float(number) * scale, scale * 10.0 ** -len(number.partition(".")[2]) / 2


class Plot(NamedTuple):
    """A plot of the report.

    Attributes:
        svg: its picture.
        across: the places and texts of the ticks of the axis below it.
        up: what a height stands for.
        exact: to what the picture's figures are exact, upwards.
    """

    svg: ET.Element
    across: list[tuple[float, str]]
    up: Callable[[float], float]
    exact: float

    def line(self, run: int) -> list[tuple[float, float]]:
        """The points of the line of a run: their places on the axis below, and what their heights stand for."""
        (path,) = self.svg.iterfind(f"path[@class='run run{run}']")
        points = re.findall(r"[MH]([\d.]+)[ V]([\d.]+)", path.attrib["d"])
        return [(float(across), self.up(float(height))) for across, height in points]


def plots_of(report: str) -> dict[str, Plot]:
    """The plots by the first words of their captions."""
    plots = {}
    for caption, picture in re.findall(r"<figcaption>(.*?)</figcaption>(<svg.*?</svg>)", report, re.DOTALL):
        svg = ET.fromstring(picture)
        ticks = [(one.attrib, str(one.text)) for one in svg.iterfind("text[@class='tick']")]
        sides = [(float(at["y"]) - 3.5, amount(text)[0]) for at, text in ticks if at["x"] == "42"]
        up = on_ticks(sides or [(0.0, 0.0), (1.0, 1.0)])
        across = [(float(at["x"]), text) for at, text in ticks if at["x"] != "42"]
        plots[caption.partition(",")[0]] = Plot(svg, across, up, abs(up(0.1) - up(0.0)))
    return plots


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The answer of the command about a part of the log of a demonstration, and its report."""
    folder = tmp_path_factory.mktemp("tried")
    (folder / "thirds.py").write_text(THIRDS)
    file = write_file(folder / "demo.log.gz", read_log(recorded_logs()[0]))
    window = ("--from", "1", "--to", "300")
    asked = ("policy", "try", "thirds.py", *window, "--html", "report.html", "-o", "json", "--file", str(file))
    done = kai(*asked, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), (folder / "report.html").read_text()


def runs_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [answer["recorded"], answer["baseline"], *(one["result"] for one in answer["alternatives"])]


def test_report_of_a_recorded_log_plots_the_figures_of_the_answer_over_the_window(
    reported: tuple[dict[str, Any], str],
) -> None:
    answer, report = reported
    plots, runs = plots_of(report), runs_of(answer)
    assert [one["name"] for one in runs] == ["recorded", "baseline", "with thirds"]
    begin, end = (datetime.fromisoformat(answer[name]) for name in ("begin", "end"))
    for title, name in {"GPUs held": "held", "Pods waiting": "waiting", "Stranded GPUs": "stranded"}.items():
        plot = plots[title]
        at = on_ticks([(place, float(text)) for place, text in plot.across])
        for number, run in enumerate(runs):
            places, values = zip(*plot.line(number), strict=True)
            assert values == pytest.approx([*run["series"][name], run["series"][name][-1]], abs=plot.exact), title
            assert at(places[0]) == pytest.approx(0, abs=0.1)
            unit = {"seconds": 1, "minutes": 60}[re.findall(r'axis">(\w+) since', report)[0]]
            assert at(places[-1]) * unit == pytest.approx((end - begin).total_seconds(), rel=0.01)
        assert plot.line(1) != plot.line(2), title
    for number, run in enumerate(runs):
        shares = [share for _, share in plots["Share of the pods that waited no longer"].line(number)]
        assert shares == pytest.approx([0.0, *(share for _, share in run["waitsSeen"])], abs=0.001)


def test_report_of_a_recorded_log_has_the_waits_of_the_answer_in_bars(reported: tuple[dict[str, Any], str]) -> None:
    answer, report = reported
    svg, runs = plots_of(report)["Wait that nine pods in ten did not exceed"].svg, runs_of(answer)
    queues = sorted(one["queue"] for one in answer["baseline"]["queues"])
    waits = [{one["queue"]: one["waits"]["p90"] for one in run["queues"]} for run in runs]
    # A run has no wait of a queue of which it starts nothing.
    expected = [(number, of[queue]) for queue in queues for number, of in enumerate(waits) if queue in of]
    bars = [int(one.attrib["class"].removeprefix("bar bar")) for one in svg.iterfind("rect")]
    texts = [amount(str(one.text)) for one in svg.iterfind("text[@class='value']")]
    assert len(expected) >= 3
    for run, text, (number, wait) in zip(bars, texts, expected, strict=True):
        assert (run, text[0]) == (number, pytest.approx(wait, abs=text[1] * 1.001))
    widths = [float(one.attrib["width"]) for one in svg.iterfind("rect")]
    longest = max(wait for _, wait in expected)
    assert widths == pytest.approx([max(wait / longest * max(widths), 1) for _, wait in expected], abs=0.1)


def test_report_of_a_recorded_log_has_the_figures_of_the_answer_in_its_table(
    reported: tuple[dict[str, Any], str],
) -> None:
    answer, report = reported
    table = report.partition("<h2>Figures</h2>")[2].partition("</table>")[0]
    rows = {
        name: re.findall(r"<td[^>]*>([^<]+)", cells)
        for name, cells in re.findall(r'<th scope="row">([^<]+)<small>.*?</small></th>(.*?)</tr>', table)
    }
    fields = {
        "pods that waited": "pods",
        "started": "started",
        "wait p50": ("waits", "p50"),
        "wait p99": ("waits", "p99"),
        "finished": "finished",
        "evictions": "preemptions",
        "GPU hours lost": "lostGpuHours",
        "GPU allocation rate (GAR), mean": "allocationRate",
        "fragmented nodes (GFR)": "fragmentation",
        "stranded GPU hours": "strandedGpuHours",
    }
    for name, field in fields.items():
        for (shown, exact), run in zip(map(amount, rows[name]), runs_of(answer), strict=True):
            value = run[field] if isinstance(field, str) else run[field[0]][field[1]]
            assert shown == pytest.approx(value, abs=exact * 1.001), name
    (alternative,) = answer["alternatives"]
    (fares,) = {tuple(re.findall(r'class="first (\w+)"', report))}
    assert fares == tuple(one["fares"] for one in alternative["queues"])
