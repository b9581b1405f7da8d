"""A story with everything that read models tell of, and the tables that they make of it, without a database."""

from collections.abc import Sequence

import msgspec
from kaicore.analysis.ask.projections.projection import HOUR_US, MINUTE_US, Projection
from kaicore.analysis.ask.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour, RowChanges
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.cluster.hierarchy import queue


def story() -> list[Event]:
    """Three pods that run, of which one ends and one is rejected; one that never fits; over some hours."""
    cluster = Cluster("c1")
    zone = amounts(cpu=16, memory=64, gpu=2)
    cluster.add_node("n0", zone, zone)
    cluster.record("queue/team", payloads.QueueObserved(queue("team", quota=4)))
    label = {KAI_QUEUE_LABEL: "team"}
    cluster.now = cluster.now // HOUR_US * HOUR_US + 50 * MINUTE_US
    created_at = cluster.now // 1_000_000
    pods = [cluster.add_pod(pod(name, cpu=2, gpu=1, labels=label, created_at=created_at)) for name in ("a", "b", "c")]
    cluster.add_pod(pod("never", cpu=1, gpu=9, labels=label))
    cluster.cycle()
    cluster.now += MINUTE_US
    for one in pods:
        bound = payloads.PodBound(uid=one.uid, namespace=one.namespace, name=one.name, node="n0")
        cluster.record(f"pod/{one.uid}", bound, subject=one.subject)
    cluster.now += 30 * MINUTE_US
    a, b, c = (msgspec.structs.replace(one, node_name="n0", resource_version="2") for one in pods)
    for one, phase in ((a, "Running"), (b, "Running")):
        seen = msgspec.structs.replace(one, phase=phase)
        cluster.record(f"pod/{one.uid}", payloads.PodObserved(seen), subject=one.subject)
    rejected = payloads.PodRejected(
        uid=c.uid, namespace=c.namespace, name=c.name, node="n0", reason="TopologyAffinityError", message=""
    )
    cluster.record(f"pod/{c.uid}", rejected, subject=c.subject)
    cluster.now += 3 * HOUR_US
    ended = msgspec.structs.replace(a, phase="Succeeded", resource_version="3")
    cluster.record(f"pod/{a.uid}", payloads.PodObserved(ended), subject=a.subject)
    cluster.delete_pod(ended)
    cluster.now += MINUTE_US
    cluster.cycle()
    return cluster.events


class Tables:
    """The store's contents, as it keeps them."""

    def __init__(self) -> None:
        self.pods: dict[str, PodHistory] = {}
        self.occupancy: dict[int, Occupancy] = {}
        self.queues: dict[tuple[int, str, str], QueueHour] = {}
        self.decisions: dict[int, DecisionsHour] = {}

    def save(self, changes: RowChanges) -> None:
        self.pods.update({row.uid: row for row in changes.pods})
        self.occupancy.update({row.at: row for row in changes.occupancy})
        for use in changes.queues:
            key = (use.at, use.queue, use.resource)
            self.queues[key] = use if (before := self.queues.get(key)) is None else before.plus(use)
        for hour in changes.decisions:
            earlier = self.decisions.get(hour.at)
            self.decisions[hour.at] = hour if earlier is None else earlier.plus(hour)


def projected(events: Sequence[Event], restarts: Sequence[int] = ()) -> Tables:
    """Return the tables that events make, read on after a restart at each of some positions."""
    tables = Tables()
    done = 0
    for stop in (*sorted(restarts), len(events)):
        state = ClusterState(events[0].cluster).fold_all(events[:done])
        projection = Projection(state, [row for row in tables.pods.values() if not row.gone_at])
        for event in events[done:stop]:
            projection.take(event)
        tables.save(projection.changes())
        done = stop
    return tables
