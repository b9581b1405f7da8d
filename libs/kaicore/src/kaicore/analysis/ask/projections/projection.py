"""The fold of events into read models, without I/O and without a clock. The same events give the same rows, wherever
the reading is interrupted.

A row takes what it needs of the past from the cluster's state, or from the rows of pods that still exist. Figures over
time are taken at the end of each minute in which an event was recorded. They hold until the next minute with an event.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from kaicore.analysis.ask.projections.capacity import gpu_columns
from kaicore.analysis.ask.projections.rows import DecisionsHour, Occupancy, PodHistory, QueueHour, RowChanges
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import user_of
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.queues.tree import GPU
from kaicore.rules.state.accuracy import fold_counting
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.agreement import Agreement
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage, gpus_asked
from kaicore.rules.state.registries.queue_registry import figures
from kaicore.rules.state.views import FleetView

#: The version of the rows; another one makes all of them anew. Since 4, GPUs are counted in thousandths;
#: since 5, pods have a user and why they ended; since 6, the queue that they are given; since 7, what ends keeps it.
PROJECTION_SCHEMA = 7

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US

#: Of a longer silence, as after a jump of the clock, the use by queues is kept for its last days: charts show 90.
_MOST_SILENCE_US = 100 * 24 * HOUR_US

#: Resources with their use by queues kept.
_RESOURCES = (GPU, CPU, MEMORY)


class Projection:
    """Takes in a cluster's events in order."""

    def __init__(self, state: ClusterState, pods: Iterable[PodHistory]) -> None:
        """Args:
        state: after the last event that was taken in; it is folded on.
        pods: rows, as of there, of the pods that are not gone.
        """
        self.state = state
        self._pods = {row.uid: row for row in pods}
        self._changed: dict[str, PodHistory] = {}
        self._occupancy: list[Occupancy] = []
        self._queues: dict[tuple[int, str, str], Counter[str]] = {}
        self._decisions: dict[int, Counter[str]] = {}

    def take(self, event: Event) -> None:
        """Take in the next event.

        Raises:
            CorruptLog: it is not the next one.
            UnknownEvent: this program is too old for it.
        """
        self._sample(event.recorded_at)
        payload: Any = decode_payload(event)
        change = fold_counting(self.state, event, payload)
        counted = _COUNTED.get(type(payload))
        if counted is not None:
            self._decided(event.recorded_at)[counted] += 1
        if change is not None:
            decided = self._decided(change.decided_at)
            for kind, by in change.agreement.items():
                decided["contradicted" if kind is Agreement.DIFFERENT else "agreed"] += by
        if isinstance(payload, payloads.PodObserved):
            self._pod_observed(payload, event)
        elif isinstance(payload, payloads.PodsLeftWaiting):
            self._left_waiting(payload, event)
        elif (row := self._pods.get(getattr(payload, "uid", ""))) is not None:
            self._pod_changed(row, payload, event)

    def _decided(self, at: int) -> Counter[str]:
        """Return the counts of the hour of a time."""
        hour = at // HOUR_US * HOUR_US
        counts = self._decisions.get(hour)
        if counts is None:
            counts = self._decisions[hour] = Counter()
        return counts

    @property
    def pods(self) -> Collection[str]:
        """The uids of the pods that are not gone."""
        return self._pods.keys()

    def changes(self) -> RowChanges:
        """Return what the events since the last call change, and begin anew."""
        changes = RowChanges(
            pods=list(self._changed.values()),
            occupancy=self._occupancy,
            queues=[
                QueueHour(at=at, queue=queue, resource=resource, **{name: counts[name] for name in _QUEUE_FIGURES})
                for (at, queue, resource), counts in self._queues.items()
            ],
            decisions=[
                DecisionsHour(at=at, **{name: count for name, count in counts.items() if count})
                for at, counts in self._decisions.items()
                if any(counts.values())
            ],
        )
        self._changed, self._occupancy, self._queues, self._decisions = {}, [], {}, {}
        return changes

    # Figures over time.

    def _sample(self, now: int) -> None:
        """Take the figures of the minute that ends before `now`, and count them up to the minute of `now`."""
        state = self.state
        began, ends = state.recorded_at // MINUTE_US * MINUTE_US, now // MINUTE_US * MINUTE_US
        if not state.recorded_at or ends <= began:
            return
        self._occupancy.append(occupancy(state))
        began = max(began, ends - _MOST_SILENCE_US)
        by_queue = figures(state.queue_accounts(state.config(), now=state.recorded_at), thousandths=True)
        for name, queue in by_queue.items():
            for resource in _RESOURCES:
                amounts = {
                    "allocated": queue.allocated.get(resource, 0),
                    "requested": queue.requested.get(resource, 0),
                    "fair_share": queue.fair_share.get(resource, 0),
                }
                if amounts["allocated"] or amounts["requested"]:
                    self._count_queue(name, resource, amounts, began, ends)

    def _count_queue(self, queue: str, resource: str, amounts: Amounts, began: int, ends: int) -> None:
        while began < ends:
            hour = began // HOUR_US * HOUR_US
            until = min(ends, hour + HOUR_US)
            seconds = (until - began) // 1_000_000
            counts = self._queues.setdefault((hour, queue, resource), Counter())
            counts["seconds"] += seconds
            for name, amount in amounts.items():
                counts[name] += amount * seconds
            began = until

    # Pods.

    def _pod_observed(self, payload: payloads.PodObserved, event: Event) -> None:
        pod = payload.pod
        entry = self.state.pods.get(pod.uid)
        if entry is None:
            return
        row = self._pods.get(pod.uid) or first_row(pod, at=event.recorded_at)
        finished = entry.stage is Stage.FINISHED
        rejected = finished and (entry.rejection is not None or not pod.finished)
        self._change(
            row,
            event,
            **own_changes(row, payload, at=event.recorded_at),
            created_at=pod.created_at * 1_000_000,
            gpus=row.gpus if row.placements and not entry.gpus else gpus_asked(entry),
            started_at=row.started_at or entry.started_at,
            finished_at=row.finished_at or (event.recorded_at if finished else 0),
            outcome="Rejected" if rejected else pod.phase,
            user=user_of(pod),
            why_ended=(finished and pod.phase != "Succeeded" and pod.reason) or row.why_ended,
            # Of a job that is deleted, the owner goes first, which its last pods would take for another queue.
            **({} if row.queue and (finished or pod.deletion_at is not None) else self._belongings(entry)),
        )

    def _belongings(self, entry: PodEntry) -> dict[str, Any]:
        queue = self.state.queue_registry.tree.name_for(*self.state.queue_of(entry))
        return {"group": "" if entry.group.startswith(f"{POD}/") else entry.group, "queue": queue}

    def _left_waiting(self, payload: payloads.PodsLeftWaiting, event: Event) -> None:
        for waiting in payload.pods:
            row, entry = self._pods.get(waiting.uid), self.state.pods.get(waiting.uid)
            if row is not None and entry is not None:
                tried_at = row.tried_at or event.recorded_at
                self._change(row, event, tried_at=tried_at, **self._belongings(entry))

    def _pod_changed(self, row: PodHistory, payload: Any, event: Event) -> None:
        """Take in what happened to a pod, beside what was seen of it."""
        at = event.recorded_at
        fields = own_changes(row, payload, at=at)
        if not fields:
            return
        match payload:
            case payloads.PodPlaced():
                if (entry := self.state.pods.get(payload.uid)) is None:
                    return
                fields |= {"gpus": gpus_asked(entry), "tried_at": row.tried_at or at}
            case payloads.PodRejected():
                finished_at = row.finished_at or at
                fields |= {"finished_at": finished_at, "outcome": "Rejected", "why_ended": payload.reason}
            case payloads.EvictionDecided():
                made_way = f" for {payload.preemptor}" if payload.preemptor else ""
                fields["why_ended"] = f"{payload.why}{made_way}"
            case payloads.RepairRequested():
                fields["why_ended"] = "Repaired"
        self._change(row, event, **fields)
        if isinstance(payload, payloads.PodDeleted):
            del self._pods[payload.uid]

    def _change(self, row: PodHistory, event: Event, **fields: Any) -> None:
        changed = msgspec.structs.replace(row, position=event.position, **fields)
        self._pods[row.uid] = self._changed[row.uid] = changed


