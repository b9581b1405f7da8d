"""Statuses of HyperNodes, ClusterNetworkTopologies and KAI's Queues, folded from the log.

Those of topologies are computed when the nodes, their labels or the definitions have changed, once for everything that
happened since. Those of queues are as schedulers last reported them. Kueue's controllers write the statuses of Kueue's
queues themselves.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Self

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload, QueueFigures
from kaicore.rules.model.node import (
    CLUSTER_NETWORK_TOPOLOGY,
    HYPER_NODE,
    HyperNode,
    TopologyDefinition,
)
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import canonical_quantity
from kaicore.rules.model.queue import queue_kind_of
from kaicore.rules.objects.wire import kubernetes_time
from kaicore.rules.queues.tree import GPU
from kaicore.rules.topology.book import TopologyBook, TopologyKey
from kaicore.rules.topology.paths import HyperNodePaths
from kaicore.rules.topology.published import HyperNodeCondition, detail_status, hyper_node_conditions, node_counts

#: The events that matter here.
EVENT_TYPES = ("QueueDeleted", "QueuesReported")

_KAI_QUEUE = "Queue.scheduling.run.ai"

#: What KAI's statuses call all kinds of GPUs together.
_GPU_IN_STATUS = "nvidia.com/gpu"


class QueueStatuses:
    """The statuses that may not be written yet, by the queue's uid."""

    def __init__(self, due: Iterable[QueueFigures] = ()) -> None:
        """Args: due: as `record` returned it; all of them are news."""
        self._due = {figures.uid: figures for figures in due}
        self._news = set(self._due)

    def fold(self, payload: Payload) -> None:
        """Take in what an event says."""
        match payload:
            case payloads.QueuesReported(queues=queues):
                for figures in queues:
                    if queue_kind_of(figures.queue) == _KAI_QUEUE and figures.uid:
                        self._due[figures.uid] = figures
                        self._news.add(figures.uid)
            case payloads.QueueDeleted(uid):
                self._due.pop(uid, None)
                self._news.discard(uid)
            case _:
                pass

    def again(self) -> None:
        """Have yielded again what is not written yet."""
        self._news = set(self._due)

    def news(self) -> Iterator[QueueFigures]:
        """Yield what is to be written since the last time."""
        news, self._news = self._news, set()
        for uid in sorted(news):
            yield self._due[uid]

    def mark_written(self, figures: QueueFigures) -> None:
        """Take note that a status was written, or never will be."""
        if self._due.get(figures.uid) is figures:
            del self._due[figures.uid]

    def record(self) -> list[QueueFigures]:
        """Return what may not be written yet, for a snapshot."""
        return list(self._due.values())


def status_document(figures: QueueFigures) -> dict[str, Any]:
    """Return the status of a `scheduling.run.ai/v2` Queue."""
    return {
        "childQueues": list(figures.children),
        "requested": _resource_list(figures.requested),
        "allocated": _resource_list(figures.allocated),
        "allocatedNonPreemptible": _resource_list(figures.non_preemptible),
    }


def _resource_list(amounts: Amounts) -> dict[str, str]:
    # In a merge patch, what is left out stays as it is: what came down to nothing is said.
    named = {"cpu": 0, "memory": 0, GPU: 0} | amounts
    return {
        _GPU_IN_STATUS if resource == GPU else resource: canonical_quantity(resource, amount)
        for resource, amount in sorted(named.items())
        if resource != _GPU_IN_STATUS
    }


_encoder = msgspec.json.Encoder(order="deterministic")


class TopologyStatus(msgspec.Struct, frozen=True):
    """The desired status of an object; `status` is a part of the object, to be merged into it."""

    kind: str
    name: str
    uid: str
    status: dict[str, Any]
    digest: bytes


class _LastStatus(msgspec.Struct):
    """The digest of an object's last written status, and since when each of its conditions has been as it is."""

    digest: bytes = b""
    since: dict[str, tuple[bool, int]] = {}


class TopologyStatusesRecord(msgspec.Struct):
    """All of it, for a snapshot; nodes as labels by name."""

    definitions: list[TopologyDefinition] = []
    hyper_nodes: list[HyperNode] = []
    nodes: dict[str, dict[str, str]] = {}
    statuses: dict[str, _LastStatus] = {}


