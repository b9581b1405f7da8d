"""The cycles in which a pod was tried, and how its waiting reasons changed, from the records of cycles.

Observers of a recorded cycle that is run again: the order of its groups, and the ranking of nodes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.life.why_answers import AttemptChange, AttemptsAnswer
from kaicore.analysis.replay.log_states import events_of, last_events
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.policy import Point, PolicyBand
from kaicore.rules.deciding.cycle_run import CycleRun, run_on
from kaicore.rules.deciding.share import Share
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.waiting_reasons import SingleStartKind, single_start_kind, waiting_reasons
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.node_score import RowScore
from kaicore.rules.engine.placement.placer import PlacingObserver
from kaicore.rules.engine.placement.pod_class import base_key, class_identity, pod_class
from kaicore.rules.engine.policies.book import NO_POLICIES, PolicyBook
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import ClassPending, CycleCompleted, GroupPending, PodObserved
from kaicore.rules.events.reasons import group, node
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.membership import display_key
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import CycleView, WorkView

#: Events before a decision among which its cycle's record mostly is: they are appended together.
MOST_BEFORE = 32_000
#: Cycles that are looked at one by one, the last ones; and of the beginning, to know how each shard counted then.
_ENOUGH, _FIRST = 200, 20
#: How far before a decision its cycle's record is looked for, in events: at first, and then; a cycle that
#: starts a hundred thousand pods has as many events.
_BEFORE = 500, 4000, MOST_BEFORE, 256_000
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
    group.GroupTreeInvalid,
    group.SubGroupNotFound,
    group.SubGroupNotNamed,
    group.OwnerNotFound,
    node.VolumeNotReady,
    node.ResourceClaimNotReady,
)


@dataclass(frozen=True, slots=True)
class RecordedCycle:
    """A cycle's record with its place in the log."""

    position: int
    recorded_at: int
    cycle: CycleCompleted


class CycleBook:
    """Looks up the records of the cycles that decided something, some at once.

    Attributes:
        records: with their events, by the cycle's id.
    """

    def __init__(self, log: EventLog, cluster: str) -> None:
        self.records: dict[str, tuple[Event, CycleCompleted]] = {}
        self._log = log
        self._cluster = cluster

    async def look_up(self, decisions: Iterable[Event]) -> None:
        """Find the records of the cycles that took decisions: each comes right before them, in the same append."""
        wanted = {event.correlation: event.position for event in decisions if event.correlation}
        for before in _BEFORE:
            wanted = {cycle: at for cycle, at in wanted.items() if cycle not in self.records}
            for after, upto in _stretches(wanted.values(), before):
                where = Filter(types=(CycleCompleted.__name__,))
                async for event in events_of(self._log, self._cluster, after=after, upto=upto, where=where):
                    if event.correlation in wanted and isinstance(cycle := decode_payload(event), CycleCompleted):
                        self.records[event.correlation] = event, cycle


def _stretches(positions: Iterable[int], before: int) -> list[tuple[int, int]]:
    """Return the parts of a log that reach so far back from positions, those that overlap as one."""
    stretches: list[tuple[int, int]] = []
    for position in sorted(set(positions)):
        after = max(0, position - before)
        if stretches and after <= stretches[-1][1]:
            stretches[-1] = stretches[-1][0], position
        else:
            stretches.append((after, position))
    return stretches


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
        since: the one with which it began to wait.
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
    alone = single_start_kind(state.workload_index.workloads.get(entry.group))
    reasons = _Reasons(records.classes, entry.group, alone)
    changes: list[AttemptChange] = []
    tried = skipped = 0
    last: RecordedCycle | None = None
    for record in records.last:
        cycle = record.cycle
        reasons.take(cycle)
        if cycle.input_position < records.since:
            # It did not know of the pod yet.
            continue
        last = record
        now: Sequence[CodedReason] = (
            reasons.at(cycle.input_position) if entry.group_problem is None else [entry.group_problem]
        )
        held = bool(now) and all(isinstance(one, _HELD_BACK) for one in now)
        tried, skipped = tried + (not held), skipped + held
        _note(changes, record, now, held=held)
    answer = AttemptsAnswer(
        since=time_text(records.since_at), looked_from=records.looked_from, tried=tried, skipped=skipped
    )
    if last is None:
        return answer
    return msgspec.structs.replace(
        answer,
        cycles=_count(records),
        last_cycle=last.cycle.cycle,
        last_position=last.position,
        last_input_position=last.cycle.input_position,
        last_at=time_text(last.recorded_at),
        changes=changes[-_MOST_CHANGES:],
    )


def _note(changes: list[AttemptChange], record: RecordedCycle, now: Sequence[CodedReason], *, held: bool) -> None:
    codes, message = [reason.code for reason in now], str(now[0]) if now else ""
    if changes and changes[-1].reasons == codes:
        cycles = changes[-1].cycles + 1
        changes[-1] = msgspec.structs.replace(changes[-1], cycles=cycles, message=message, skipped=held)
        return
    change = AttemptChange(
        cycle=record.cycle.cycle,
        position=record.position,
        recorded_at=time_text(record.recorded_at),
        cycles=1,
        reasons=codes,
        message=message,
        skipped=held,
    )
    changes.append(change)


