"""A group with its pods: the next pods that start together, and the pods that must be evicted together.

The fold keeps it up to date, so that a cycle finds it ready. Running groups that may be preempted are found by queue
and priority. Source of the steps: KAI-Scheduler v0.17, `pkg/scheduler/api/podgroup_info/allocation_info.go`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, cast

import msgspec

from kaicore.rules.groups.labels import rank_order
from kaicore.rules.model.gpu_share import GpuPart
from kaicore.rules.model.group import Group, MatchPolicy, PodSet, RankSource, min_pods
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.numa.kubelet.zones import ZoneCharge


class Nomination(msgspec.Struct, frozen=True, omit_defaults=True):
    """Room that is reserved for a waiting pod until the pods on it are gone.

    Attributes:
        placement: the zones that it is predicted to get there.
        at: recorded time, microseconds since the epoch.
        foreign: no cycle decided so: the pod's status names the node, or the pod takes the place of one that was moved
            because it fits there. Then nothing is known of the zones.
    """

    node: str
    placement: Placement | None = None
    charge: ZoneCharge = ZoneCharge()
    at: int = 0
    foreign: bool = False


class Member(Protocol):
    """A pod of a group.

    Attributes:
        requests: what it takes of a node as a whole.
        node: where it is placed or bound; empty while it waits.
        running_since: when it started, as its kubelet says; before it does, when it was placed, and if another
            scheduler did that, when it was created. Microseconds since the epoch.
        work_since: since when its work would be lost if it went: its last checkpoint, if it wrote one since it runs;
            else `running_since`.
        pod_set: the leaf of the group's tree that it belongs to.
        nomination: the room that is reserved for it while it waits.
        releasing: whether it is charged as being released.
        rank: its place among the pods of its set, as it was placed; -1 for none.
    """

    group: str
    nomination: Nomination | None
    releasing: bool

    pod: Pod
    class_key: str
    requests: Amounts
    node: str
    zone_charge: ZoneCharge
    pod_set: str
    rank: int
    gpus: tuple[GpuPart, ...]

    @property
    def running_since(self) -> int: ...  # noqa: D102

    @property
    def work_since(self) -> int: ...  # noqa: D102


def alone_kind(group: Group, member: Member, priority: int) -> tuple[object, ...]:
    """Return what tells groups apart of which one pod is to start; see `AlikeGroups` of the actions.

    Args:
        priority: with what the group has gained by waiting.
    """
    policy = group.preemption_policy or member.pod.preemption_policy
    return group.queue, group.namespace, group.priority, priority, group.preemptible, group.admitted, policy


#: Pods per leaf set.
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """The pods of a group that start next, all or nothing.

    Attributes:
        members: to be placed; empty if nothing is left to start, or not all of it is there yet.
        gang: whether the group is below its minimum without them.
        missing: how many pods are lacking until the group can start at all.
        wanted: how many pods the step is to have, lacking ones included.
        lacking: of a group that has its minimum, how many pods are lacking until one more sub-group can start.
    """

    members: tuple[Member, ...] = ()
    gang: bool = False
    missing: int = 0
    wanted: int = 0
    lacking: int = 0


class _Form(NamedTuple):
    """The part of a workload that follows from its sets; most groups have the same ones, so it is shared.

    Attributes:
        children: by the name of an inner set.
        leaf_names: of the sets that pods are in themselves, in their order.
        least: with how many pods it has its minimum.
    """

    sets: dict[str, PodSet]
    children: dict[str, list[PodSet]]
    leaf_names: dict[str, None]
    constrained: bool
    least: int


@lru_cache(maxsize=4096)
def _form(sets: tuple[PodSet, ...]) -> _Form:
    children: dict[str, list[PodSet]] = {}
    for item in sets[1:]:
        children.setdefault(item.parent, []).append(item)
    leaf_names = {item.name: None for item in sets if item.name not in children}
    constrained = any(item.topology is not None for item in sets)
    return _Form({item.name: item for item in sets}, children, leaf_names, constrained, min_pods(sets))


@lru_cache(maxsize=4096)
def _counts(leaf: str, count: int) -> Counts:
    """Return the counts of a group of one leaf; never changed, for most groups have the same ones."""
    return {leaf: count} if count else {}


class _Tally:
    """Pods of a group of several sets, by leaf.

    Attributes:
        leaf_of: as pods of which leaves those that count are counted, by uid.
        counts: those that count: of those that ended well, as many as are known or as the owner tells of.
    """

    __slots__ = ("_in", "_sets", "counts", "leaf_of")

    def __init__(self, sets: Mapping[str, PodSet]) -> None:
        self.leaf_of: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self._sets = sets
        self._in: dict[str, dict[str, int]] = {"active": {}, "done": {}}

    def put(self, uid: str, leaf: str, place: str) -> None:
        """Count a pod that is active, or done."""
        self.leaf_of[uid] = leaf
        self.sum_up(leaf, place, 1)

    def drop(self, uid: str, place: str) -> None:
        """Count a pod no more, if it is counted."""
        if (leaf := self.leaf_of.pop(uid, None)) is not None:
            self.sum_up(leaf, place, -1)

    def sum_up(self, leaf: str, place: str = "done", more: int = 0) -> None:
        """Count a leaf's pods, of which there are more, or with a negative number fewer, in a place."""
        numbers, item = self._in[place], self._sets.get(leaf)
        numbers[leaf] = numbers.get(leaf, 0) + more
        ended = max(self._in["done"].get(leaf, 0), item.ended if item is not None else 0)
        count = self._in["active"].get(leaf, 0) + ended
        if count:
            self.counts[leaf] = count
        else:
            self.counts.pop(leaf, None)