class TopologyStatuses:
    """The statuses of a cluster's topologies, by the object's uid."""

    def __init__(self) -> None:
        self._book = TopologyBook()
        self._statuses: dict[str, _LastStatus] = {}
        self._due = False
        self._now = 0

    def fold(self, payload: Payload, *, recorded_at: int) -> None:
        """Take in what an event says, recorded at microseconds since the epoch."""
        self._now = recorded_at
        if (
            isinstance(payload, payloads.NodeObserved)
            and self._book.nodes.get(payload.node.name) == payload.node.labels
        ):
            return
        self._book.take(payload)
        self._due = True

    def again(self) -> None:
        """Have all statuses looked at again."""
        self._due = True

    def news(self) -> Iterator[TopologyStatus]:
        """Yield the statuses that are to be written, each of them until `mark_written`."""
        if not self._due:
            return
        self._due = False
        uids: set[str] = set()
        for status in (*self._hyper_nodes(), *self._cluster_network_topologies()):
            uids.add(status.uid)
            if self._last(status.uid).digest != status.digest:
                yield status
        for uid in self._statuses.keys() - uids:
            del self._statuses[uid]

    def mark_written(self, status: TopologyStatus) -> None:
        """Take note that a status was written, or never will be."""
        if status.uid in self._statuses:
            self._statuses[status.uid].digest = status.digest

    def _hyper_nodes(self) -> Iterator[TopologyStatus]:
        if not self._book.hyper_nodes:
            return
        key = TopologyKey(HYPER_NODE, "")
        tree, paths = self._book.tree(key), self._book.paths(key)
        assert isinstance(paths, HyperNodePaths)
        counts = node_counts(tree)
        overlaps = {node: error.domains for node, error in tree.overlaps.items()}
        conditions = hyper_node_conditions(self._book.hyper_nodes, paths.wrong, overlaps)
        for name, hyper_node in sorted(self._book.hyper_nodes.items()):
            status = {
                "nodeCount": counts.get(name, 0),
                "conditions": [one.document(self._since(hyper_node.uid, one)) for one in conditions[name]],
            }
            yield _status(HYPER_NODE, name, hyper_node.uid, status)

    def _cluster_network_topologies(self) -> Iterator[TopologyStatus]:
        for key, definition in sorted(self._book.definitions.items()):
            if key.kind == CLUSTER_NETWORK_TOPOLOGY:
                status = {"detailStatus": detail_status(self._book.tree(key))}
                yield _status(key.kind, key.name, definition.uid, status)

    def _last(self, uid: str) -> _LastStatus:
        return self._statuses.setdefault(uid, _LastStatus())

    def _since(self, uid: str, condition: HyperNodeCondition) -> str:
        times = self._last(uid).since
        true, since = times.get(condition.type, (None, 0))
        if true is not condition.true:
            since = self._now
            times[condition.type] = condition.true, since
        return kubernetes_time(since)

    # For snapshots.

    def record(self) -> TopologyStatusesRecord:
        """Return all of it."""
        definitions, hyper_nodes = list(self._book.definitions.values()), list(self._book.hyper_nodes.values())
        nodes = {name: dict(labels) for name, labels in self._book.nodes.items()}
        return TopologyStatusesRecord(definitions, hyper_nodes, nodes, self._statuses)

    @classmethod
    def restored(cls, record: TopologyStatusesRecord) -> Self:
        """Return what was recorded; everything is due, for it is not known what was written since."""
        statuses = cls()
        for definition in record.definitions:
            statuses._book.definition_seen(definition)
        for hyper_node in record.hyper_nodes:
            statuses._book.hyper_node_seen(hyper_node)
        for name, labels in record.nodes.items():
            statuses._book.node_seen(name, labels)
        statuses._statuses, statuses._due = record.statuses, True
        return statuses


def _status(kind: str, name: str, uid: str, status: dict[str, Any]) -> TopologyStatus:
    digest = blake2b(_encoder.encode(status), digest_size=16).digest()
    return TopologyStatus(kind, name, uid, status, digest)
