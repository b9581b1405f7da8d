"""The problems of a cluster at a moment: each is a line of text and the page that shows its objects."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.views import ClusterView, FleetView

from kai_api.pages.queues import starving

#: How long a pod may wait for its first cycle, or for its binding, before a service is held to be silent.
_SILENT_US = 60_000_000
#: Pods that one node has ended at once, which make it one that swallows pods.
_SWALLOWS = 3
#: Names that a line has.
_NAMES = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to look at. `parts`, `query`: of the address of the page that shows it, below the cluster's."""

    text: str
    parts: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()


def problems(state: ClusterView) -> tuple[Problem, ...]:
    """Return what is wrong in a cluster, by its log alone."""
    undecided, unbound = _late_pods(state)
    found = [
        *(_listed(nodes_of(state), words, ("nodes", kind)) for kind, (nodes_of, words) in NODE_PROBLEMS.items()),
        _listed(undecided, ("pod waits for its first cycle", "pods wait for their first cycle"), ("pods", "Pending")),
        _listed(unbound, ("pod waits for its binding", "pods wait for their bindings"), ("pods", "Placed")),
        _listed(
            {key.partition("/")[2] for key in starving(state)}, ("group starves", "groups starve"), ("jobs", "starving")
        ),
    ]
    if state.quarantined:
        found.append(Problem(f"{len(state.quarantined)} events cannot be folded: see the runbooks", ("cycles",)))
    return tuple(problem for problem in found if problem is not None)


def _listed(names: Collection[str], words: tuple[str, str], where: tuple[str, str]) -> Problem | None:
    if not names:
        return None
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    text = f"{len(names)} {words[len(names) > 1]}: {', '.join(sorted(names)[:_NAMES])}{more}"
    return Problem(text, where[:1], (("state", where[1]),))


def _silent(state: FleetView) -> set[str]:
    """Return the nodes with pods that have run for long, and that no exporter has observed."""
    after = state.recorded_at - state.config().unobserved_after_us
    return {entry.node for entry in state.pods.values() if 0 < entry.started_at < after and is_unobserved(state, entry)}


def _swallowing(state: FleetView) -> set[str]:
    """Return the nodes that end pod after pod at once.

    Their kubelets have rejected them since the node last changed, or they failed before anybody saw them run.
    """
    counts = Counter(
        entry.node
        for entry in state.pods.values()
        if entry.pod.phase == "Failed" and not entry.started_at and entry.rejection is None
    )
    for node, by_class in state.rejections.by_node.items():
        changes = state.rejections.changes.get(node, 0)
        counts[node] += sum(one.count for one in by_class.values() if one.changes == changes)
    return {node for node, count in counts.items() if node and count >= _SWALLOWS}


#: Problems of nodes, by the word for them in a list's address: the nodes that have it; what is said of one, of several.
NODE_PROBLEMS: dict[str, tuple[Callable[[FleetView], set[str]], tuple[str, str]]] = {
    "not ready": (
        lambda state: set(state.node_readiness.not_ready_since),
        ("node is not ready", "nodes are not ready"),
    ),
    "swallowing": (_swallowing, ("node ends pod after pod at once", "nodes end pod after pod at once")),
    "suspect": (
        lambda state: {one.suspected.node for one in state.node_trials.suspects.values()},
        ("node is suspect: it fails work", "nodes are suspect: they fail work"),
    ),
    "silent": (_silent, ("node has a silent exporter", "nodes have silent exporters")),
    "exposed": (
        lambda state: {group.opened.node for group in state.shared_gpus.exposed},
        ("node shares a GPU that nothing reserves", "nodes share GPUs that nothing reserves"),
    ),
    "misaligned": (
        lambda state: {state.pods[uid].node for uid in state.misaligned},
        ("node runs pods on other zones than they ask for", "nodes run pods on other zones than they ask for"),
    ),
}


def problems_of_node(state: FleetView, name: str) -> tuple[str, ...]:
    """Return what is wrong with a node, in words."""
    return tuple(words[0] for nodes_of, words in NODE_PROBLEMS.values() if name in nodes_of(state))


def _late_pods(state: ClusterView) -> tuple[list[str], list[str]]:
    """Return the pods that the scheduler, and those that the binder should have seen to by now."""
    since, ours = state.recorded_at - _SILENT_US, state.config().scheduler_name
    unbound = [
        entry.pod.subject
        for entry in state.pods.values()
        if entry.stage is Stage.PLACED and 0 < entry.placed_at < since
    ]
    undecided = [
        entry.pod.subject
        for entry in map(state.pods.__getitem__, state.waiting)
        if entry.waiting
        and entry.reported is None
        and entry.nomination is None
        and entry.pod.created_at * 1_000_000 < since
        and entry.pod.scheduler_name == ours
        and not entry.pod.scheduling_gates
    ]
    return undecided, unbound
