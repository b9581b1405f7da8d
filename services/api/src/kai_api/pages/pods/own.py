"""The page of a caller who may see some namespaces of a cluster only: their pods, and no others."""

from dataclasses import dataclass, replace

import msgspec
from kaicore.analysis.ask.answers import GroupRow, PodRow, RowSelection, Why
from kaicore.analysis.ask.listing import list_rows
from kaicore.rules.state.views import ClusterView
from kaicore.runtime.access.scopes import View

from kai_api.answering import redacted
from kai_api.pages.pods.story import Story
from kai_api.pages.pods.waiting import WaitingLine, waiting_line

#: Rows that the page shows of each list.
_ROWS = 100


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """A namespace in figures: pods by how they stand."""

    name: str
    waiting: int
    running: int
    others: int


@dataclass(frozen=True, slots=True)
class OwnPage:
    """A caller's namespaces.

    Attributes:
        groups: the first of them, of `total_groups`; `pods` likewise, those that hold a node.
    """

    namespaces: tuple[NamespaceFigures, ...]
    waiting: WaitingLine
    groups: tuple[GroupRow, ...]
    total_groups: int
    pods: tuple[PodRow, ...]
    total_pods: int


def own_page(state: ClusterView, view: View) -> OwnPage:
    """Return the model of a caller's namespaces."""
    wanted = RowSelection(namespaces=view.namespaces)
    pods = [row for row in list_rows(state, "pods", wanted) if isinstance(row, PodRow)]
    groups = [row for row in list_rows(state, "groups", wanted) if isinstance(row, GroupRow)]
    placed = [row for row in pods if row.node and row.stage != "finished"]
    shown = msgspec.convert(redacted(msgspec.to_builtins(groups[:_ROWS]), view), list[GroupRow])
    return OwnPage(
        namespaces=tuple(_figures(name, pods) for name in sorted(view.namespaces)),
        waiting=visible_line(waiting_line(state, namespaces=view.namespaces), view),
        groups=tuple(shown),
        total_groups=len(groups),
        pods=tuple(placed[:_ROWS]),
        total_pods=len(placed),
    )


def _figures(name: str, pods: list[PodRow]) -> NamespaceFigures:
    own = [row for row in pods if row.namespace == name]
    waiting = sum(row.stage == "waiting" for row in own)
    running = sum(row.status == "Running" for row in own)
    return NamespaceFigures(name, waiting, running, len(own) - waiting - running)


def visible_line(line: WaitingLine, view: View) -> WaitingLine:
    """Return a waiting line without the names of what is in other namespaces."""
    if view.whole:
        return line
    return replace(line, rows=tuple(replace(row, reason=str(redacted(row.reason, view))) for row in line.rows))


def visible_why(why: Why, view: View) -> Why:
    """Return an answer without the names of what is in namespaces that are not seen."""
    return why if view.whole else msgspec.convert(redacted(msgspec.to_builtins(why), view), Why)


def visible_story(story: Story, view: View) -> Story:
    """Return a story likewise; its answer is seen to by `visible_why`."""
    if view.whole:
        return story
    return replace(story, steps=tuple(replace(step, text=str(redacted(step.text, view))) for step in story.steps))
