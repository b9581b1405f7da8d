"""Run times of pods: the lengths of the last runs, by what the run of a pod has in common with others.

They are folded from the log, so that a cycle may decide on them and a replay decides the same. Unlike the histories of
forecasts (`kaicore.rules.deciding.forecast.runs`) they are few, for they are part of each state.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.groups.labels import queue_of
from kaicore.rules.model.pod import Pod

#: A part of a name that a controller made: of Kubernetes' alphabet without vowels, of five, or eight to ten characters.
_GENERATED = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}|[bcdfghjklmnpqrstvwxz2456789]{8,10}")
_NUMBERED = re.compile(r"([a-z]*)\d+")


class Basis(StrEnum):
    """The nearness between a pod and the runs that predict its run time.

    Attributes:
        OWNER: of owners of the same kind and pattern of name, in its namespace.
        CLASS: of pods that request the same, in its queue.
        QUEUE: of its queue.
        CLUSTER: of any pod.
    """

    OWNER = "owner"
    CLASS = "class"
    QUEUE = "queue"
    CLUSTER = "cluster"


#: What runs are alike in, by basis.
RunKeys = Mapping[Basis, str]


#: So many runs of a kind must have ended, and lasted longer than the pod has, for that kind to tell how it goes on.
LEAST_RUNS = {Basis.OWNER: 5, Basis.CLASS: 10, Basis.QUEUE: 20, Basis.CLUSTER: 20}


def run_keys(pod: Pod) -> RunKeys:
    """Return what a pod's run has in common with others, by basis."""
    owner = pod.owner
    kind, name = ("Pod", pod.name) if owner is None else (owner.kind, owner.name)
    queue = queue_of(pod) or pod.namespace
    requests = ",".join(f"{resource}={amount}" for resource, amount in sorted(node_requests(pod).items()))
    return {
        Basis.OWNER: f"{kind}/{pod.namespace}/{name_pattern(name)}",
        Basis.CLASS: f"{queue}/{requests}",
        Basis.QUEUE: queue,
        Basis.CLUSTER: "",
    }


def name_pattern(name: str) -> str:
    """Return a name with `#` for what changes from one run to the next: numbers, and what controllers append."""
    parts = name.split("-")
    pattern = [_NUMBERED.sub(_without_number, part) if _NUMBERED.fullmatch(part) else part for part in parts]
    for place in range(1, len(parts)):
        if _GENERATED.fullmatch(parts[place]) and not parts[place].isalpha():
            pattern[place] = "#"
    if len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        pattern[-1] = "#"
    return "-".join(pattern)


def _without_number(part: re.Match[str]) -> str:
    return f"{part[1]}#"


#: So many of the last runs are kept of each kind, and so many kinds: those of which a run ended last.
_MOST_RUNS, _MOST_KINDS = 64, 512
#: Pods of one owner that end within so long of each other are one run, microseconds.
_TOGETHER_US = 60_000_000


class RunsOfKind(msgspec.Struct):
    """The last runs of a kind.

    Attributes:
        kind: by basis and key.
        lengths_us: microseconds, the oldest run first.
        ended_at: when the last run ended, microseconds since the epoch.
    """

    kind: str
    lengths_us: list[int]
    owner: str
    ended_at: int


class RunTimes:
    """The lengths of runs by kind; no more than 512 kinds."""

    def __init__(self, kept: Iterable[RunsOfKind] = ()) -> None:
        """Args: kept: what a snapshot has."""
        #: The kind of which a run ended last comes last.
        self._kinds = {one.kind: one for one in kept}

    def ended(self, keys: RunKeys, owner: str, *, ran_us: int, at_us: int) -> None:
        """Take in that a pod came to its own end.

        Args:
            keys: what its run has in common with others.
            owner: uid of its owner.
            ran_us: how long it ran, microseconds.
            at_us: when it ended, microseconds since the epoch.
        """
        for basis, key in keys.items():
            kind = f"{basis}/{key}"
            one = self._kinds.pop(kind, None) or RunsOfKind(kind, [], "", 0)
            self._kinds[kind] = one
            if one.owner == owner and at_us - one.ended_at <= _TOGETHER_US:
                continue
            one.owner, one.ended_at = owner, at_us
            one.lengths_us = [*one.lengths_us, ran_us][-_MOST_RUNS:]
        while len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def remaining_us(self, keys: RunKeys, *, age_us: int, per_cent: int) -> int:
        """Return how much longer a pod runs, by the closest runs of which enough got older than it is.

        Args:
            keys: what its run has in common with others.
            age_us: how long it has run, microseconds.
            per_cent: of the runs that got so old, so many had ended by then.

        Returns:
            microseconds, at least 1; -1 where too few runs got so old.
        """
        for basis, least in LEAST_RUNS.items():
            one = self._kinds.get(f"{basis}/{keys[basis]}")
            if one is None:
                continue
            lengths = sorted(one.lengths_us)
            older = lengths[bisect_right(lengths, age_us) :]
            if len(older) >= least:
                return max(older[-(-len(older) * per_cent // 100) - 1] - age_us, 1)
        return -1

    def record(self) -> list[RunsOfKind]:
        """Return all, for snapshots."""
        return list(self._kinds.values())