#: The pods of a workload where it has none: most have one pod, which stands in one place.
_NOBODY = cast("dict[str, Member]", MappingProxyType({}))
_PLACES = ("waiting", "active", "leaving", "done")


#: The place of a group in its queue; see `kaicore.rules.engine.work.pending_group.ORDER_PARTS`.
OrderKey = tuple[int, int, int, str, str, str]


class LonePod(NamedTuple):
    """The one waiting pod of a group that has no other pod that counts, and asks for nothing as a group.

    Attributes:
        kind: all that tells such groups apart in a cycle, besides the pod's class and its delay before evictions.
        order_key: the group's place in its queue, where it is neither moved nor gains priority.
        created_us: when the group was created, microseconds since the epoch.
    """

    member: Member
    leaf: str
    kind: tuple[object, ...]
    order_key: OrderKey
    created_us: int


class Workload:
    """A group and its pods.

    Attributes:
        group: may change while it runs.
        waiting: pods without a node, by uid.
        active: pods placed or bound that are to stay, by uid.
        leaving: pods that still hold their node and are terminating or decided to be evicted, by uid.
        done: pods that ended well and are still known, by uid. They count towards the minimum, as in Volcano; so do as
            many more as the owner tells of (`PodSet.ended`).
        started_at: when it last reached its minimum, microseconds since the epoch; 0 as long as it has not.
        below_since: since when some of it runs while it, or a group that it starts together with, is below its minimum;
            0 if none is.
        evicted_at: when pods of it were last decided to be evicted.
        reached: whether it has ever had its minimum, at once with all groups that it starts together with.
        ending: whether a pod of it, or of a group that it starts together with, has ended well: it is at its end.
        kind: as what it is among those that run (`kind_of`).
        constrained: whether any of its sets has a topology constraint.
        is_gang: whether some of its pods only start together.
    """

    __slots__ = (
        "_form",
        "_lone",
        "_tally",
        "active",
        "below_since",
        "constrained",
        "done",
        "ending",
        "evicted_at",
        "group",
        "is_gang",
        "kind",
        "leaving",
        "reached",
        "started_at",
        "waiting",
    )

    def __init__(self, group: Group) -> None:
        self.waiting = self.active = self.leaving = self.done = _NOBODY
        self.started_at = 0
        self.below_since = 0
        self.evicted_at = 0
        self.reached = False
        self.ending = False
        self.kind: Kind | None = None
        #: See `lone`; False where it is to be worked out.
        self._lone: LonePod | Literal[False] | None = False
        self.set_group(group)

    def set_group(self, group: Group) -> None:
        """Take over what is now known of the group."""
        self.group, self._lone = group, False
        self._form = _form(group.sets)
        self.constrained = self._form.constrained
        self.is_gang = bool(group.together) or self._form.least > 1
        #: None for a group of one set: all of its pods are of that.
        self._tally = None if len(group.sets) == 1 else _Tally(self._form.sets)
        self.ending = self.ending or any(item.ended for item in group.sets)
        if self._tally is None:
            return
        for place in ("active", "done"):
            for uid, member in getattr(self, place).items():
                self._tally.put(uid, self.leaf(member), place)
        for item in group.sets:
            if item.ended:
                self._tally.sum_up(item.name)

    @property
    def empty(self) -> bool:
        """True if it has no pods."""
        return not (self.waiting or self.active or self.leaving or self.done)

    @property
    def counts(self) -> Counts:
        """The number of pods of each leaf that are active or have ended well."""
        if self._tally is not None:
            return self._tally.counts
        (root,) = self.group.sets
        return _counts(root.name, len(self.active) + max(len(self.done), root.ended))

    @property
    def _on_its_own(self) -> bool:
        """True if each of its pods by now starts alone."""
        return self.reached and self.group.match_policy is MatchPolicy.ONCE_SATISFIED

    @property
    def own_counts(self) -> Counts:
        """Pods per leaf that count towards the minimum of what starts next."""
        return {} if self.group.match_policy is MatchPolicy.ONLY_WAITING else self.counts

    def drop(self, uid: str) -> None:
        """Forget where a pod stands."""
        self._lone = False
        for place in _PLACES:
            members = getattr(self, place)
            if uid not in members:
                continue
            if len(members) == 1:
                setattr(self, place, _NOBODY)
            else:
                del members[uid]
            if self._tally is not None:
                self._tally.drop(uid, place)

    def wait(self, member: Member) -> None:
        """A pod waits."""
        self.drop(member.pod.uid)
        self._put(member, "waiting")

    def start(self, member: Member) -> None:
        """A pod is placed or bound."""
        self._put_counted(member, "active")

    def finish(self, member: Member) -> None:
        """A pod ended well."""
        self._put_counted(member, "done")

    def _put(self, member: Member, place: str) -> None:
        members = getattr(self, place)
        if members:
            members[member.pod.uid] = member
        else:
            setattr(self, place, {member.pod.uid: member})

    def _put_counted(self, member: Member, place: str) -> None:
        uid = member.pod.uid
        if uid not in getattr(self, place) or not self._is_counted(member):
            self.drop(uid)
            self._put(member, place)
            if self._tally is not None:
                self._tally.put(uid, self.leaf(member), place)

    def _is_counted(self, member: Member) -> bool:
        """Tell whether a pod that counts does so in the leaf that it names now."""
        return self._tally is None or self._tally.leaf_of[member.pod.uid] == self.leaf(member)

    def counts_as_active(self, member: Member) -> bool:
        """Tell whether a pod is active, and counts in the leaf that it names now."""
        return self.active.get(member.pod.uid) is member and self._is_counted(member)

    def leave(self, member: Member) -> None:
        """A pod still holds its node, but not for long."""
        self.drop(member.pod.uid)
        self._put(member, "leaving")

    def mark(self, at: int, *, others: bool = True) -> None:
        """Note since when it is at, or below, its minimum.

        Args:
            at: recorded time of what changed it, microseconds since the epoch.
            others: whether all other groups that it starts together with have theirs.
        """
        if self.active and self.satisfied(self.counts):
            self.started_at = self.started_at or at
            self.reached = self.reached or others
            self.below_since = 0 if others or self._on_its_own else self.below_since or at
        elif not self.active or self._on_its_own:
            self.started_at = self.below_since = 0
        elif not self.below_since:
            self.below_since = at

    @property
    def lone(self) -> LonePod | None:
        """The pod of a group that waits alone; None for other groups. It is kept from cycle to cycle."""
        if self._lone is False:
            self._lone = self._as_lone()
        return self._lone

    def _as_lone(self) -> LonePod | None:
        group = self.group
        if len(self.waiting) != 1 or self.active or self.done or self.counts:
            return None
        if self.is_gang or self.constrained or len(group.sets) > 1 or group.together:
            return None
        (member,) = self.waiting.values()
        order_key = -group.priority, 0, group.created_at, group.namespace, group.name, group.key
        kind = alone_kind(group, member, group.priority)
        return LonePod(member, self.leaf(member), kind, order_key, group.created_at * 1_000_000)

    def leaf(self, member: Member) -> str:
        """Return the leaf that a pod belongs to: the one that it names, else the first."""
        names = self._form.leaf_names
        return member.pod_set if member.pod_set in names else next(iter(names))

    def sets_around(self, member: Member) -> list[str]:
        """Return the names of a pod's leaf and of the sets around it, the root's last."""
        names = [self.leaf(member)]
        while names[-1] != self.group.sets[0].name:
            names.append(self._form.sets[names[-1]].parent)
        return names

    def rank_source(self, leaf: str) -> RankSource | None:
        """Return where the pods of a leaf tell their rank; None for nowhere."""
        return self._form.sets[leaf].rank

    def satisfied(self, counts: Counts, name: str | None = None) -> bool:
        """Tell whether a set, or the whole group, has its minimum with so many pods."""
        item = self._set(name)
        children = self._form.children.get(item.name)
        if not children:
            return counts.get(item.name, 0) >= item.min_pods
        if item.min_pods and sum(counts.get(leaf, 0) for leaf in self._leaves(item)) < item.min_pods:
            return False
        needed = len(children) if item.min_sets is None else item.min_sets
        return sum(self.satisfied(counts, child.name) for child in children) >= needed

    def in_order(self, ready: list[Member]) -> dict[str, list[Member]]:
        """Return by leaf those waiting pods that may be placed, oldest first, or by rank where pods name theirs."""
        if len(ready) == 1:
            return {self.leaf(ready[0]): ready}
        waiting = dict[str, list[Member]]()
        if len(self._form.leaf_names) == 1:
            waiting = dict.fromkeys(self._form.leaf_names, ready) if ready else {}
        else:
            for member in ready:
                waiting.setdefault(self.leaf(member), []).append(member)
        for leaf, members in waiting.items():
            members.sort(key=_age)
            if self.constrained and (source := self.rank_source(leaf)) is not None:
                members.sort(key=lambda member: rank_order(member.pod, source))
            if self.constrained:
                members.sort(key=lambda member: member.nomination is None)
        return waiting

    def next_step(self, counts: Counts, waiting: Mapping[str, Sequence[Member]]) -> Step:
        """Return what is to start next; of each leaf it takes the first of the pods that wait.

        Below its minimum a set needs the pods that its most advanced children lack; above it grows by one pod, or by
        one more whole sub-group.

        Args:
            counts: pods per leaf that count, those that the cycle placed so far included.
            waiting: pods that may be placed, by leaf.
        """
        root = self.group.sets[0]
        if self._on_its_own:
            alone = [members[0] for members in waiting.values() if members][:1]
            return Step(tuple(alone), wanted=len(alone))
        if self.satisfied(counts):
            grown, lacking = self._growth(root, counts, waiting)
            return Step(() if lacking else tuple(grown), wanted=len(grown) + lacking, lacking=lacking)
        members, missing = self._needed(root, counts, waiting)
        return Step(() if missing else tuple(members), gang=True, missing=missing, wanted=len(members) + missing)

    def evicted_with(self, member: Member, counts: Counts) -> tuple[Member, ...]:
        """Return the pods that are evicted with one of them: none of what stays is below its minimum.

        Args:
            counts: pods per leaf that count, less those that are to be evicted already.
        """
        if len(self.active) == 1:
            return (member,)
        if self.group.ends_whole:
            return tuple(self.active.values())
        item = self._set(self.leaf(member))
        if not self.satisfied(counts):
            return tuple(self.active.values())
        without = {**counts, item.name: counts.get(item.name, 0) - 1}
        whole = self._whole(item)
        if whole is None and (self.satisfied(without, item.name) or not self.satisfied(counts, item.name)):
            return (member,)
        item = whole or item
        while item.name != self.group.sets[0].name:
            inside = self._leaves(item)
            without = {name: count for name, count in counts.items() if name not in inside}
            if self.satisfied(without, item.parent) or not self.satisfied(counts, item.parent):
                return tuple(other for other in self.active.values() if self.leaf(other) in inside)
            item = self._set(item.parent)
        return tuple(self.active.values())

    def _whole(self, item: PodSet) -> PodSet | None:
        """Return the widest set around one that ends as a whole; None for none."""
        whole = None
        while item.name != self.group.sets[0].name:
            whole = item if item.ends_whole else whole
            item = self._set(item.parent)
        return whole

    def _set(self, name: str | None) -> PodSet:
        if name is None:
            return self.group.sets[0]
        return self._form.sets[name]

    def _leaves(self, item: PodSet) -> set[str]:
        children = self._form.children.get(item.name)
        return {item.name} if not children else set().union(*(self._leaves(child) for child in children))

    def _needed(
        self, item: PodSet, counts: Counts, waiting: Mapping[str, Sequence[Member]]
    ) -> tuple[list[Member], int]:
        """Return the pods that a set needs to have its minimum, and how many of them are not there."""
        children = self._form.children.get(item.name)
        if not children:
            short = max(item.min_pods - counts.get(item.name, 0), 0)
            there = list(waiting.get(item.name, ())[:short])
            return there, short - len(there)
        needed = len(children) if item.min_sets is None else item.min_sets
        needed -= sum(self.satisfied(counts, child.name) for child in children)
        options = []
        for place, child in enumerate(children):
            if not self.satisfied(counts, child.name):
                members, missing = self._needed(child, counts, waiting)
                options.append((missing, len(members), place, members))
        options.sort(key=lambda option: option[:3])
        chosen = options[: max(needed, 0)]
        members = [member for option in chosen for member in option[3]]
        missing = sum(option[0] for option in chosen)
        inside = self._leaves(item)
        short = item.min_pods - sum(counts.get(leaf, 0) for leaf in inside) - len(members) - missing
        if short > 0:
            taken = {member.pod.uid for member in members}
            more = [other for leaf in sorted(inside) for other in waiting.get(leaf, ()) if other.pod.uid not in taken]
            members += more[:short]
            missing += max(short - len(more), 0)
        return members, missing

    def _growth(
        self, item: PodSet, counts: Counts, waiting: Mapping[str, Sequence[Member]]
    ) -> tuple[list[Member], int]:
        """Return the next pods above the minimum, and how many of them are not there."""
        children = self._form.children.get(item.name)
        if not children:
            return list(waiting.get(item.name, ())[:1]), 0
        order = [
            (not self._is_nominated(child, waiting), not self.satisfied(counts, child.name), child)
            for child in children
        ]
        nearest: tuple[list[Member], int] = [], 0
        for _, whole, child in sorted(order, key=lambda item: item[:2]):
            grown, missing = (self._needed if whole else self._growth)(child, counts, waiting)
            if grown and not missing:
                return grown, 0
            if grown and not nearest[0]:
                nearest = grown, missing
        return nearest

    def _is_nominated(self, item: PodSet, waiting: Mapping[str, Sequence[Member]]) -> bool:
        """Tell whether room that no other set can use is kept for pods of a set."""
        return self.constrained and any(one.nomination for leaf in self._leaves(item) for one in waiting.get(leaf, ()))


