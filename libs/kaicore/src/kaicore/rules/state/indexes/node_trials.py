"""The trials of nodes: how each fared with the pods that ended there, and how the work of these fared elsewhere.

A node fails a pod if the pod ends as failed within a minute of its start, or without any start; or if its kubelet
refuses it for a device that it cannot give. A pod that succeeds, or lasts longer, proves its node. A pod that is
evicted, deleted, or refused for lack of room says nothing about its node.

What follows from the trials is a cycle's to say (`kaicore.rules.deciding.suspects`), and recorded. Here is what the log
says, without any setting. Every rejection by a kubelet is kept by node and class of pods, so that a node is not offered
the same class again in vain. Nodes that are not ready, and nodes deleted with pods on them, may have failed.
"""

from collections.abc import Collection, Iterator
from operator import attrgetter

import msgspec

from kaicore.rules.engine.config import DAY_US, EngineConfig
from kaicore.rules.engine.cycle_input import FailedNode, NodeFailure
from kaicore.rules.engine.placement.pod_class import WorkKind, base_key, work_kind
from kaicore.rules.events.payloads import NodeSuspected
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import is_kubelet_rejection
from kaicore.rules.state.indexes.past_runs import work_of
from kaicore.rules.state.pods.pod_entry import PodEntry

#: A pod that lasts for so long has proven its node.
QUICK_US = 60_000_000
#: A pod that its kubelet took so long ago did not end within a minute: the log saw its start and its end late.
_LATE_US = 600_000_000
#: Refusals by a kubelet that are about the node's devices; those for room depend on other pods.
_DEVICE_REFUSALS = ("UnexpectedAdmissionError",)
#: So many failures in a row, and so many nodes of a work, are kept; and so many works: those with the last ends.
_MOST_FAILURES, _MOST_NODES, _MOST_WORKS, _KEPT_WORKS = 16, 16, 512, 384


class FailedTrial(msgspec.Struct, frozen=True):
    """A pod that its node failed.

    Attributes:
        position: of the event that showed it.
        at: recorded time of that, microseconds since the epoch.
        work: its work (`work_of`).
    """

    position: int
    at: int
    work: str


class LastTrial(msgspec.Struct, frozen=True):
    """The last pod of a work that tried a node; `at` in microseconds since the epoch."""

    node: str
    failed: bool
    at: int


_node_of = attrgetter("node")


class SuspectNode(msgspec.Struct, frozen=True):
    """A node that gets no pods of a kind of work but one now and then, as a probe.

    Attributes:
        suspected: as a cycle recorded it.
        since: recorded time of that event, microseconds since the epoch.
        failures: of the pods there, those of the probes included.
        probes: how many probes failed.
        probe_at: from when on the next probe may come, microseconds since the epoch.
    """

    suspected: NodeSuspected
    position: int
    since: int
    failures: tuple[FailedTrial, ...]
    probe_at: int
    probes: int = 0
    proven: bool = False

    @property
    def key(self) -> str:
        """The key of its trials."""
        return trials_key(self.suspected.node, self.suspected.kind)

    @property
    def gang_probe_at(self) -> int:
        """From when on a gang may be the next probe, microseconds since the epoch."""
        return self.probe_at + self.suspected.probe_after_us

    def tries(self, entry: PodEntry) -> bool:
        """Tell whether a pod with the node, of the kind of work, is a probe, and no other of its gang failed there."""
        works, since = self.suspected.works, max(self.position, self.failures[-1].position if self.failures else 0)
        return entry.charged_at > since and (not works or work_of(entry.pod) in works)


def kind_of(entry: PodEntry) -> WorkKind:
    """Return the kind of a pod's work, as `PodClass.kind` does."""
    pod = entry.pod
    return work_kind(entry.requests, devices=pod.gpu_share is not None or bool(pod.resource_claims))


def trials_key(node: str, kind: str) -> str:
    """Return the key of a node's trials with a kind of work."""
    return f"{kind}/{node}"


