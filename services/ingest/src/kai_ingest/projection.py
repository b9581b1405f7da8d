"""Fold of what ingest must know of a cluster to judge a report: each name's pod, its node, and what was recorded.

podresources identifies pods by namespace and name only. The log says which pod, by uid, is meant: the pod must be
known there, must not be finished, and must have been decided for, or be on, the node that reports. Where more than one
pod could be meant, none is.

`apply` is the only way in which events change it. Times are microseconds since the epoch.
"""

from collections.abc import Iterable
from uuid import UUID

import msgspec
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.quarantine import folding, is_passed_over
from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import MEMORY_GROUPS_OBSERVED, OBSERVED_ANNOTATION, Placement
from kaicore.rules.model.pod import Pod
from kaicore.rules.numa.explain import impossible_holding, zone_limits
from kaicore.rules.state.pods.agreement import observation_charges

from kai_ingest.known_pod import KnownPod, Miss, Unresolved, is_empty, record_of

#: The types of the events that matter here.
EVENT_TYPES = (
    "BindFailed",
    "NodeDeleted",
    "PlacementObserved",
    "PodBound",
    "PodDeleted",
    "PodObserved",
    "PodPlaced",
    "PodRejected",
    "PredictionMissed",
    "TopologyDeleted",
    "TopologyObserved",
)

#: Version of a snapshot's format.
SCHEMA = "4"

#: How long a deleted pod is remembered as the predecessor of one of the same name, microseconds.
_REMEMBERED_US = 600_000_000

#: How far a node's clock may be behind, microseconds, where no pod of the same name was on the node before.
_CLOCK_SKEW_US = 5_000_000


class _Snapshot(msgspec.Struct):
    pods: list[KnownPod]
    topologies: dict[str, NodeTopology]
    waiting: dict[str, Pod]
    resources: list[str]
    gone: list[tuple[str, str, str, int]]


