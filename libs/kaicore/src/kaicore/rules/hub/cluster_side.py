"""The tasks of a cluster's binder for the hub, and the dispatches that it may start."""

from dataclasses import dataclass

from kaicore.rules.hub.hub_state import DispatchEntry, DispatchStage, HubState

#: On pods and objects: `<dispatch>/<term>`, for which dispatch and on which giving they were made.
DISPATCH_MARK = "kai.scheduler/dispatch"


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """One giving of a dispatch to a cluster."""

    dispatch: str
    number: int

    def __str__(self) -> str:
        return f"{self.dispatch}/{self.number}"

    @classmethod
    def read(cls, text: str) -> "Term | None":
        """Read the annotation; None where it makes no sense."""
        dispatch, _, number = text.rpartition("/")
        return cls(dispatch, int(number)) if dispatch and number.isdecimal() and len(number) < 10 else None


def to_make(state: HubState, cluster: str) -> list[Term]:
    """Return what a cluster was given and has not started: its objects are to be there."""
    return [Term(entry.name, entry.term) for entry in state.of_cluster(cluster) if entry.stage is DispatchStage.GIVEN]


def to_clear(state: HubState, cluster: str) -> list[Term]:
    """Return what a cluster has no more, or is asked for: nothing of it is to be there any more."""
    terms = [
        Term(entry.name, entry.term) for entry in state.of_cluster(cluster) if entry.stage is DispatchStage.RECALLED
    ]
    return terms + [
        Term(entry.name, entry.left[cluster]) for entry in state.dispatches.values() if cluster in entry.left
    ]


def is_here(state: HubState, cluster: str, term: Term) -> bool:
    """True if the objects of a term are in their cluster; those of a finished one stay to be looked at."""
    entry = state.dispatches.get(term.dispatch)
    there = entry is not None and (entry.cluster, entry.term) == (cluster, term.number)
    return there and entry is not None and entry.stage is not DispatchStage.WITHDRAWN


def held_entry(state: HubState, cluster: str, term: Term) -> DispatchEntry | None:
    """Return the dispatch of a term if it is a cluster's now, and not asked back; else None."""
    entry = state.dispatches.get(term.dispatch)
    if entry is None or (entry.cluster, entry.term) != (cluster, term.number) or state.clusters[cluster].removed:
        return None
    return entry if entry.stage in (DispatchStage.GIVEN, DispatchStage.STARTED) else None
