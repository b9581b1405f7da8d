"""Search by name over pods, groups, nodes and queues of a cluster, for the field in the navigation."""

from collections.abc import Iterator
from dataclasses import dataclass

from kaicore.rules.groups.membership import POD
from kaicore.rules.state.views import ClusterView
from kaicore.runtime.access.scopes import EVERYTHING, View

#: Hits that are shown.
MOST_HITS = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that has a name.

    Attributes:
        kind: Node, Queue, Pod, or what a group's kind is.
        parts: of its page's path below the cluster's.
        query: of its page's address.
    """

    kind: str
    name: str
    parts: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()


def search(state: ClusterView, text: str, view: View = EVERYTHING) -> tuple[Hit, ...]:
    """Return what has a text in its name: equal names first, then by name; of `a/b`, b in namespace a.

    Args:
        state: of the cluster.
        text: what is looked for.
        view: what the caller may see.
    """
    wanted = text.strip().lower()
    if not wanted:
        return ()
    hits = [hit for hit in _all(state) if wanted in hit.name.lower() and (view.whole or _in_view(hit, view))]

    def order(hit: Hit) -> tuple[bool, str, str]:
        plain = hit.name.lower()
        return wanted not in (plain, plain.rpartition("/")[2]), hit.name, hit.kind

    return tuple(sorted(hits, key=order)[:MOST_HITS])


def _in_view(hit: Hit, view: View) -> bool:
    namespace, slash, _ = hit.name.partition("/")
    return bool(slash) and hit.parts[0] == "stories" and view.sees(namespace)


def _all(state: ClusterView) -> Iterator[Hit]:
    for name, row in state.columns.rows.items():
        if state.columns.facts[row] is not None:
            yield Hit("Node", name, ("nodes", name))
    for name in state.queues:
        yield Hit("Queue", name, ("waiting",), (("queue", name),))
    for key, group in state.groups.items():
        if group.origin != POD and not key.startswith(f"{POD}/"):
            kind = group.origin.partition(".")[0]
            yield Hit(kind, f"{group.namespace}/{group.name}", ("stories", kind, group.namespace, group.name))
    for entry in state.pods.values():
        pod = entry.pod
        yield Hit("Pod", f"{pod.namespace}/{pod.name}", ("stories", "Pod", pod.namespace, pod.name))
