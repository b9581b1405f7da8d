"""The standing of work in queues: the order of waiting groups, and the holders of GPUs.

The order, for `kai priority`, is taken from the order by which a cycle takes groups up. The keys are those of
`GroupOrder`, and the names of their parts stand beside the keys. So this answer and the engine cannot disagree. It is
the order before anything starts: each start moves its queue back.

The holders of GPUs as a queue sees them: by which rule each holds, since when, what ends it; and by another rule. The
rules are those of a cycle (`kaicore.rules.queues.cycle_queues`), asked for one GPU more. Whether the pods of one group
fit into the place of others, a cycle finds out; `kai why` has what it found.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, NoReturn

import msgspec

from kaicore.analysis.ask.answers import GpuHolder, GpuHolders, HolderStanding, QueueClaim, QueueRow, RowSelection
from kaicore.analysis.ask.listing import list_queues
from kaicore.analysis.json_spelling import Answer, AsOf, place_of, time_text
from kaicore.errors import UnknownSubject
from kaicore.rules.deciding.cycle_run import explained, input_to_explain
from kaicore.rules.engine.actions.action import GroupOrder
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.pending_group import ORDER_PARTS, PendingGroup
from kaicore.rules.groups.labels import user_of
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.objects.gpu_sharing import GPU as DEVICE
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.cycle_queues import KeyPart, PartKind, Standing, is_victim, may_reclaim, standing_parts
from kaicore.rules.queues.tree import GPU as ALL_GPUS
from kaicore.rules.queues.tree import UNLIMITED, QueueTree, gpus_per_unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry, gpus_asked
from kaicore.rules.state.views import ClusterView
from kaicore.spelling import did_you_mean


class StandingRow(Answer, frozen=True, kw_only=True):
    """A waiting group.

    Attributes:
        place: in the order, from 1.
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


class PriorityAnswer(AsOf, frozen=True, kw_only=True):
    """Waiting groups in the order in which a cycle takes them up, with their queues' shares and use.

    Attributes:
        policies_left_out: policies that could not be asked.
    """

    queues: list[QueueRow]
    groups: list[StandingRow]
    policies_left_out: list[str]


class _Place(NamedTuple):
    group: PendingGroup
    queue: str
    standing: tuple[Standing, ...]