def _count(records: CycleRecords) -> int:
    """Return how many cycles there have been, by the shards' own numbers."""
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


class TriedGroup(Answer, frozen=True, kw_only=True):
    """A group that an action of a cycle took up.

    Attributes:
        action: which, such as `allocate` or `preempt`.
        group: `<kind> <namespace>/<name>`.
        waiting: how many of its pods waited before the cycle.
        placed: how many of them the cycle placed, by all its actions; `nominated` likewise those that it kept room for.
    """

    action: str
    group: str
    queue: str
    waiting: int
    placed: int
    nominated: int


@dataclass(slots=True)
class _Onlooker(PlacingObserver):
    """Notes which groups are taken up."""

    action: str = ""
    taken: list[tuple[str, str]] = field(default_factory=list)

    def begins(self, action: str) -> None:
        self.action = action

    def takes_up(self, group: str) -> None:
        # A decision that goes on step by step appears once in a row.
        if not self.taken or self.taken[-1] != (self.action, group):
            self.taken.append((self.action, group))


def tried_groups(
    state: CycleView, config: EngineConfig, cycle: CycleCompleted, policies: PolicyBook = NO_POLICIES
) -> list[TriedGroup]:
    """Return the groups that a cycle took up, in its order. Raises PolicyMismatch: there is no code of a policy.

    Args:
        state: as it was at the cycle's input position; not changed.
        config: with which the cycle was decided.
    """
    onlooker = _Onlooker()
    run = _run_again(state, config, cycle, policies, onlooker)
    given, result = run.given, run.result
    waiting = {key: len(workload.waiting) for key, workload in given.workloads.items()}
    queues = {key: given.accounts.queue_of(workload.group) for key, workload in given.workloads.items()}
    placed = Counter(state.pods[one.uid].group for one in result.placements)
    nominated = Counter(state.pods[one.uid].group for one in result.nominations)
    return [
        TriedGroup(
            action=action,
            group=display_key(key),
            queue=queues.get(key, ""),
            waiting=waiting.get(key, 0),
            placed=placed[key],
            nominated=nominated[key],
        )
        for action, key in onlooker.taken
    ]


def _run_again(
    state: CycleView, config: EngineConfig, cycle: CycleCompleted, policies: PolicyBook, observer: PlacingObserver
) -> CycleRun:
    """Run a recorded cycle again, about the groups that were its scheduler's."""
    return run_on(
        state,
        config,
        now=cycle.now,
        cycle=cycle.cycle,
        share=Share(state, cycle.shard, config),
        observer=observer,
        policies=policies,
        policies_left_out=cycle.policies_left_out,
    )


#: Nodes that are shown of those that could have taken the pod.
_MOST_RANKED = 5


@dataclass(slots=True)
class PlacementScores:
    """The cycle's knowledge when it put a pod on a node.

    Attributes:
        ranked: nodes that could have taken the pod, by name, the best first; the chosen one is among them.
        ruled_out: why the others could not.
        doubtful: nodes that ranked before the chosen one and admit the pod, but not whatever is not known of them yet.
        bands: of the policies that score nodes, by name, in the order of the settings.
    """

    ranked: list[tuple[str, RowScore]] = field(default_factory=list)
    ruled_out: tuple[Reason, ...] = ()
    able: int = 0
    doubtful: tuple[str, ...] = ()
    bands: Mapping[str, PolicyBand] = field(default_factory=dict)


class _ScoreOnlooker(PlacingObserver):
    """Keeps what was known when a pod was put on a node for the last time."""

    def __init__(self, uid: str, node: str, names: list[str]) -> None:
        self.scores: PlacementScores | None = None
        self._uid = uid
        self._node = node
        self._names = names

    def placing(self, member: Member, row: int, feasible: FeasibleNodes) -> None:
        if member.pod.uid != self._uid or self._names[row] != self._node:
            return
        rows = feasible.ranked_rows().tolist()
        shown = rows[:_MOST_RANKED] if row in rows[:_MOST_RANKED] else [*rows[: _MOST_RANKED - 1], row]
        ranked = [(self._names[one], feasible.row_score(one)) for one in shown]
        doubtful = tuple(self._names[one] for one in feasible.doubtful_before(row))
        self.scores = PlacementScores(ranked, feasible.reasons(), len(rows), doubtful)


def placement_scores(
    state: CycleView,
    config: EngineConfig,
    cycle: CycleCompleted,
    *,
    uid: str,
    node: str,
    policies: PolicyBook = NO_POLICIES,
) -> PlacementScores | None:
    """Run a recorded cycle again and tell what it knew when it placed a pod; None where it does not place it so.

    Raises PolicyMismatch: there is no code of a policy.

    Args:
        state: as it was at the cycle's input position; not changed.
        config: with which the cycle was decided.
    """
    onlooker = _ScoreOnlooker(uid, node, list(state.columns.names))
    result = _run_again(state, config, cycle, policies, onlooker).result
    placed = any(one.uid == uid and one.node == node for one in result.placements)
    if onlooker.scores is None or not placed:
        return None
    scoring = [one for one in policies.policies(config.policies) if Point.SCORE in one[1].points()]
    return replace(onlooker.scores, bands={setting.name: PolicyBand(policy.band) for setting, policy in scoring})
