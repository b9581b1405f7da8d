"""Kinds of runs: what the run of a pod has in common with others, so that these tell how long it lasts."""

import re
from collections.abc import Mapping
from enum import StrEnum

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