def priority_of(state: ClusterState, queue: str, policies: PolicyBook, *, now: int) -> PriorityAnswer:
    """Return the order of a queue's waiting groups, those of the queues below it included; of all where it is empty.

    Raises UnknownSubject: there is no such queue.
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
        **place_of(state),
        queues=[row for row in list_queues(state, RowSelection()) if row.name in there],
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


#: Stands for what may not be named.
UNSEEN = "(not yours to see)"

#: Changes a configuration into that of the other rule.
Change = Callable[[EngineConfig], EngineConfig]


def gpu_holders(
    state: ClusterView,
    queue: str,
    *,
    namespaces: Collection[str] | None = None,
    settings: Collection[str] = (),
    change: Change | None = None,
) -> GpuHolders:
    """Say who has the GPUs that a queue is owed, or could use.

    Raises UnknownSubject: there is no such queue, or nothing of the caller is in it.

    Args:
        queue: its name, or `namespace/name` of a group or a pod of it.
        namespaces: that the caller sees; None for all.
        settings: how `change` is written.
    """
    config, now = state.config(), state.recorded_at
    court = _Court(state, config, now, namespaces)
    number = court.find(queue)
    claim, holders = court.holders(number)
    other, moved = None, {}
    if change is not None:
        changed = _Court(state, change(config), now, namespaces)
        other, _ = changed.holders(number)
        moved = {
            one.name: (court.fair(place), changed.fair(place))
            for place, one in enumerate(court.tree.queues)
            if court.fair(place) != changed.fair(place) and (namespaces is None or place == number)
        }
    name = court.tree.queues[number].name
    return GpuHolders(
        **place_of(state),
        queue=name,
        claim=claim,
        verdict=_verdict(name, claim),
        holders=holders,
        settings=list(settings),
        other=other,
        moved=moved,
    )


def _verdict(name: str, claim: QueueClaim) -> str:
    text = f"{name} holds {claim.holds} GPUs, asks for {claim.asks} and deserves {claim.fair_share}"
    if claim.owed == "0":
        return f"{text}: it has all that it is owed"
    taking = f"evictions may give it {claim.may_take}" if not claim.refused else claim.refused
    return f"{text}: it is owed {claim.owed} more, and {taking}"


class _Court:
    """The accounts of queues by one configuration, and what follows for each group."""

    def __init__(self, state: ClusterView, config: EngineConfig, now: int, namespaces: Collection[str] | None) -> None:
        self._state, self._config, self._now, self._namespaces = state, config, now, namespaces
        self._accounts: QueueAccounts = state.queue_accounts(config, now=now)
        self.tree: QueueTree = self._accounts.tree

    def _sees(self, namespace: str) -> bool:
        return self._namespaces is None or namespace in self._namespaces

    def find(self, queue: str) -> int:
        """Return a queue's number; see `gpu_holders`."""
        number = self.tree.find(queue)
        if not self.tree.configured and queue != self.tree.queues[0].name:
            number = None
        of_queue: list[PodEntry] = []
        for entry in self._state.pods.values():
            group = self._state.groups.get(entry.group)
            named = {entry.pod.subject, "" if group is None else f"{group.namespace}/{group.name}"}
            if number is None and queue in named and self._sees(entry.pod.namespace):
                number = self._paying(entry)
                return number if number >= 0 else self._unknown(queue)
            if self._namespaces is not None and self._sees(entry.pod.namespace):
                of_queue.append(entry)
        if number is None or not queue:
            self._unknown(queue)
        if self._namespaces is not None and not any(number in self._path(entry) for entry in of_queue):
            self._unknown(queue)
        return number

    def _unknown(self, queue: str) -> NoReturn:
        known = [one.name for one in self.tree.queues] if self._namespaces is None else []
        raise UnknownSubject(f"no queue, group or pod {queue!r}{did_you_mean(queue, known)}")

    def _paying(self, entry: PodEntry) -> int:
        name, namespace = self._state.queue_of(entry)
        number = self.tree.find(name, namespace=namespace or entry.pod.namespace)
        return -1 if number is None else number

    def _path(self, entry: PodEntry) -> tuple[int, ...]:
        number = self._paying(entry)
        return () if number < 0 else self.tree.paths[number]

    def _gpus(self, row: Collection[int]) -> int:
        """Return the GPUs of a row of amounts, in thousandths; `UNLIMITED` where any has no bound."""
        tree = self.tree
        kinds = {ALL_GPUS: 1} if ALL_GPUS in tree.resources else {name: gpus_per_unit(name) for name in tree.resources}
        amounts = [
            UNLIMITED if amount >= UNLIMITED else tree.in_thousandths(place, amount) * kinds[name]
            for place, (name, amount) in enumerate(zip(tree.resources, row, strict=True))
            if kinds.get(name)
        ]
        return min(sum(amounts), UNLIMITED) if amounts else UNLIMITED

    def fair(self, number: int) -> str:
        """Return a queue's fair share, for people."""
        return _gpus_text(self._gpus(self._accounts.shares.fair[number]))

    def holders(self, number: int) -> tuple[QueueClaim, list[GpuHolder]]:
        """Return what a queue may claim, and who has GPUs."""
        accounts, tree = self._accounts, self.tree
        demand = tree.demand({DEVICE: 1}, number)
        refused = may_reclaim(accounts, number, demand, preemptible=True)
        accounts.charge(number, demand, preemptible=True)
        groups: dict[str, list[PodEntry]] = {}
        for entry in self._state.pods.values():
            if entry.charged and gpus_asked(entry) and not self._state.shared_gpus.is_reservation(entry.pod.uid):
                groups.setdefault(entry.group or f"{POD}/{entry.pod.subject}", []).append(entry)
        victims = {one: is_victim(accounts, number, demand, one) for one in range(len(tree)) if not tree.children[one]}
        accounts.take_back(number, demand, preemptible=True)
        held = [self._holder(key, pods, number, victims) for key, pods in groups.items()]
        rows = (tree.quotas, accounts.shares.fair, accounts.used, accounts.shares.requested)
        quota, fair, holds, asks = (self._gpus(row[number]) for row in rows)
        if holds >= UNLIMITED:
            # No queue counts GPUs.
            pods = (self._state.pods[uid] for uid in self._state.waiting)
            waiting = sum(gpus_asked(one) for one in pods if number in self._path(one))
            holds = sum(gpus for gpus, one in held if one.standing is HolderStanding.OWN)
            asks = holds + waiting
        takeable = sum(gpus for gpus, one in held if one.standing is HolderStanding.RECLAIMABLE)
        claim = QueueClaim(
            quota=_gpus_text(quota),
            fair_share=_gpus_text(fair),
            holds=_gpus_text(holds),
            asks=_gpus_text(asks),
            owed=_gpus_text(max(0, min(fair, asks) - holds)),
            may_take=_gpus_text(0 if refused else takeable),
            refused="; ".join(map(str, refused)),
        )
        order = list(HolderStanding)
        held.sort(key=lambda one: (order.index(one[1].standing), -one[0], one[1].namespace, one[1].group))
        return claim, self._seen(held)

    def _holder(self, key: str, pods: list[PodEntry], number: int, victims: dict[int, bool]) -> tuple[int, GpuHolder]:
        first = min(pods, key=lambda one: (one.placed_at or one.bound_at, one.pod.uid))
        group, payer = self._state.groups.get(key), self._paying(first)
        preemptible = group is None or group.preemptible
        gpus = sum(map(gpus_asked, pods))
        seen = self._sees(first.pod.namespace)
        workload = self._state.workload_index.workloads.get(key)
        started = 0 if workload is None else workload.started_at
        protected = 0
        if payer >= 0 and payer != number:
            default = self._config.fair_share.reclaim_min_runtime_us
            protected = started + self.tree.reclaim_min_runtime_us(payer, number, default=default)
        is_protected = protected > self._now
        standing = self._standing(payer, number, victims, preemptible=preemptible, protected=is_protected)
        limits = [one.pod.active_deadline_s for one in pods]
        ends = max(one.running_since + one.pod.active_deadline_s * 1_000_000 for one in pods) if all(limits) else 0
        return gpus, GpuHolder(
            standing=standing,
            namespace=first.pod.namespace if seen else UNSEEN,
            group=key if seen else UNSEEN,
            queue=self.tree.queues[payer].name if payer >= 0 and seen else "" if seen else UNSEEN,
            user=user_of(first.pod) if seen else "",
            gpus=_gpus_text(gpus),
            since=time_text(min(one.placed_at or one.bound_at or one.running_since for one in pods)),
            rule=self._rule(payer, standing, preemptible=preemptible, seen=seen),
            protected_until=time_text(protected) if standing is HolderStanding.PROTECTED else "",
            ends=time_text(ends) if ends else "",
        )

    def _standing(
        self, payer: int, number: int, victims: dict[int, bool], *, preemptible: bool, protected: bool
    ) -> HolderStanding:
        if payer < 0:
            return HolderStanding.OUTSIDE
        if number in self.tree.paths[payer]:
            return HolderStanding.OWN
        if not preemptible:
            return HolderStanding.BY_RIGHT
        if victims.get(payer):
            return HolderStanding.PROTECTED if protected else HolderStanding.RECLAIMABLE
        over = self._gpus(self._accounts.used[payer]) > self._gpus(self.tree.quotas[payer])
        return HolderStanding.BORROWED if over else HolderStanding.BY_RIGHT

    def _rule(self, payer: int, standing: HolderStanding, *, preemptible: bool, seen: bool) -> str:
        if payer < 0:
            return "no queue pays for it"
        rows = (self._accounts.used, self.tree.quotas, self._accounts.shares.fair)
        used, quota, fair = (self._gpus(row[payer]) for row in rows)
        stands = "its queue"
        if seen:
            name = self.tree.queues[payer].name
            stands = f"{name} holds {_gpus_text(used)}, quota {_gpus_text(quota)}, fair share {_gpus_text(fair)}"
        match standing:
            case HolderStanding.RECLAIMABLE | HolderStanding.PROTECTED:
                return f"{stands}: holds more than it may keep from a queue that is owed more"
            case HolderStanding.BORROWED:
                return f"{stands}: beyond its quota by weight, within what it may keep"
            case _ if not preemptible:
                return f"{stands}: it cannot be preempted"
            case _:
                return stands if standing is HolderStanding.OWN else f"{stands}: within its quota"

    def _seen(self, held: list[tuple[int, GpuHolder]]) -> list[GpuHolder]:
        """Return the holders; of those that are not seen, one for each standing."""
        rows, hidden = [], dict[HolderStanding, tuple[int, GpuHolder]]()
        for gpus, one in held:
            if one.group != UNSEEN:
                rows.append(one)
                continue
            before, kept = hidden.get(one.standing, (0, one))
            total, since = before + gpus, min(kept.since, one.since)
            hidden[one.standing] = total, msgspec.structs.replace(kept, gpus=_gpus_text(total), since=since)
        merged = (msgspec.structs.replace(one, protected_until="", ends="") for _, one in hidden.values())
        return [*rows, *merged]


def _gpus_text(amount: int) -> str:
    return "unlimited" if amount >= UNLIMITED else gpus_text(amount)