def first_row(pod: Pod, *, at: int) -> PodHistory:
    """Return the row of a pod that is seen first (`at`: when that was recorded)."""
    return PodHistory(uid=pod.uid, namespace=pod.namespace, name=pod.name, seen_at=at)


#: The columns of a pod's row that its own events alone make, with `own_changes`.
OWN_COLUMNS = (
    *("namespace", "name", "node", "cycle", "seen_at", "decided_at", "bound_at", "gone_at"),
    *("placements", "bind_failures", "rejections", "evictions"),
)


def own_changes(row: PodHistory, payload: payloads.Payload, *, at: int) -> dict[str, Any]:
    """Return what an event of a pod changes in its row by itself (`at`: when it was recorded)."""
    match payload:
        case payloads.PodObserved(pod):
            return {"node": pod.node_name or row.node}
        case payloads.PodPlaced():
            return {
                "node": payload.node,
                "cycle": payload.cycle,
                "decided_at": at,
                "placements": row.placements + 1,
            }
        case payloads.PodBound():
            return {"node": payload.node, "bound_at": at}
        case payloads.BindFailed():
            return {"bind_failures": row.bind_failures + 1}
        case payloads.PodRejected():
            return {"rejections": row.rejections + 1}
        case payloads.EvictionDecided() | payloads.RepairRequested():
            return {"evictions": row.evictions + 1}
        case payloads.PodDeleted():
            return {"gone_at": at}
        case _:
            return {}


def occupancy(state: FleetView) -> Occupancy:
    """Return how a cluster stands, as the row of the minute of its last event."""
    columns = gpu_columns(state)
    gpus = columns.sum()
    waiting = [state.pods[uid] for uid in state.waiting]
    stages = Counter(entry.stage for entry in state.pods.values())
    return Occupancy(
        at=state.recorded_at // MINUTE_US * MINUTE_US,
        position=state.position,
        nodes=int(columns.present.sum()),
        gpus=gpus.total,
        gpus_held=gpus.held,
        gpus_releasing=gpus.releasing,
        gpus_free=gpus.free,
        gpus_stranded=gpus.stranded,
        gpus_out=gpus.out,
        gpus_waiting=sum(map(gpus_asked, waiting)),
        pods_waiting=len(waiting),
        pods_placed=stages[Stage.PLACED],
        pods_bound=stages[Stage.BOUND],
    )


_QUEUE_FIGURES = ("seconds", "allocated", "requested", "fair_share")

#: Events that are counted by the hour, and as what.
_COUNTED: dict[type[payloads.Payload], str] = {
    payloads.CycleCompleted: "cycles",
    payloads.PodPlaced: "placed",
    payloads.PodBound: "bound",
    payloads.BindFailed: "bind_failures",
    payloads.PodRejected: "rejected",
    payloads.EvictionDecided: "evictions",
    payloads.RepairRequested: "evictions",
    payloads.PredictionMissed: "missed",
}