class NodeTrials(msgspec.Struct):
    """The trials of all nodes.

    Attributes:
        failures: by `trials_key`, failures since which no pod that came later has proven the node.
        works: by work, its last trial on each node.
        suspects: by `trials_key`, the nodes that are suspect.
    """

    failures: dict[str, list[FailedTrial]] = {}
    works: dict[str, list[LastTrial]] = {}
    suspects: dict[str, SuspectNode] = {}

    def ended(self, before: PodEntry, after: PodEntry, *, position: int, at: int) -> None:
        """Take in that a pod let go of its node (`at`: its recorded time, microseconds since the epoch)."""
        failed = _failed(before, after, at=at)
        if failed is None:
            return
        node, work = before.node, work_of(before.pod)
        self._remember(work, LastTrial(node, failed, at))
        key = trials_key(node, kind_of(before))
        suspect = self.suspects.get(key)
        is_probe = suspect is not None and suspect.tries(before)
        if not failed:
            self._keep(key, [one for one in self.failures.get(key, ()) if one.position > before.charged_at])
            if suspect is not None and is_probe:
                self.suspects[key] = msgspec.structs.replace(suspect, proven=True)
            return
        failure = FailedTrial(position, at, work)
        self._keep(key, [*self.failures.get(key, ()), failure][-_MOST_FAILURES:])
        if suspect is not None and is_probe:
            probes = suspect.probes + 1
            wait = min(suspect.suspected.probe_after_us << min(probes, 32), DAY_US)
            failures = (*suspect.failures, failure)[-_MOST_FAILURES:]
            self.suspects[key] = msgspec.structs.replace(
                suspect, failures=failures, probes=probes, probe_at=at + wait, proven=False
            )

    def suspected(self, payload: NodeSuspected, *, position: int, at: int) -> None:
        """Take in that a cycle found a node suspect."""
        key = trials_key(payload.node, payload.kind)
        failures = tuple(one for one in self.failures.get(key, ()) if one.position in payload.failures)
        self.suspects[key] = SuspectNode(payload, position, at, failures, at + payload.probe_after_us)

    def forget(self, node: str, kind: str = "") -> None:
        """Begin anew with a node, for a kind of work or all."""
        for key in (trials_key(node, one) for one in WorkKind if kind in ("", one)):
            self.failures.pop(key, None)
            self.suspects.pop(key, None)

    def of_node(self, node: str) -> Iterator[SuspectNode]:
        """Yield for which kinds of work a node is suspect."""
        for kind in WorkKind:
            suspect = self.suspects.get(trials_key(node, kind))
            if suspect is not None:
                yield suspect

    def _keep(self, key: str, failures: list[FailedTrial]) -> None:
        if failures:
            self.failures[key] = failures
        else:
            self.failures.pop(key, None)

    def _remember(self, work: str, trial: LastTrial) -> None:
        others = self.works.get(work, [])
        if trial.node in map(_node_of, others):
            others = [one for one in others if one.node != trial.node]
        self.works[work] = [*others, trial][-_MOST_NODES:]
        if len(self.works) > _MOST_WORKS:
            last = sorted(self.works, key=lambda key: (-self.works[key][-1].at, key))
            self.works = {key: self.works[key] for key in last[:_KEPT_WORKS]}


def _failed(before: PodEntry, after: PodEntry, *, at: int) -> bool | None:
    """Tell whether a pod's node failed it, or was proven; None where its end says neither."""
    pod, ran = after.pod, at - (before.started_at or at)
    if before.started_at and (ran >= QUICK_US or at - before.running_since >= _LATE_US or pod.phase == "Succeeded"):
        return False
    if pod.phase == "Succeeded":
        return False
    if after.rejection is not None or is_kubelet_rejection(pod):
        reason = pod.reason if after.rejection is None else after.rejection.reason
        return True if reason in _DEVICE_REFUSALS else None
    if pod.phase != "Failed" or pod.deletion_at is not None or before.leaving_by_decision:
        return None
    return True if at - before.running_since < _LATE_US else None


class Rejection(msgspec.Struct, frozen=True):
    """A node's kubelet rejected pods of a class.

    Attributes:
        changes: the node's count of changes at the last rejection; as long as it stands there, the class is not offered
            to the node again.
        reason: the last one's.
    """

    changes: int = -1
    count: int = 0
    reason: str = ""


_NONE = Rejection()