class RestingLine:
    """Waiting groups of one kind that start alone, and have not changed since a cycle left them waiting.

    Thousands of them wait on a full cluster. The state keeps them from cycle to cycle, so that a cycle looks at the
    line and not at each group.

    Attributes:
        scheduler_name: of all of their pods.
        class_key: likewise.
        lones: the pod of each group, by the group's key.
        uids: of these pods.
        evicts_us: from when on no delay keeps any of them from having others evicted, microseconds since the epoch.
    """

    def __init__(self, scheduler_name: str, class_key: str) -> None:
        self.scheduler_name, self.class_key = scheduler_name, class_key
        self.lones: dict[str, LonePod] = {}
        self.uids: set[str] = set()
        self.evicts_us = 0
        self._sorted: tuple[list[tuple[OrderKey, str]], list[str], int] | None = None

    def add(self, key: str, lone: LonePod, *, evicts_us: int) -> None:
        """Add a group."""
        self.lones[key] = lone
        self.uids.add(lone.member.pod.uid)
        self.evicts_us, self._sorted = max(self.evicts_us, evicts_us), None

    def drop(self, key: str) -> None:
        """Take a group out."""
        self.uids.discard(self.lones.pop(key).member.pod.uid)
        self._sorted = None

    def in_order(self) -> tuple[Sequence[tuple[OrderKey, str]], Sequence[str], int]:
        """Return the places and keys of the groups by place; their keys, sorted; and when the first pod was created.

        The time is in seconds since the epoch. What is returned is kept until a group comes or goes; not to be changed.
        """
        if self._sorted is None:
            entries = sorted((lone.order_key, key) for key, lone in self.lones.items())
            oldest = min(lone.member.pod.created_at for lone in self.lones.values())
            self._sorted = entries, sorted(self.lones), oldest
        return self._sorted


