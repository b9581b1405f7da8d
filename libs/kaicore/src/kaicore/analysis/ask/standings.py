"""The order of waiting groups, for `kai priority`: taken from the order by which a cycle takes them up.

The keys are those of `GroupOrder`, and the names of their parts stand beside the keys. So this answer and the engine
cannot disagree. It is the order before anything starts: each start moves its queue back.
"""

from typing import NamedTuple

from kaicore.analysis.ask.answers import QueueRow, RowSelection
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.errors import UnknownSubject
from kaicore.rules.deciding.cycle_run import explained, input_to_explain
from kaicore.rules.engine.actions.action import GroupOrder
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.pending_group import ORDER_PARTS, PendingGroup
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.queues.cycle_queues import KeyPart, PartKind, Standing, standing_parts
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import gpus_asked
from kaicore.spelling import did_you_mean


class StandingRow(Answer, frozen=True, kw_only=True):
    """A waiting group.

    Attributes:
        place: in the order, from 1.
        priority: its own.
        gained: priority by waiting.
        rank: its place by policies among groups of its queue and priority; 0 without any.
        gpus: that its waiting pods ask for.
        held: the policy that lets it not start, with its reason; empty for none.
        reserved: whether room is reserved for it.
        before_next: what puts it before the next one; empty for the last.
    """

    place: int
    kind: str
    namespace: str
    name: str
    queue: str
    priority: int
    gained: int
    rank: int
    waiting: int
    gpus: str
    created_at: str
    held: str
    reserved: bool
    before_next: str


class PriorityAnswer(Answer, frozen=True, kw_only=True):
    """Waiting groups in the order in which a cycle takes them up, with their queues' shares and use.

    Attributes:
        policies_left_out: policies that could not be asked.
    """

    cluster: str
    position: int
    recorded_at: str
    queues: list[QueueRow]
    groups: list[StandingRow]
    policies_left_out: list[str]


class _Place(NamedTuple):
    group: PendingGroup
    queue: str
    standing: tuple[Standing, ...]


def priority_of(state: ClusterState, queue: str, policies: PolicyBook, *, now: int) -> PriorityAnswer:
    """Return the order of a queue's waiting groups, those of the queues below it included; of all where it is empty.

    Raises:
        UnknownSubject: there is no such queue.
    """

    def ask(config: EngineConfig) -> list[_Place]:
        session = Session(input_to_explain(state, config, now=now, policies=policies), config)
        order, places = GroupOrder(session, session.pending_groups.values()), list[_Place]()
        while (group := order.next()) is not None:
            standing, name = order.key_of(group)
            places.append(_Place(group, name, standing))
        return places

    tree = state.queue_registry.tree
    names = [one.name for one in tree.queues]
    if queue and queue not in names:
        raise UnknownSubject(f"cluster {state.cluster}: no queue {queue!r}{did_you_mean(queue, names)}")
    places, left_out = explained(state.config(), policies, ask)
    above = {one.name: {names[number] for number in tree.paths[place]} for place, one in enumerate(tree.queues)}
    meant = [one for one in places if not queue or queue in above.get(one.queue, ())]
    there = {queue, *(one.queue for one in meant)}
    return PriorityAnswer(
        cluster=state.cluster,
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        queues=[
            row for row in list_rows(state, "queues", RowSelection()) if isinstance(row, QueueRow) and row.name in there
        ],
        groups=[
            _row(state, number, one, meant[number] if number < len(meant) else None)
            for number, one in enumerate(meant, start=1)
        ],
        policies_left_out=list(left_out),
    )


def _row(state: ClusterState, place: int, one: _Place, after: _Place | None) -> StandingRow:
    pending, group = one.group, one.group.group
    waiting = [state.pods[uid] for uid in state.group_table.pods_of(pending.key) if uid in state.waiting]
    return StandingRow(
        place=place,
        kind=group.origin,
        namespace=group.namespace,
        name=group.name,
        queue=one.queue,
        priority=group.priority,
        gained=pending.priority - group.priority,
        rank=pending.rank,
        waiting=len(waiting),
        gpus=gpus_text(sum(map(gpus_asked, waiting))),
        created_at=time_text(group.created_at * 1_000_000),
        held="" if pending.held is None else str(pending.held),
        reserved=pending.nominated,
        before_next="" if after is None else _difference(state, one, after),
    )


def _difference(state: ClusterState, one: _Place, other: _Place) -> str:
    """Return the first part in which two keys differ, the queues' before the groups'."""
    if one.queue != other.queue:
        tree = state.queue_registry.tree
        first, second = ([*reversed(tree.paths[tree.find(place.queue) or 0])] for place in (one, other))
        for number, with_, left, right in zip(first, second, one.standing, other.standing, strict=False):
            if left != right:
                places = len(left[0]) - len(standing_parts(0, by_priority=False)) + len(left[1])
                parts = standing_parts(places, by_priority=number in tree.by_priority)
                what = _part(parts, (*left[0], *left[1]), (*right[0], *right[1]))
                return f"queue {tree.queues[number].name} before {tree.queues[with_].name}: {what}"
    return _part(ORDER_PARTS, one.group.order_key, other.group.order_key)


def _part(parts: tuple[KeyPart, ...], left: tuple[int | str, ...], right: tuple[int | str, ...]) -> str:
    for (name, kind), mine, theirs in zip(parts, left, right, strict=True):
        if mine != theirs:
            return f"{name}: {_text(kind, mine)} before {_text(kind, theirs)}"
    return "nothing"


def _text(kind: PartKind, value: int | str) -> str:
    if isinstance(value, str):
        return value
    match kind:
        case "flag":
            return "yes" if value else "no"
        case "highest":
            return str(-value)
        case "time":
            return time_text(value * 1_000_000)
        case "billionths":
            return f"{value / 10**7:.4g} %"
        case _:
            return str(value)
