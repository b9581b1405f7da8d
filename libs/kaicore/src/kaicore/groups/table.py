"""All groups of a cluster, kept up to date as sources, pods and priority classes come, change and go.

What happened is told one piece at a time, in any order; the groups depend only on what there is. Times are given.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kaicore.groups.kinds import POD_GROUPS
from kaicore.groups.making import make_group
from kaicore.groups.membership import Membership, membership
from kaicore.groups.tree import satisfied
from kaicore.model.group import Group
from kaicore.model.group_source import GroupSource
from kaicore.model.pod import Pod


class Standing(msgspec.Struct, omit_defaults=True):
    """How a group fares.

    Attributes:
        active: pods that hold a node and are to stay, by pod set.
        succeeded: pods that have done their work.
        satisfied_once: whether its minimum was ever reached since its first pod.
        short_since: since when it has active pods but less than its minimum, microseconds since the epoch; 0 if not so.
    """

    active: dict[str, int] = {}
    succeeded: int = 0
    satisfied_once: bool = False
    short_since: int = 0

    @property
    def total_active(self) -> int:
        """Pods that hold a node and are to stay."""
        return sum(self.active.values())


class _Age(NamedTuple):
    created_at: int
    namespace: str
    name: str
    uid: str


class _Member(NamedTuple):
    pod: Pod
    place: Membership
    active: bool


class _Pods:
    """The pods of a group."""

    __slots__ = ("ages", "sets", "uids")

    def __init__(self) -> None:
        self.uids: set[str] = set()
        #: Of those that can be decided on, the oldest first.
        self.ages: list[_Age] = []
        #: How many of those are in each set.
        self.sets: dict[str, int] = {}


class GroupTable:
    """The groups of a cluster.

    Attributes:
        sources: by key.
        groups: by key: those with pods that can be decided on, and those that are objects of their own.
        standings: of the groups that have, or had, active pods.
    """

    def __init__(self) -> None:
        self.sources: dict[str, GroupSource] = {}
        self.groups: dict[str, Group] = {}
        self.standings: dict[str, Standing] = {}
        self._priorities: dict[str, int] = {}
        self._members: dict[str, _Member] = {}
        self._pods: dict[str, _Pods] = {}
        #: Pods that depend on a source, whether it is there or not.
        self._dependents: dict[str, set[str]] = {}
        #: Groups that are made of a source.
        self._made_of: dict[str, set[str]] = {}
        #: Groups about which something has changed: whether they are to be made anew, or only to be judged.
        self._unsettled: dict[str, bool] = {}

    def pods_of(self, key: str) -> frozenset[str]:
        """Return the uids of a group's pods, those that cannot be decided on included."""
        found = self._pods.get(key)
        return frozenset(found.uids) if found is not None else frozenset()

    def place_of(self, uid: str) -> Membership | None:
        """Return where a pod belongs; None for a pod that is not known."""
        member = self._members.get(uid)
        return member.place if member is not None else None

    # What happens.

    def source_seen(self, source: GroupSource, *, now: int) -> tuple[str, ...]:
        """Take in a source that is new or has changed; return the uids of the pods that belong elsewhere now."""
        self.sources[source.key] = source
        return self._source_changed(source.key, now)

    def source_gone(self, key: str, uid: str, *, now: int) -> tuple[str, ...]:
        """Take in that a source is gone, unless another one of its name is there; return as above."""
        source = self.sources.get(key)
        if source is None or source.uid != uid:
            return ()
        del self.sources[key]
        return self._source_changed(key, now)

    def priority_class(self, name: str, value: int | None, *, now: int) -> None:
        """Take in a priority class, None when it is gone."""
        if self._priorities.get(name) == value:
            return
        if value is None:
            del self._priorities[name]
        else:
            self._priorities[name] = value
        self._unsettled = dict.fromkeys(self.groups, True)
        self._settle(now)

    def pod_seen(self, pod: Pod, *, active: bool, now: int) -> Membership:
        """Take in a pod that is new or has changed, or that was given a node or lost it.

        Args:
            pod: as it is.
            active: whether it holds a node, or is about to, and is to stay.
            now: microseconds since the epoch.
        """
        before = self._members.get(pod.uid)
        if before is not None and _says_the_same(before.pod, pod):
            self._members[pod.uid] = _Member(pod, before.place, active)
            if before.active != active or before.pod.phase != pod.phase:
                self._restand(before, pod, active=active, now=now)
            return before.place
        place = membership(pod, self.sources.get)
        self._put(pod, place, active=active)
        self._settle(now)
        return place

    def pod_gone(self, uid: str, *, now: int) -> None:
        """Take in that a pod is gone."""
        member = self._members.get(uid)
        if member is not None:
            self._take(member)
            self._settle(now)

    # Inside.

    def _source_changed(self, key: str, now: int) -> tuple[str, ...]:
        moved = []
        for uid in sorted(self._dependents.get(key, ())):
            member = self._members[uid]
            place = membership(member.pod, self.sources.get)
            if place != member.place:
                moved.append(uid)
                self._put(member.pod, place, active=member.active)
        self._unsettled |= dict.fromkeys(self._made_of.get(key, set()) | {key}, True)
        self._settle(now)
        return tuple(moved)

    def _put(self, pod: Pod, place: Membership, *, active: bool) -> None:
        before = self._members.get(pod.uid)
        if before is not None:
            self._take(before, moves_to=place.group)
        self._members[pod.uid] = _Member(pod, place, active)
        for key in place.looked_at:
            self._dependents.setdefault(key, set()).add(pod.uid)
        pods = self._pods.setdefault(place.group, _Pods())
        pods.uids.add(pod.uid)
        _stand(self.standings.setdefault(place.group, Standing()), pod, place.pod_set, active=active, sign=1)
        # A pod that changes within its group may have been its oldest.
        news = before is not None or place.group not in self.groups
        if not place.problem:
            insort(pods.ages, _age(pod))
            news = news or pods.ages[0].uid == pod.uid or place.pod_set not in pods.sets
            pods.sets[place.pod_set] = pods.sets.get(place.pod_set, 0) + 1
        self._unsettled[place.group] = self._unsettled.get(place.group, False) or news

    def _take(self, member: _Member, *, moves_to: str = "") -> None:
        """Take a pod out of its group; how the group fares is not forgotten if the pod comes back to it."""
        pod, place, active = member
        del self._members[pod.uid]
        for key in place.looked_at:
            dependents = self._dependents[key]
            dependents.discard(pod.uid)
            if not dependents:
                del self._dependents[key]
        pods = self._pods[place.group]
        pods.uids.discard(pod.uid)
        _stand(self.standings[place.group], pod, place.pod_set, active=active, sign=-1)
        news = not pods.uids
        if not place.problem:
            news = news or pods.ages[0].uid == pod.uid
            del pods.ages[bisect_left(pods.ages, _age(pod))]
            pods.sets[place.pod_set] -= 1
            if not pods.sets[place.pod_set]:
                del pods.sets[place.pod_set]
                news = True
        if place.group == moves_to:
            return
        if not pods.uids:
            del self._pods[place.group], self.standings[place.group]
        self._unsettled[place.group] = self._unsettled.get(place.group, False) or news

    def _restand(self, before: _Member, pod: Pod, *, active: bool, now: int) -> None:
        """Count a pod anew that only runs, ends, is given a node or loses it."""
        place = before.place
        standing = self.standings[place.group]
        _stand(standing, before.pod, place.pod_set, active=before.active, sign=-1)
        _stand(standing, pod, place.pod_set, active=active, sign=1)
        self._judge(place.group, now)

    def _settle(self, now: int) -> None:
        for key, anew in sorted(self._unsettled.items()):
            if anew:
                self._make(key)
            self._judge(key, now)
        self._unsettled.clear()

    def _make(self, key: str) -> None:
        """Make a group anew, or end it."""
        pods = self._pods.get(key)
        oldest = self._members[pods.ages[0].uid] if pods is not None and pods.ages else None
        place = oldest.place if oldest is not None else Membership(key, source=key)
        source = self.sources.get(place.source) if place.source else None
        if oldest is None and (source is None or source.kind not in POD_GROUPS):
            if self.groups.pop(key, None) is not None:
                self._forget(key)
            return
        self.groups[key] = make_group(
            place,
            source,
            oldest.pod if oldest is not None else None,
            pod_sets=pods.sets if pods is not None else (),
            priority_of=self._priorities.get,
        )
        if place.source:
            self._made_of.setdefault(place.source, set()).add(key)

    def _forget(self, key: str) -> None:
        source = key.partition(":")[0]
        made = self._made_of.get(source)
        if made is not None:
            made.discard(key)
            if not made:
                del self._made_of[source]

    def _judge(self, key: str, now: int) -> None:
        """See whether a group has what it asks for."""
        standing, group = self.standings.get(key), self.groups.get(key)
        if standing is None:
            return
        if group is None:
            standing.short_since = 0
        elif satisfied(group.sets, standing.active):
            standing.satisfied_once = standing.satisfied_once or bool(standing.active)
            standing.short_since = 0
        elif not standing.active or standing.succeeded:
            standing.short_since = 0
        else:
            standing.short_since = standing.short_since or now

    def restore_standings(self, known: Iterable[tuple[str, bool, int]]) -> None:
        """Put back what of standings cannot be seen in what there is: key, `satisfied_once`, `short_since`."""
        told = {key: (once, since) for key, once, since in known}
        for key, standing in self.standings.items():
            standing.satisfied_once, standing.short_since = told.get(key, (False, 0))

    def known_standings(self) -> list[tuple[str, bool, int]]:
        """Return what `restore_standings` takes, in order."""
        return [
            (key, standing.satisfied_once, standing.short_since)
            for key, standing in sorted(self.standings.items())
            if standing.satisfied_once or standing.short_since
        ]


def _stand(standing: Standing, pod: Pod, pod_set: str, *, active: bool, sign: int) -> None:
    standing.succeeded += sign * (pod.phase == "Succeeded")
    if active:
        count = standing.active.get(pod_set, 0) + sign
        if count:
            standing.active[pod_set] = count
        else:
            del standing.active[pod_set]


def _age(pod: Pod) -> _Age:
    return _Age(pod.created_at, pod.namespace, pod.name, pod.uid)


def _says_the_same(before: Pod, pod: Pod) -> bool:
    """Tell whether all that groups depend on, the phase aside, is as it was."""
    return before is pod or (
        before.labels == pod.labels
        and before.annotations == pod.annotations
        and before.owner == pod.owner
        and before.workload == pod.workload
        and before.priority == pod.priority
    )
