"""The cycles in which a pod was tried, and how its waiting reasons changed, from the records of cycles."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.why_answers import AttemptChange, AttemptsAnswer
from kaicore.analysis.replay.log_states import last_events
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.engine.explain.waiting_reasons import SingleStartKind, waiting_reasons
from kaicore.rules.engine.placement.pod_class import base_key, class_identity, pod_class
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ClassPending, CycleCompleted, GroupPending, PodObserved
from kaicore.rules.events.reasons import devices, group, pods_nearby
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import WorkView

#: Cycles that are looked at one by one, the last ones; and of the beginning, to know how each shard counted then.
_ENOUGH, _FIRST = 200, 20
#: Changes of reasons that are shown, the last ones.
_MOST_CHANGES = 20

#: For these a cycle tries no node.
_HELD_BACK = (
    group.SchedulingGated,
    group.Unsupported,
    group.Malformed,
    group.FlavorNotFound,
    group.GangIncomplete,
    group.GangGroupWaits,
    group.WaitsAfterFailedBinds,
    group.GroupNotFound,
    group.PodGroupNotInWorkload,
    group.SubGroupNotFound,
    group.SubGroupNotNamed,
    group.OwnerNotFound,
    pods_nearby.VolumeNotReady,
    devices.ResourceClaimNotReady,
)


@dataclass(frozen=True, slots=True)
class RecordedCycle:
    """A cycle's record with its place in the log."""

    position: int
    recorded_at: int
    cycle: CycleCompleted


@dataclass(frozen=True, slots=True)
class CycleRecords:
    """The cycles since a pod has waited, as the log has them.

    Attributes:
        since: position from which on it has waited; `since_at` is when that was recorded.
        first: the first cycles of that time.
        last: the last ones, in order; all of them where `looked_from` is 0.
        looked_from: position after which the last ones are.
        classes: the classes of which the pod was, as it was seen, each with the position from which on.
    """

    since: int
    since_at: int
    first: Sequence[RecordedCycle] = ()
    last: Sequence[RecordedCycle] = ()
    looked_from: int = 0
    classes: Sequence[tuple[int, str]] = ()


async def cycle_records(log: EventLog, cluster: str, own: Sequence[Event], *, since: Event, upto: int) -> CycleRecords:
    """Read the cycles since an event, by the index of types, so that it takes no longer for a longer log.

    Args:
        log: the cluster's.
        own: the events of the pod.
        since: the one with which it began to wait.
        upto: the last position that counts.
    """
    observed = ((event.position, decode_payload(event)) for event in own)
    classes = [
        (position, pod_class(payload.pod, class_identity(payload.pod)).key)
        for position, payload in observed
        if isinstance(payload, PodObserved)
    ]
    where = Filter(types=(CycleCompleted.__name__,))
    first = await log.read(cluster, after=since.position, upto=upto, limit=_FIRST, where=where)
    last, after = await last_events(log, cluster, where, after=since.position, upto=upto, enough=_ENOUGH)
    looked_from = 0 if after == since.position else after
    return CycleRecords(since.position, since.recorded_at, _recorded(first), _recorded(last), looked_from, classes)


def _recorded(events: Sequence[Event]) -> list[RecordedCycle]:
    decoded = ((event, decode_payload(event)) for event in events)
    return [
        RecordedCycle(event.position, event.recorded_at, cycle)
        for event, cycle in decoded
        if isinstance(cycle, CycleCompleted)
    ]


@dataclass(slots=True)
class _Reasons:
    """The records of cycles about a pod's class and group, read one after the other."""

    classes: Sequence[tuple[int, str]]
    group: str
    alone: SingleStartKind | None
    by_class: dict[str, dict[str, ClassPending]] = field(default_factory=dict)
    by_group: dict[str, GroupPending] = field(default_factory=dict)

    def take(self, cycle: CycleCompleted) -> None:
        for one in cycle.groups:
            if one.group == self.group:
                if one.pods:
                    self.by_group[cycle.shard] = one
                else:
                    self.by_group.pop(cycle.shard, None)
        for pending in cycle.pending:
            self.by_class.setdefault(base_key(pending.pod_class), {})[cycle.shard] = pending

    def at(self, position: int) -> list[CodedReason]:
        """Return why the pod waited, as a cycle recorded it that knew this position."""
        key = next((key for since, key in reversed(self.classes) if since <= position), "")
        return waiting_reasons(self.by_group, self.by_class.get(key, {}), alone=self.alone)


def attempts(state: WorkView, entry: PodEntry, records: CycleRecords) -> AttemptsAnswer:
    """Return in which cycles a waiting pod was tried."""
    workload = state.workload_index.workloads.get(entry.group)
    alone = None
    if workload is not None and not workload.is_gang:
        alone = SingleStartKind(workload.group.queue, workload.group.priority)
    reasons = _Reasons(records.classes, entry.group, alone)
    changes: list[AttemptChange] = []
    tried = skipped = 0
    last: CycleCompleted | None = None
    for record in records.last:
        cycle = record.cycle
        reasons.take(cycle)
        if cycle.input_position < records.since:
            # It did not know of the pod yet.
            continue
        last = cycle
        now: Sequence[CodedReason] = (
            reasons.at(cycle.input_position) if entry.group_problem is None else [entry.group_problem]
        )
        held = bool(now) and all(isinstance(one, _HELD_BACK) for one in now)
        tried, skipped = tried + (not held), skipped + held
        _note(changes, record, now, held=held)
    return AttemptsAnswer(
        since=time_text(records.since_at),
        cycles=_count(records, last),
        tried=tried,
        skipped=skipped,
        last_cycle="" if last is None else last.cycle,
        last_position=0 if last is None else records.last[-1].position,
        last_input_position=0 if last is None else last.input_position,
        last_at="" if last is None else time_text(records.last[-1].recorded_at),
        looked_from=records.looked_from,
        changes=changes[-_MOST_CHANGES:],
    )


def _note(changes: list[AttemptChange], record: RecordedCycle, now: Sequence[CodedReason], *, held: bool) -> None:
    codes = [reason.code for reason in now]
    cycles = 1
    if changes and changes[-1].reasons == codes:
        before = changes.pop()
        cycles, cycle_id, position, at = before.cycles + 1, before.cycle, before.position, before.recorded_at
    else:
        cycle_id, position, at = record.cycle.cycle, record.position, time_text(record.recorded_at)
    changes.append(
        AttemptChange(
            cycle=cycle_id,
            position=position,
            recorded_at=at,
            cycles=cycles,
            reasons=codes,
            message=str(now[0]) if now else "",
            skipped=held,
        )
    )


def _count(records: CycleRecords, last: CycleCompleted | None) -> int:
    """Return how many cycles there have been, by the shards' own numbers."""
    if last is None:
        return 0
    first: dict[str, int] = {}
    latest: dict[str, int] = {}
    for record in records.first:
        if record.cycle.input_position >= records.since:
            first.setdefault(record.cycle.shard, _number(record.cycle))
    for record in records.last:
        if record.cycle.input_position >= records.since:
            latest[record.cycle.shard] = _number(record.cycle)
    return sum(number - first.get(shard, number) + 1 for shard, number in latest.items())


def _number(cycle: CycleCompleted) -> int:
    """Return the number of a cycle in its shard: `default/12` is the twelfth."""
    return int(cycle.cycle.rpartition("/")[2])
