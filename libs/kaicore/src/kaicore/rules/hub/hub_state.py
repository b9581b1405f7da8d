"""The state of the hub, folded from its own log: clusters, their leases, queues' bounds, and dispatches.

A dispatch goes this way; each step is one event in its stream, appended on the version that the state has:

    Waiting --given--> Given --started--> Started --finished--> Finished
       ^                 |  \\recalled       |recalled
       |<----released----|   Recalled <------+
       |<----returned--------+

`released` needs that the cluster's lease ran out, and that the dispatch has not started: of the two events that a hub
and a binder may append at the same time, released and started, the log takes one only.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kaicore.errors import CorruptLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ReleaseReason
from kaicore.rules.events.quarantine import QuarantinedEvent, quarantined
from kaicore.rules.model.pod import Amounts

#: What the hub is called in the log and on the bus; no cluster may be called so.
HUB = "hub"


class DispatchStage(StrEnum):
    """A dispatch's progress; see the module."""

    WAITING = "Waiting"
    GIVEN = "Given"
    STARTED = "Started"
    RECALLED = "Recalled"
    FINISHED = "Finished"
    WITHDRAWN = "Withdrawn"


#: Nothing becomes of these any more.
ENDED = frozenset({DispatchStage.FINISHED, DispatchStage.WITHDRAWN})
#: These are with a cluster.
HELD = frozenset({DispatchStage.GIVEN, DispatchStage.STARTED, DispatchStage.RECALLED})


@dataclass(slots=True)
class ClusterEntry:
    """A cluster of the hub.

    Attributes:
        registered: as it was registered last.
        drained: whether it is given nothing more.
        removed: whether it is none of the hub's any more.
        lost: whether an operator said, when it was removed, that nothing runs there any more.
        lease_us: the longest of its renewals; 0 before the first.
        lease_version: of the lease's stream.
        renewed_at: when it was renewed last, microseconds since the epoch.
        version: of the cluster's stream.
    """

    registered: payloads.ClusterRegistered
    drained: bool = False
    removed: bool = False
    lost: bool = False
    lease_us: int = 0
    lease_version: int = 0
    renewed_at: int = 0
    version: int = 0