def uids_of(lines: Iterable[RestingLine]) -> set[str]:
    """Return the uids of the pods of lines."""
    return set[str]().union(*(line.uids for line in lines))


def keys_of(lines: Iterable[RestingLine]) -> set[str]:
    """Return the keys of the groups of lines."""
    return set[str]().union(*(line.lones for line in lines))


def _age(member: Member) -> tuple[int, str, str, str]:
    pod = member.pod
    return pod.created_at, pod.namespace, pod.name, pod.uid


#: The scheduler of a group's pods, its queue, its namespace where it names no queue, and its priority.
Kind = tuple[str, str, str, int]


def kind_of(workload: Workload) -> Kind | None:
    """Return what kind of running group this is; None if nothing of it runs, or it may not be preempted."""
    group = workload.group
    if not workload.active or not group.preemptible:
        return None
    first = next(iter(workload.active.values()))
    return _kind(first.pod.scheduler_name, group.queue, "" if group.queue else group.namespace, group.priority)


@lru_cache(maxsize=4096)
def _kind(scheduler: str, queue: str, namespace: str, priority: int) -> Kind:
    """Return a kind; equal arguments give the same object, for there are few."""
    return scheduler, queue, namespace, priority


class RunningGroups:
    """Those of one scheduler."""

    def __init__(self, running: Mapping[Kind, Mapping[str, Workload]], *, scheduler_name: str) -> None:
        self._kinds = [of_kind for kind, of_kind in sorted(running.items()) if of_kind and kind[0] == scheduler_name]

    @cached_property
    def workloads(self) -> list[Workload]:
        """All of them."""
        return [workload for of_kind in self._kinds for workload in of_kind.values()]

    def any_where(self, holds: Callable[[Workload], bool]) -> bool:
        """Tell whether something holds of any group that depends on nothing but its queue and priority."""
        return next(self._where(holds), None) is not None

    def where(self, holds: Callable[[Workload], bool]) -> list[Workload]:
        """Return the groups of which something holds that depends on nothing but their queue and priority."""
        return [workload for of_kind in self._where(holds) for workload in of_kind.values()]

    def _where(self, holds: Callable[[Workload], bool]) -> Iterator[Mapping[str, Workload]]:
        return (of_kind for of_kind in self._kinds if holds(next(iter(of_kind.values()))))
