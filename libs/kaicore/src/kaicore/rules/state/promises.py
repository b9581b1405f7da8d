"""Check for resources of a node that were promised twice: the rule for all decisions, as a function over a log.

At every `PodPlaced` the charged zones and the node must have room for all pods that the log knew to be there, this pod
included. Facts that no scheduler could know at that position are no violation: a kubelet freed something before the API
reported it, a pod without a decision came to a node, a node shrank. Facts that report such a case are recognized by the
position at which the log learned of it.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.quantity import format_amount
from kaicore.rules.numa.columns import Ints
from kaicore.rules.state.cluster_state import ClusterState

#: Entries that are kept of each kind; beyond them only their number is.
MOST_KEPT = 20


class OverCommitOrigin(StrEnum):
    """The cause of more use of a zone or node than it has.

    Attributes:
        PROMISED: a decision, although the log knew: this must not happen.
        OBSERVED: a kubelet gave a pod what the log held to be another's, as when it freed before the API said so.
        FOREIGN: a pod is there that no decision placed there.
        SHRUNK: the node has less than before.
    """

    PROMISED = "promised"
    OBSERVED = "observed"
    FOREIGN = "foreign"
    SHRUNK = "shrunk"


_ORIGINS: dict[type[payloads.Payload], OverCommitOrigin] = {
    payloads.PlacementObserved: OverCommitOrigin.OBSERVED,
    payloads.PodObserved: OverCommitOrigin.FOREIGN,
    payloads.NodeObserved: OverCommitOrigin.SHRUNK,
    payloads.TopologyObserved: OverCommitOrigin.SHRUNK,
    payloads.TopologyDeleted: OverCommitOrigin.SHRUNK,
}


@dataclass(frozen=True, slots=True)
class OverCommit:
    """More is held of something than there is.

    Attributes:
        position: of the event that brought it.
        pod: the pod that was placed, `namespace/name`; empty where none was.
        zone: which of its zones; empty for the node as a whole.
        used: what all pods hold together, in the resource's unit.
    """

    position: int
    origin: OverCommitOrigin
    pod: str
    node: str
    zone: str
    resource: str
    used: int
    allocatable: int

    def __str__(self) -> str:
        pod = f" pod {self.pod}:" if self.pod else ""
        zone = f" zone {self.zone}:" if self.zone else ""
        return (
            f"position {self.position}:{pod} node {self.node}:{zone} {self.resource}: "
            f"{format_amount(self.resource, self.used)} of {format_amount(self.resource, self.allocatable)} held "
            f"({self.origin})"
        )


@dataclass(slots=True)
class PromiseReport:
    """A log's account of its decisions.

    Attributes:
        decisions: how many `PodPlaced` were checked.
        twice: what was promised twice; the first `MOST_KEPT` of it.
        brought: what facts brought; the first `MOST_KEPT` of it.
    """

    decisions: int = 0
    twice: list[OverCommit] = field(default_factory=list)
    brought: list[OverCommit] = field(default_factory=list)
    counts: Counter[OverCommitOrigin] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """True if nothing was promised twice."""
        return not self.twice

    def add(self, over_commit: OverCommit) -> None:
        """Count something, and keep it if it is among the first."""
        self.counts[over_commit.origin] += 1
        kept = self.twice if over_commit.origin is OverCommitOrigin.PROMISED else self.brought
        if len(kept) < MOST_KEPT:
            kept.append(over_commit)


#: Zone index, -1 for the node as a whole, and resource.
_Cell = tuple[int, str]


class PromiseCheck:
    """Takes a cluster's events in order."""

    def __init__(self, state: ClusterState) -> None:
        """Args: state: at the position to begin at; folded on as events are taken."""
        self.state = state
        self.report = PromiseReport()
        #: By node, what there is too much of.
        self._over: dict[str, frozenset[_Cell]] = {}

    def take(self, event: Event) -> None:
        """Fold the next event and see what it brings."""
        payload = decode_payload(event)
        before = self._nodes(payload)
        self.state.fold(event)
        if isinstance(payload, payloads.PodPlaced):
            self._check(payload, event)
        for node in sorted({*before, *self._nodes(payload)}):
            self._look(node, payload, event)

    def _nodes(self, payload: payloads.Payload) -> set[str]:
        """Return the nodes that an event is about, as far as the state knows."""
        match payload:
            case payloads.NodeObserved(node=observed):
                return {observed.name}
            case payloads.TopologyObserved(topology=topology):
                return {topology.node}
            case payloads.PodObserved(pod=pod):
                entry = self.state.pods.get(pod.uid)
            case payloads.PodDeleted(uid=uid):
                entry = self.state.pods.get(uid)
            case (
                payloads.TopologyDeleted()
                | payloads.PlacementObserved()
                | payloads.PodPlaced()
                | payloads.PodRejected()
                | payloads.BindFailed()
            ):
                return {payload.node}
            case _:
                return set()
        return {entry.node} if entry is not None and entry.node else set()

    def _check(self, payload: payloads.PodPlaced, event: Event) -> None:
        entry = self.state.pods.get(payload.uid)
        if entry is None or entry.charged_at != event.position or not entry.charged:
            return
        self.report.decisions += 1
        taken: set[_Cell] = {(-1, resource) for resource, amount in entry.requests.items() if amount}
        config = self.state.config()
        if config.numa and config.reconstruct_available:
            # Otherwise the zones were not decided on, or by what an exporter published.
            taken |= entry.zone_charge.certain
        for cell in sorted(taken & self._too_much(payload.node)):
            self._add(cell, payload.node, OverCommitOrigin.PROMISED, event)

    def _look(self, node: str, payload: payloads.Payload, event: Event) -> None:
        over = self._too_much(node)
        origin = _ORIGINS.get(type(payload))
        if origin is not None:
            for cell in sorted(over - self._over.get(node, frozenset())):
                self._add(cell, node, origin, event)
        if over:
            self._over[node] = over
        else:
            self._over.pop(node, None)

    def _too_much(self, node: str) -> frozenset[_Cell]:
        columns = self.state.columns
        row = columns.rows.get(node)
        if row is None or columns.facts[row] is None:
            return frozenset()
        zones, names = columns.zones, list(columns.resources)
        over = {(-1, names[column]) for column in (columns.used[row] > columns.allocatable[row]).nonzero()[0]}
        count, zone_names = int(zones.zone_count[row]), list(zones.resources)
        cells = (self._held(row)[:count] > zones.allocatable[row, :count]).nonzero()
        over.update((int(zone), zone_names[column]) for zone, column in zip(*cells, strict=True))
        return frozenset(over)

    def _held(self, row: int) -> Ints:
        """Return what is certainly held of each zone and resource: what may be elsewhere as well is no promise."""
        zones = self.state.columns.zones
        held: Ints = zones.used[row] - zones.repeated[row]
        return held

    def _add(self, cell: _Cell, node: str, origin: OverCommitOrigin, event: Event) -> None:
        columns = self.state.columns
        zone, resource = cell
        row, name = columns.rows[node], ""
        if zone < 0:
            column = columns.resources[resource]
            used, allocatable = columns.used[row, column], columns.allocatable[row, column]
        else:
            topology, column = columns.topologies[row], columns.zones.resources[resource]
            name = topology.zones[zone].name if topology is not None else str(zone)
            used, allocatable = self._held(row)[zone, column], columns.zones.allocatable[row, zone, column]
        pod = event.subject if event.stream.startswith("pod/") else ""
        self.report.add(OverCommit(event.position, origin, pod, node, name, resource, int(used), int(allocatable)))
