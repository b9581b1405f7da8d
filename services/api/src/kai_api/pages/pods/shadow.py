"""The last decisions of shadows about pods of other schedulers. None of them is carried out."""

from dataclasses import dataclass

from kaicore.analysis.ask.listing import pod_status
from kaicore.rules.deciding.shadow import shadow_notes, shadow_shard
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import WorkView

#: Pods that are shown.
MOST_PODS = 200


@dataclass(frozen=True, slots=True)
class ShadowedPod:
    """A pod of another scheduler.

    Attributes:
        node: that the other scheduler chose; empty while it waits.
        shadow_node: that the shadow chose; empty where it would wait, or was not decided on.
        text: what the shadow decided, for people.
        position: of that decision; 0 for none.
    """

    namespace: str
    name: str
    status: str
    node: str
    shadow_node: str
    text: str
    position: int

    @property
    def compared(self) -> str:
        """Both choices in a word."""
        if not self.node:
            return "waits"
        if not self.shadow_node:
            return "not decided"
        return "same node" if self.node == self.shadow_node else "another node"


@dataclass(frozen=True, slots=True)
class ShadowPage:
    """The pods of other schedulers beside what shadows decided about them.

    Attributes:
        schedulers: their pods are decided on.
        counts: pods by how both choices compare.
        pods: the first of `total`, those first where the two differ.
        evicted: pods that the shadows would evict now, at most as many; `more_evicted` are not shown.
    """

    schedulers: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]
    pods: tuple[ShadowedPod, ...]
    total: int
    evicted: tuple[tuple[str, str], ...]
    more_evicted: int


_ORDER = ("another node", "waits", "not decided", "same node")


def shadow_page(state: WorkView) -> ShadowPage:
    """Return the model of the page."""
    shards = state.shadows.evicted
    entries = [entry for entry in state.pods.values() if shadow_shard(entry.pod.scheduler_name) in shards]
    pods = [_pod(state, entry) for entry in entries if entry.stage is not Stage.FINISHED]
    pods.sort(key=lambda pod: (_ORDER.index(pod.compared), pod.namespace, pod.name))
    evicted = sorted(
        (entry.pod.namespace, entry.pod.name)
        for uid in {uid for uids in shards.values() for uid in uids}
        if (entry := state.pods.get(uid)) is not None
    )
    return ShadowPage(
        schedulers=tuple(sorted(shard.partition("/")[2] for shard in shards)),
        counts=tuple((word, sum(pod.compared == word for pod in pods)) for word in _ORDER),
        pods=tuple(pods[:MOST_PODS]),
        total=len(pods),
        evicted=tuple(evicted[:MOST_PODS]),
        more_evicted=max(0, len(evicted) - MOST_PODS),
    )


def _pod(state: WorkView, entry: PodEntry) -> ShadowedPod:
    choice = state.shadows.choices.get(entry.pod.uid)
    return ShadowedPod(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        status=pod_status(entry),
        node="" if entry.stage is Stage.WAITING else entry.node,
        shadow_node="" if choice is None else choice.node,
        text="; ".join(shadow_notes(entry, state)),
        position=0 if choice is None else choice.position,
    )
