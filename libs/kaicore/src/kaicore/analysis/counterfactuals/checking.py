"""Search for changes that make a pod start: each candidate is tried on a copy of the state, the cheapest first.

Every reported change was tried. It was made to the copy, a whole engine cycle ran with all waiting pods, and the pod
was placed. Where that cycle decided on evictions, they were applied, and the next cycle placed the pod.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kaicore.analysis.counterfactuals.amendment import Amendment, Effort
from kaicore.analysis.counterfactuals.asked import Asked
from kaicore.analysis.counterfactuals.group_amendments import group_amendments
from kaicore.analysis.counterfactuals.node_amendments import node_amendments
from kaicore.analysis.counterfactuals.pod_amendments import pod_amendments
from kaicore.analysis.counterfactuals.queue_amendments import queue_amendments
from kaicore.analysis.counterfactuals.rehearsal import Rehearsal, Start
from kaicore.analysis.counterfactuals.room_amendments import room_amendments
from kaicore.analysis.counterfactuals.volume_amendments import volume_amendments

#: So many changes that help are enough.
MOST_HELPFUL = 6
#: Of one kind so many are enough.
_MOST_OF_KIND = 2


@dataclass(frozen=True, slots=True)
class Helpful:
    """A change that was tried, and after which the pod starts."""

    amendment: Amendment
    start: Start


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of trying changes.

    Attributes:
        as_it_is: how the pod starts without any change: only a cycle has not been run since; None if it does not.
        helpful: changes after which it starts, the cheapest first.
        tried: how many changes were tried.
        untried: how many more there were, for which there was no time, or no need.
    """

    as_it_is: Start | None
    helpful: tuple[Helpful, ...]
    tried: int
    untried: int


def check(asked: Asked, *, go_on: Callable[[], bool] = lambda: True) -> Checked:
    """Try changes.

    Args:
        asked: the pod.
        go_on: asked before each trial; the others are left out once it says no.
    """
    rehearsal, uid = Rehearsal(asked.state, asked.config), asked.pod.uid
    as_it_is = rehearsal.start_of(uid)
    if as_it_is is not None:
        return Checked(as_it_is, (), 0, 0)
    candidates = amendments(asked)
    helpful: list[Helpful] = []
    tried = 0
    for amendment in candidates:
        alike = [one for one in helpful if one.amendment.kind == amendment.kind]
        if len(helpful) == MOST_HELPFUL or len(alike) == _MOST_OF_KIND or not go_on():
            continue
        tried += 1
        start = rehearsal.start_of(uid, amendment)
        if start is not None:
            helpful.append(Helpful(amendment, start))
    helpful.sort(key=_price)
    return Checked(None, tuple(helpful), tried, len(candidates) - tried)


def _price(helpful: Helpful) -> int:
    """Return what a change costs; one by which others are evicted ends work as well."""
    effort = helpful.amendment.effort
    return max(effort, Effort.END_WORK) if helpful.start.evicted else effort


def amendments(asked: Asked) -> Sequence[Amendment]:
    """Return the changes that may help, the cheapest first; of equal ones as they are given."""
    by_message = {one.message: one for one in _all(asked)}
    return sorted(by_message.values(), key=lambda one: one.effort)


def _all(asked: Asked) -> Iterator[Amendment]:
    yield from group_amendments(asked)
    yield from queue_amendments(asked)
    yield from volume_amendments(asked)
    yield from pod_amendments(asked)
    yield from node_amendments(asked)
    yield from room_amendments(asked)