class IngestProjection:
    """The pods of one cluster that have a node, the zones of its nodes, and who reported last."""

    def __init__(self) -> None:
        self.position = 0
        self.pods: dict[str, KnownPod] = {}
        #: By node, its zones; what exporters saw free is left out.
        self.topologies: dict[str, NodeTopology] = {}
        #: Rejections of pods that were predicted to be admitted, still to be recorded as missed predictions.
        self.rejected: list[tuple[payloads.PodRejected, Event]] = []
        #: Pods with an annotation that has still to be looked at.
        self.annotated: set[str] = set()
        self._zones_missing: set[str] = set()
        # Pods without a node by uid.
        self._waiting: dict[str, Pod] = {}
        # Resources that zones of any node have had.
        self._resources: set[str] = set()
        self._by_name: dict[tuple[str, str], list[str]] = {}
        # Namespace, name and node of deleted pods, with the time of the deletion, oldest first.
        self._gone: dict[tuple[str, str, str], int] = {}

    def apply(self, event: Event) -> None:
        """Take an event; those of other types only move the position on.

        Raises UnfoldableEvent: it is half taken in; this is to be made anew, and the event is passed over then.
        """
        self.position = event.position
        if event.type in EVENT_TYPES and not is_passed_over(event, "ingest"):
            with folding(event, "ingest"):
                self._take(event)
        if event.stream.startswith("pod/"):
            pod = self.pods.get(event.stream.removeprefix("pod/"))
            if pod is not None:
                pod.version = event.version

    def _take(self, event: Event) -> None:
        match decode_payload(event):
            case payloads.PodObserved() as payload:
                self._observed(payload, event)
            case payloads.PodPlaced() as payload:
                pod = self._at(payload.uid, payload.namespace, payload.name, payload.node, event.occurred_at)
                pod.placed, pod.missed = True, False
                bound = payload.placement is not None and not is_empty(payload.placement)
                pod.predicted = payload.placement if bound else None
            case payloads.PodBound() as payload:
                pod = self._at(payload.uid, payload.namespace, payload.name, payload.node, event.occurred_at)
                pod.on_node, pod.bound_at = True, event.recorded_at
            case payloads.BindFailed(uid=uid, node=node):
                known_pod = self.pods.get(uid)
                if known_pod is not None and not known_pod.on_node and known_pod.node == node:
                    self._wait(self._forget(uid).pod)
            case payloads.PodRejected(uid=uid) as payload:
                known_pod = self.pods.get(uid)
                if known_pod is not None:
                    known_pod.live = False
                    if known_pod.placed and known_pod.node == payload.node and not known_pod.missed:
                        self.rejected.append((payload, event))
            case payloads.PredictionMissed(uid=uid):
                if uid in self.pods:
                    self.pods[uid].missed = True
                self.rejected = [item for item in self.rejected if item[0].uid != uid]
            case payloads.PodDeleted(uid=uid):
                self._deleted(uid, event.recorded_at)
            case payloads.PlacementObserved(uid=uid) as payload:
                known_pod = self.pods.get(uid)
                if known_pod is not None and known_pod.node == payload.node:
                    self.record(payload, position=event.position, event_id=event.id)
            case payloads.TopologyObserved(topology=topology):
                self._set_topology(topology.lasting())
            case payloads.TopologyDeleted(node=node):
                self.topologies.pop(node, None)
            case payloads.NodeDeleted(name=name):
                self.topologies.pop(name, None)
            case _:
                pass

    def record(self, payload: payloads.PlacementObserved, *, position: int, event_id: UUID) -> None:
        """Note an observation that is in the log; a later one that is known already stays."""
        pod = self.pods.get(payload.uid)
        if pod is not None and (pod.record is None or pod.record.position < position):
            pod.record = record_of(payload, position=position, event_id=event_id)
            pod.observed = payload.placement

    def policy(self, node: str) -> str:
        """Return the Topology Manager policy of a node; empty where it is not known."""
        topology = self.topologies.get(node)
        return "" if topology is None else topology.policy

    def charges(self, pod: KnownPod, placement: Placement) -> bool:
        """Tell whether an observation changes what the pod's node is accounted to hold."""
        if pod.pod is None:
            return True
        return observation_charges(
            self.topologies.get(pod.node),
            pod.pod,
            predicted=pod.predicted,
            before=pod.observed,
            observed=placement,
            resources=self._resources,
        )

    def check_zones(self, pod: KnownPod, zones: Iterable[str]) -> None:
        """Check that the pod's node has some zones, as far as its NodeResourceTopology is known.

        Raises Unresolved: it has one not, or not yet.
        """
        topology = self.topologies.get(pod.node)
        if topology is None:
            return
        there = [zone.name for zone in topology.zones]
        strange = sorted(set(zones).difference(there))
        if strange:
            raise Unresolved(
                Miss.ZONE, f"Pod {pod.subject}: zone: Node {pod.node} has {', '.join(there)}: {strange[0]!r}"
            )

    def check_held(self, pod: KnownPod, placement: Placement) -> None:
        """Check that the pod, and the zones of its node, can hold what is said.

        Raises InvalidObject: naming pod, container or zone, resource and amount.
        """
        topology = self.topologies.get(pod.node)
        zones = zone_limits(topology) if topology is not None else {}
        problem = impossible_holding(placement, subject=f"Pod {pod.subject}", most=pod.most, zones=zones)
        if problem is not None:
            raise problem

    def await_zones(self, pod: KnownPod) -> None:
        """Have the pod's annotation looked at again when its node has other zones."""
        self._zones_missing.add(pod.uid)

    def resolve(self, namespace: str, name: str, *, node: str, uid: str, observed_at: int) -> KnownPod:
        """Return the pod that a node's exporter means. Raises Unresolved: it is not known, or not yet.

        Args:
            observed_at: when the exporter saw it, by its node's clock.
        """
        named = [self.pods[uid_named] for uid_named in self._by_name.get((namespace, name), ())]
        named = [pod for pod in named if uid in ("", pod.uid, pod.uid_on_node)]
        here = [pod for pod in named if pod.node == node]
        live = [pod for pod in here if pod.live]
        subject = f"Pod {namespace}/{name}"
        if not named:
            about = f"uid: {uid!r}: " if uid else ""
            raise Unresolved(Miss.UNKNOWN, f"{subject}: {about}the log knows no such pod with a node")
        if not here:
            raise Unresolved(
                Miss.ELSEWHERE, f"{subject}: node: {node!r}: the log has it on {', '.join(pod.node for pod in named)}"
            )
        if not live:
            raise Unresolved(Miss.FINISHED, f"{subject}: uid: {here[-1].uid!r}: it is finished")
        if len(live) > 1:
            uids = ", ".join(pod.uid for pod in live)
            raise Unresolved(Miss.AMBIGUOUS, f"{subject}: uid: {uids!r}: more than one pod of that name is on {node}")
        pod = live[0]
        if not uid and observed_at < pod.since - (0 if pod.succeeds else _CLOCK_SKEW_US):
            raise Unresolved(
                Miss.AMBIGUOUS, f"{subject}: observed_at: {observed_at!r}: before pod {pod.uid} was there ({pod.since})"
            )
        return pod

    def unobserved(self, *, before: int) -> int:
        """Count live pods with predicted zones that were bound before a time and have no observation."""
        return sum(
            pod.live and pod.predicted is not None and pod.record is None and 0 < pod.bound_at < before
            for pod in self.pods.values()
        )

    def dump(self) -> bytes:
        """Return a snapshot for `load`."""
        gone = [(*key, at) for key, at in self._gone.items()]
        return msgspec.msgpack.encode(
            _Snapshot(list(self.pods.values()), self.topologies, self._waiting, sorted(self._resources), gone)
        )

    @classmethod
    def load(cls, body: bytes, *, position: int) -> "IngestProjection":
        """Return the projection that a snapshot of `SCHEMA` was made of."""
        snapshot = msgspec.msgpack.decode(body, type=_Snapshot)
        projection = cls()
        projection.position = position
        projection.topologies, projection._waiting = snapshot.topologies, snapshot.waiting
        projection._resources.update(snapshot.resources)
        projection._gone = {(namespace, name, node): at for namespace, name, node, at in snapshot.gone}
        for pod in snapshot.pods:
            projection._add(pod)
        projection._look_again(snapshot.pods)
        return projection

    def _observed(self, payload: payloads.PodObserved, event: Event) -> None:
        pod = payload.pod
        known_pod = self.pods.get(pod.uid)
        arrives = known_pod is None or not known_pod.on_node
        if pod.node_name:
            # Creation times are whole seconds, cut off.
            known_pod = self._at(pod.uid, pod.namespace, pod.name, pod.node_name, (pod.created_at + 1) * 1_000_000)
            known_pod.on_node = True
        if known_pod is None:
            if pod.finished:
                self._waiting.pop(pod.uid, None)
            else:
                self._wait(pod)
            return
        known_pod.pod = pod
        known_pod.live = known_pod.live and not pod.finished
        annotation, groups = (pod.annotations.get(name, "") for name in (OBSERVED_ANNOTATION, MEMORY_GROUPS_OBSERVED))
        if (annotation, groups) != (known_pod.annotation, known_pod.memory_groups) or arrives:
            known_pod.memory_groups = groups
            known_pod.annotation, known_pod.cause, known_pod.annotated_at = annotation, event.id, event.occurred_at
            self._look_again((known_pod,))

    def _at(self, uid: str, namespace: str, name: str, node: str, since: int) -> KnownPod:
        """Return the pod, which is on that node now or about to be."""
        pod = self.pods.get(uid)
        if pod is None:
            succeeds = self._succeeds(uid, namespace, name, node)
            pod = KnownPod(uid, namespace, name, node, since, succeeds, self._waiting.pop(uid, None))
            self._add(pod)
        elif pod.node != node:
            pod.node, pod.since, pod.record, pod.predicted, pod.observed = node, since, None, None, None
            pod.placed = pod.missed = False
            pod.succeeds = self._succeeds(uid, namespace, name, node)
        return pod

    def _wait(self, pod: Pod | None) -> None:
        if pod is not None:
            self._waiting[pod.uid] = pod

    def _succeeds(self, uid: str, namespace: str, name: str, node: str) -> bool:
        if (namespace, name, node) in self._gone:
            return True
        others = (self.pods[other] for other in self._by_name.get((namespace, name), ()) if other != uid)
        return any(other.node == node for other in others)

    def _add(self, pod: KnownPod) -> None:
        self.pods[pod.uid] = pod
        self._by_name.setdefault((pod.namespace, pod.name), []).append(pod.uid)

    def _forget(self, uid: str) -> KnownPod:
        pod = self.pods.pop(uid)
        self.annotated.discard(uid)
        self._zones_missing.discard(uid)
        uids = self._by_name[pod.namespace, pod.name]
        uids.remove(uid)
        if not uids:
            del self._by_name[pod.namespace, pod.name]
        return pod

    def _deleted(self, uid: str, at: int) -> None:
        self._waiting.pop(uid, None)
        if uid not in self.pods:
            return
        pod = self._forget(uid)
        key = (pod.namespace, pod.name, pod.node)
        self._gone.pop(key, None)
        self._gone[key] = at
        while (oldest := next(iter(self._gone))) != key and self._gone[oldest] < at - _REMEMBERED_US:
            del self._gone[oldest]

    def _set_topology(self, topology: NodeTopology) -> None:
        node = topology.node
        if self.topologies.get(node) != topology:
            self.topologies[node] = topology
            self._resources.update(name for zone in topology.zones for name in zone.resources)
            again = {uid for uid in self._zones_missing if self.pods[uid].node == node}
            self._zones_missing -= again
            self._look_again(self.pods[uid] for uid in again)

    def _look_again(self, pods: Iterable[KnownPod]) -> None:
        self.annotated.update(pod.uid for pod in pods if pod.annotation)