class RejectionIndex(msgspec.Struct):
    """Rejections by node and class.

    Attributes:
        by_node: rejections by the class's key, by node.
        changes: per node, how often something there changed that may change its kubelet's mind.
    """

    by_node: dict[str, dict[str, Rejection]] = {}
    changes: dict[str, int] = {}

    def node_changed(self, node: str) -> None:
        """Something of a node changed."""
        self.changes[node] = self.changes.get(node, 0) + 1

    def forget_node(self, node: str) -> None:
        """A node is gone."""
        self.by_node.pop(node, None)

    def rejected(self, entry: PodEntry) -> None:
        """Count the rejection of a pod."""
        rejection = entry.rejection
        assert rejection is not None
        by_class = self.by_node.setdefault(rejection.node, {})
        count = by_class.get(entry.class_key, _NONE).count + 1
        by_class[entry.class_key] = Rejection(self.changes.get(rejection.node, 0), count, rejection.reason)

    def count(self, node: str, class_key: str) -> int:
        """Return how often a node's kubelet has rejected pods of a class, or of the class that it is a variant of."""
        by_class = self.by_node.get(node)
        return by_class.get(base_key(class_key), _NONE).count if by_class else 0

    def has_class(self, class_key: str) -> bool:
        """Return whether any kubelet is known to have rejected a class."""
        return any(class_key in by_class for by_class in self.by_node.values())

    def standing(self) -> dict[str, dict[str, str]]:
        """Return the reasons of rejections since which nothing of the node has changed, by class and node."""
        standing: dict[str, dict[str, str]] = {}
        for node, by_class in self.by_node.items():
            changes = self.changes.get(node, 0)
            for class_key, rejection in by_class.items():
                if rejection.changes == changes:
                    standing.setdefault(class_key, {})[node] = rejection.reason
        return standing


#: Where so large a share of the nodes is not ready, in per cent, it is not the nodes that failed. The same figure keeps
#: the node lifecycle controller from evicting (kube-controller-manager v1.36, `--unhealthy-zone-threshold`).
_MOST_NOT_READY = 55
#: Of so few nodes, each may fail.
_FEW = 3


class NodeReadiness(msgspec.Struct):
    """The memory of nodes that may have failed.

    Attributes:
        not_ready_since: recorded time at which a node was first seen not ready, microseconds since the epoch, by name.
        deleted: names of nodes that were deleted while pods were charged to them.
    """

    not_ready_since: dict[str, int] = {}
    deleted: set[str] = set()

    def node_seen(self, node: Node, *, at: int) -> None:
        """Take in a node as it is now."""
        self.deleted.discard(node.name)
        if node.ready:
            self.not_ready_since.pop(node.name, None)
        else:
            self.not_ready_since.setdefault(node.name, at)

    def node_gone(self, name: str, *, with_pods: Collection[str]) -> None:
        """Take in that a node was deleted.

        Args:
            with_pods: names of nodes with pods; deleted nodes that no pod is on any more are forgotten.
        """
        self.not_ready_since.pop(name, None)
        self.deleted = {other for other in (*self.deleted, name) if other in with_pods}

    def failed(self, config: EngineConfig, *, now: int, nodes: int, tainted: Collection[str]) -> dict[str, FailedNode]:
        """Return the nodes that have failed, or have failed for groups with pods that terminate there, by name.

        Args:
            now: microseconds since the epoch.
            tainted: names of nodes that keep pods off. A node that is not ready has a taint for that alone.
        """
        failed_by_name = {name: FailedNode(name, NodeFailure.DELETED) for name in sorted(self.deleted)}
        on_termination = config.replace_on_pod_termination
        if on_termination:
            for name in sorted(set(tainted) - self.not_ready_since.keys()):
                failed_by_name[name] = FailedNode(name, NodeFailure.TAINTED, once_pods_end=True)
        if len(self.not_ready_since) > _FEW and len(self.not_ready_since) * 100 >= nodes * _MOST_NOT_READY:
            return failed_by_name
        for name, since in sorted(self.not_ready_since.items()):
            if on_termination:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY, once_pods_end=True)
            elif now - since >= config.node_not_ready_us:
                failed_by_name[name] = FailedNode(name, NodeFailure.NOT_READY)
        return failed_by_name

    def may_have_failed(self, with_pods: Collection[str]) -> bool:
        """Tell whether a node with pods is not ready, or was deleted under them."""
        return any(name in with_pods for name in (*self.not_ready_since, *self.deleted))

    def due(self, config: EngineConfig) -> list[int]:
        """Return when nodes that are not ready will have failed, microseconds since the epoch."""
        if not config.replace_failed_nodes or config.replace_on_pod_termination:
            return []
        return [since + config.node_not_ready_us for since in self.not_ready_since.values()]
