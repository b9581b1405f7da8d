"""The tables of `kai export --format parquet`: a log as rows, streamed, without I/O.

Rows are those of the read models where there are such (`rows`), and one per decision or zone otherwise. Fields that end
in `_at`, and `at`, are microseconds since the epoch, 0 for never. Amounts are millicores, bytes, counts, and
thousandths of GPUs. What a row means changes only with `TABLES_SCHEMA`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kaicore.analysis.ask.projections.projection import HOUR_US, Projection
from kaicore.analysis.ask.projections.rows import Occupancy, PodHistory, QueueHour
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import Placement
from kaicore.rules.state.cluster_state import ClusterState

#: Rises when a column goes or means something else; new columns do not raise it.
TABLES_SCHEMA = 1


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An object that makes pods a group, as it was seen last.

    Attributes:
        kind: with its API group.
        queue: that it names; empty for none, its pods may.
        gone_at: it was deleted.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    queue: str = ""
    priority_class: str = ""
    created_at: int = 0
    seen_at: int = 0
    gone_at: int = 0
    position: int = 0


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a pod.

    Attributes:
        decision: the event's type: PodPlaced, PodNominated, NominationCleared, EvictionDecided or RepairRequested.
        group: key of the pod's group, where the event names it.
        reason: of an eviction, or why room is no longer kept; empty for none.
        preemptor: key of the group that an evicted pod made way for.
        lost_gpu_seconds: the work that an evicted pod lost.
    """

    position: int
    at: int
    decision: str
    cycle: str
    uid: str
    namespace: str
    name: str
    node: str
    group: str = ""
    reason: str = ""
    preemptor: str = ""
    lost_gpu_seconds: int = 0


class ZonePart(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of a resource that a pod has in a NUMA zone of its node.

    Attributes:
        source: `exporter` or `annotation` of an observation; empty for a prediction.
    """

    position: int
    at: int
    uid: str
    namespace: str
    name: str
    node: str
    zone: str
    resource: str
    amount: int
    source: str = ""


#: The tables with their rows.
TABLES: dict[str, type[msgspec.Struct]] = {
    "pods": PodHistory,
    "groups": GroupRecord,
    "decisions": DecisionRecord,
    "placements": ZonePart,
    "observations": ZonePart,
    "usage": QueueHour,
    "occupancy": Occupancy,
}

_DECISIONS = (
    payloads.PodPlaced,
    payloads.PodNominated,
    payloads.NominationCleared,
    payloads.EvictionDecided,
    payloads.RepairRequested,
)

#: Types of the events that tables are made from, except those with rows of read models: pods, usage and occupancy.
TYPES = names_in_logs(
    kind.__name__
    for kind in (
        payloads.GroupSourceObserved,
        payloads.GroupSourceDeleted,
        payloads.PlacementObserved,
        *_DECISIONS,
    )
)


class Tables:
    """Takes in a cluster's events in order, and gives rows in batches; a row is given once, when it is final."""

    def __init__(self, state: ClusterState | None) -> None:
        """Args:
        state: before the first event; it is folded on. None where others have the rows of read models: then only
            events of `TYPES` are needed.
        """
        self._projection = None if state is None else Projection(state, ())
        self._hours: dict[tuple[int, str, str], QueueHour] = {}
        self._pods: dict[str, PodHistory] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._rows: dict[str, list[msgspec.Struct]] = {name: [] for name in TABLES}

    def take(self, event: Event) -> None:
        """Take in the next event.

        Raises:
            CorruptLog: it is not the next one.
            UnknownEvent: this program is too old for it.
        """
        payload: Any = decode_payload(event)
        if self._projection is not None:
            self._projection.take(event)
        match payload:
            case payloads.GroupSourceObserved():
                self._group_seen(payload, event)
            case payloads.GroupSourceDeleted():
                self._group_gone(payload, event)
            case payloads.PlacementObserved():
                self._rows["observations"] += _zones(payload, event, payload.placement, payload.source)
            case _ if isinstance(payload, _DECISIONS):
                self._rows["decisions"].append(_decision(payload, event))
                if isinstance(payload, payloads.PodPlaced) and payload.placement is not None:
                    self._rows["placements"] += _zones(payload, event, payload.placement)

    def batch(self, *, last: bool = False) -> dict[str, list[msgspec.Struct]]:
        """Return the rows that became final since the last call, by table; `last` for all that are left."""
        rows, self._rows = self._rows, {name: [] for name in TABLES}
        if self._projection is not None:
            self._add_read_models(rows, self._projection, last=last)
        if last:
            rows["groups"] += self._groups.values()
        return rows

    def _add_read_models(self, rows: dict[str, list[msgspec.Struct]], projection: Projection, *, last: bool) -> None:
        changes = projection.changes()
        for row in changes.pods:
            self._pods[row.uid] = row
        gone = [row for row in self._pods.values() if last or row.gone_at]
        for row in gone:
            del self._pods[row.uid]
        for hour in changes.queues:
            key = hour.at, hour.queue, hour.resource
            self._hours[key] = hour if (before := self._hours.get(key)) is None else before.plus(hour)
        over = [key for key in self._hours if last or key[0] + HOUR_US <= projection.state.recorded_at]
        rows["pods"] += gone
        rows["usage"] += [self._hours.pop(key) for key in over]
        rows["occupancy"] += changes.occupancy

    def _group_seen(self, payload: payloads.GroupSourceObserved, event: Event) -> None:
        source = payload.source
        before = self._groups.get(source.uid)
        named = {
            name: getattr(source, name) for name in ("kind", "namespace", "name", "uid", "queue", "priority_class")
        }
        self._groups[source.uid] = GroupRecord(
            **named,
            created_at=source.created_at * 1_000_000,
            seen_at=event.recorded_at if before is None else before.seen_at,
            position=event.position,
        )

    def _group_gone(self, payload: payloads.GroupSourceDeleted, event: Event) -> None:
        if (group := self._groups.pop(payload.uid, None)) is not None:
            gone = msgspec.structs.replace(group, gone_at=event.recorded_at, position=event.position)
            self._rows["groups"].append(gone)


def _decision(payload: Any, event: Event) -> DecisionRecord:
    fields: dict[str, Any] = {name: getattr(payload, name, "") or "" for name in ("group", "reason", "preemptor")}
    lost = getattr(payload, "lost_gpu_seconds", 0)
    about = _about(payload, event)
    return DecisionRecord(decision=event.type, cycle=payload.cycle, lost_gpu_seconds=lost, **about, **fields)


def _about(payload: Any, event: Event) -> dict[str, Any]:
    """Return the fields that name an event, its pod and its node."""
    named = {name: getattr(payload, name) for name in ("uid", "namespace", "name", "node")}
    return {"position": event.position, "at": event.recorded_at, **named}


def _zones(payload: Any, event: Event, placement: Placement, source: str = "") -> Iterator[ZonePart]:
    about = _about(payload, event)
    for zone in placement.zone_amounts():
        for resource, amount in zone.amount.items():
            yield ZonePart(zone=zone.zone, resource=resource, amount=amount, source=source, **about)