@dataclass(slots=True)
class DispatchEntry:
    """A dispatch.

    Attributes:
        event: id of that event, in hexadecimal digits.
        number: position at which it was submitted; older ones go first.
        submitted_at: when, microseconds since the epoch.
        version: of its stream.
        stage: how far it is.
        cluster: that it is with; the last one, where it has ended.
        term: how often it was given to a cluster.
        since: when its stage began, microseconds since the epoch.
        started: whether the present term has started.
        outcome: of one that has finished.
        refusals: by cluster, why its API server did not take the objects.
        waits: why no cluster takes it, as recorded last.
        given: how the cluster that has it, or had it last, was chosen.
        given_event: id of that event, in hexadecimal digits.
        reason: why it was recalled or released last; empty for never.
        left: by cluster, the last term that it may still have something of although it has it no more.
    """

    submitted: payloads.DispatchSubmitted
    event: str
    number: int
    submitted_at: int
    version: int = 1
    stage: DispatchStage = DispatchStage.WAITING
    cluster: str = ""
    term: int = 0
    since: int = 0
    started: bool = False
    outcome: str = ""
    refusals: dict[str, str] = field(default_factory=dict)
    waits: payloads.DispatchKeptWaiting | None = None
    given: payloads.DispatchGiven | None = None
    given_event: str = ""
    reason: str = ""
    left: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name."""
        return self.submitted.dispatch


@dataclass(slots=True)
class HubState:
    """The hub at one position of its log.

    Attributes:
        position: of the last event folded.
        clusters: by name, also those that were removed.
        bounds: by queue, how much its work may hold in all clusters together.
        versions: of all streams.
        quarantined: events that could not be decoded and were not set aside yet, by position; they say nothing.
    """

    position: int = 0
    clusters: dict[str, ClusterEntry] = field(default_factory=dict)
    dispatches: dict[str, DispatchEntry] = field(default_factory=dict)
    bounds: dict[str, Amounts] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    quarantined: dict[int, QuarantinedEvent] = field(default_factory=dict)

    def fold(self, event: Event) -> None:
        """Take in the next event. Raises CorruptLog: it is not the next one, or no event of a hub."""
        if event.cluster != HUB or event.position != self.position + 1:
            raise CorruptLog(
                f"cluster {HUB}: event {event.position} of cluster {event.cluster} cannot follow {self.position}"
            )
        payload = decode_payload(event)
        if isinstance(payload, payloads.Undecodable | payloads.EventSetAside):
            self.position, self.versions[event.stream] = event.position, event.version
            if isinstance(payload, payloads.EventSetAside):
                self.quarantined.pop(payload.position, None)
            else:
                self.quarantined[event.position] = quarantined(event, payload.error)
            return
        if not isinstance(payload, payloads.HubPayload):
            raise CorruptLog(
                f"cluster {HUB}: event {event.position} ({event.type}) is none of the hub's: a cluster was called "
                f"{HUB} before the hub had a log"
            )
        self.position = event.position
        self.versions[event.stream] = event.version
        if isinstance(payload, payloads.DispatchSubmitted):
            self.dispatches[payload.dispatch] = DispatchEntry(
                payload, event.id.hex, event.position, event.recorded_at, since=event.recorded_at
            )
        elif event.stream.startswith("dispatch/"):
            self._fold_dispatch(event, payload)
        else:
            self._fold_cluster(event, payload)

    def present(self) -> Iterator[tuple[str, ClusterEntry]]:
        """Yield the clusters that were not removed, in order of their names."""
        for name in sorted(self.clusters):
            if not self.clusters[name].removed:
                yield name, self.clusters[name]

    def of_cluster(self, cluster: str) -> list[DispatchEntry]:
        """Return the dispatches that are with a cluster, the oldest first."""
        return [entry for entry in self.dispatches.values() if entry.cluster == cluster and entry.stage in HELD]

    def _fold_cluster(self, event: Event, payload: payloads.HubPayload) -> None:
        registered = isinstance(payload, payloads.ClusterRegistered)
        if not registered and getattr(payload, "cluster", "") not in {"", *self.clusters}:
            # The cluster was never registered.
            return
        match payload:
            case payloads.ClusterRegistered(cluster):
                before = self.clusters.get(cluster)
                entry = self.clusters[cluster] = ClusterEntry(payload, version=event.version)
                if before is not None:
                    entry.lease_version, entry.lease_us = before.lease_version, before.lease_us
            case payloads.ClusterDrained(cluster):
                self.clusters[cluster].drained, self.clusters[cluster].version = True, event.version
            case payloads.ClusterResumed(cluster):
                self.clusters[cluster].drained, self.clusters[cluster].version = False, event.version
            case payloads.ClusterRemoved(cluster, lost):
                entry = self.clusters[cluster]
                entry.removed, entry.lost, entry.version = True, lost, event.version
            case payloads.LeaseRenewed(cluster, _, lease_us):
                entry = self.clusters[cluster]
                # The longest of several holders and of changed settings is waited for.
                entry.lease_us, entry.lease_version = max(entry.lease_us, lease_us), event.version
                entry.renewed_at = event.recorded_at
            case payloads.QueueBounded(queue, limits):
                self.bounds.pop(queue, None)
                if limits:
                    self.bounds[queue] = limits
            case _:
                pass

    def _fold_dispatch(self, event: Event, payload: payloads.HubPayload) -> None:
        entry = self.dispatches.get(event.stream.partition("/")[2])
        if entry is None:
            # The dispatch was never submitted.
            return
        entry.version = event.version
        match payload:
            case payloads.DispatchGiven(_, term, cluster):
                entry.term, entry.cluster, entry.given, entry.waits = term, cluster, payload, None
                entry.given_event, entry.started = event.id.hex, False
                entry.left.pop(cluster, None)
                self._step(entry, DispatchStage.GIVEN, event)
            case payloads.DispatchKeptWaiting():
                entry.waits = payload
            case payloads.DispatchStarted():
                entry.started = True
                self._step(entry, DispatchStage.STARTED, event)
            case payloads.DispatchRecalled(reason=reason):
                entry.reason = reason
                self._step(entry, DispatchStage.RECALLED, event)
            case payloads.DispatchReleased(_, term, cluster, reason):
                entry.left[cluster] = term
                entry.reason = reason
                self._wait(entry, event)
            case payloads.DispatchReturned():
                self._returned(entry, event, payload)
            case payloads.DispatchFinished(outcome=outcome):
                entry.outcome = outcome
                self._step(entry, DispatchStage.FINISHED, event)
            case payloads.DispatchWithdrawn():
                if entry.stage in HELD:
                    entry.left[entry.cluster] = entry.term
                entry.reason = ReleaseReason.WITHDRAWN
                self._step(entry, DispatchStage.WITHDRAWN, event)
            case _:
                pass

    def _returned(self, entry: DispatchEntry, event: Event, returned: payloads.DispatchReturned) -> None:
        if entry.left.get(returned.cluster, 0) <= returned.term:
            entry.left.pop(returned.cluster, None)
        if (entry.cluster, entry.term) == (returned.cluster, returned.term) and entry.stage in HELD:
            if returned.refusal:
                entry.refusals[returned.cluster] = returned.refusal
                entry.reason = ReleaseReason.REFUSED
            self._wait(entry, event)

    def _wait(self, entry: DispatchEntry, event: Event) -> None:
        entry.cluster, entry.started = "", False
        self._step(entry, DispatchStage.WAITING, event)

    @staticmethod
    def _step(entry: DispatchEntry, stage: DispatchStage, event: Event) -> None:
        entry.stage, entry.since = stage, event.recorded_at


def without_hub(clusters: Iterable[str]) -> list[str]:
    """Return the Kubernetes clusters among those that have a log."""
    return [cluster for cluster in clusters if cluster != HUB]


def cluster_stream(cluster: str) -> str:
    """Return the stream of what is decided about a cluster."""
    return f"cluster/{cluster}"


def lease_stream(cluster: str) -> str:
    """Return the stream of a cluster's lease."""
    return f"lease/{cluster}"


def dispatch_stream(dispatch: str) -> str:
    """Return the stream of a dispatch."""
    return f"dispatch/{dispatch}"


def queue_stream(queue: str) -> str:
    """Return the stream of a queue's bound."""
    return f"queue/{queue}"
