"""All groups of a cluster, kept up to date as sources, pods and priority classes come, change and go.

Changes are reported one at a time, in any order; the groups depend only on the present objects.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

from kaicore.rules.groups.labels import POD_GROUPS
from kaicore.rules.groups.making import make_group
from kaicore.rules.groups.membership import POD, Membership, membership
from kaicore.rules.model.group import Group
from kaicore.rules.model.group_source import GroupSource
from kaicore.rules.model.pod import Pod

_ALONE = f"{POD}/"


class _Age(NamedTuple):
    created_at: int
    namespace: str
    name: str
    uid: str


class _Member(NamedTuple):
    pod: Pod
    place: Membership


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
        changed: keys of groups that are new, have changed or are gone since it was last emptied.
    """

    def __init__(self) -> None:
        self.sources: dict[str, GroupSource] = {}
        self.groups: dict[str, Group] = {}
        self.changed: set[str] = set()
        self._priorities: dict[str, int] = {}
        self._members: dict[str, _Member] = {}
        self._pods: dict[str, _Pods] = {}
        #: Uids of pods that are groups of their own, of which there are many.
        self._alone: dict[str, str] = {}
        #: Pods that depend on a source, whether it is there or not.
        self._dependents: dict[str, set[str]] = {}
        #: Groups that are made of a source.
        self._made_of: dict[str, set[str]] = {}
        #: Groups that are to be made anew.
        self._unsettled: set[str] = set()

    def pods_of(self, key: str) -> frozenset[str]:
        """Return the uids of a group's pods, those that cannot be decided on included."""
        if key in self._alone:
            return frozenset((self._alone[key],))
        members = self._pods.get(key)
        return frozenset(members.uids) if members is not None else frozenset()

    def place_of(self, uid: str) -> Membership | None:
        """Return where a pod belongs; None for a pod that is not known."""
        member = self._members.get(uid)
        return member.place if member is not None else None

    # What happens.

    def source_seen(self, source: GroupSource) -> tuple[str, ...]:
        """Take in a source that is new or has changed; return the uids of the pods that belong elsewhere now."""
        self.sources[source.key] = source
        return self._source_changed(source.key)

    def source_gone(self, key: str, uid: str) -> tuple[str, ...]:
        """Take in that a source is gone, unless another one of its name is there; return as above."""
        source = self.sources.get(key)
        if source is None or source.uid != uid:
            return ()
        del self.sources[key]
        return self._source_changed(key)

    def priority_class(self, name: str, value: int | None) -> None:
        """Take in a priority class, None when it is gone."""
        if self._priorities.get(name) == value:
            return
        if value is None:
            del self._priorities[name]
        else:
            self._priorities[name] = value
        self._unsettled |= self.groups.keys() - self._alone.keys()
        self._settle()

    def pod_seen(self, pod: Pod) -> Membership:
        """Take in a pod that is new or has changed; return where it belongs."""
        before = self._members.get(pod.uid)
        if before is not None and _says_the_same(before.pod, pod):
            self._members[pod.uid] = _Member(pod, before.place)
            return before.place
        place = membership(pod, self.sources.get)
        self._put(pod, place)
        self._settle()
        return place

    def pod_gone(self, uid: str) -> None:
        """Take in that a pod is gone."""
        member = self._members.get(uid)
        if member is not None:
            self._take(member)
            self._settle()

    # Inside.

    def _source_changed(self, key: str) -> tuple[str, ...]:
        moved = []
        for uid in sorted(self._dependents.get(key, ())):
            member = self._members[uid]
            place = membership(member.pod, self.sources.get)
            if place != member.place:
                moved.append(uid)
                self._put(member.pod, place)
        self._unsettled |= self._made_of.get(key, set()) | {key}
        self._settle()
        return tuple(moved)

    def _put(self, pod: Pod, place: Membership) -> None:
        before = self._members.get(pod.uid)
        if before is not None:
            self._take(before)
        self._members[pod.uid] = _Member(pod, place)
        for key in place.looked_at:
            self._dependents.setdefault(key, set()).add(pod.uid)
        if _is_alone(place):
            self._alone[place.group] = pod.uid
            self.groups[place.group] = make_group(place, None, pod, priority_of=self._priorities.get)
            self.changed.add(place.group)
            return
        pods = self._pods.setdefault(place.group, _Pods())
        pods.uids.add(pod.uid)
        if place.problem:
            return
        insort(pods.ages, _age(pod))
        if place.group not in self.groups or pods.ages[0].uid == pod.uid or place.pod_set not in pods.sets:
            self._unsettled.add(place.group)
        pods.sets[place.pod_set] = pods.sets.get(place.pod_set, 0) + 1

    def _take(self, member: _Member) -> None:
        pod, place = member
        del self._members[pod.uid]
        for key in place.looked_at:
            dependents = self._dependents[key]
            dependents.discard(pod.uid)
            if not dependents:
                del self._dependents[key]
        if _is_alone(place):
            # Unless there is another one of the name by now.
            if self._alone.get(place.group) == pod.uid:
                del self._alone[place.group], self.groups[place.group]
                self.changed.add(place.group)
            return
        pods = self._pods[place.group]
        pods.uids.discard(pod.uid)
        if not pods.uids:
            del self._pods[place.group]
        if place.problem:
            return
        if pods.ages[0].uid == pod.uid:
            self._unsettled.add(place.group)
        del pods.ages[bisect_left(pods.ages, _age(pod))]
        pods.sets[place.pod_set] -= 1
        if not pods.sets[place.pod_set]:
            del pods.sets[place.pod_set]
            self._unsettled.add(place.group)

    def _settle(self) -> None:
        for key in sorted(self._unsettled):
            self._make(key)
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
                self.changed.add(key)
            return
        group = make_group(
            place,
            source,
            oldest.pod if oldest is not None else None,
            pod_sets=pods.sets if pods is not None else (),
            priority_of=self._priorities.get,
        )
        if self.groups.get(key) != group:
            self.groups[key] = group
            self.changed.add(key)
        if place.source:
            self._made_of.setdefault(place.source, set()).add(key)

    def _forget(self, key: str) -> None:
        source = key.partition(":")[0]
        made = self._made_of.get(source)
        if made is not None:
            made.discard(key)
            if not made:
                del self._made_of[source]


def _is_alone(place: Membership) -> bool:
    return place.group.startswith(_ALONE)


def _age(pod: Pod) -> _Age:
    return _Age(pod.created_at, pod.namespace, pod.name, pod.uid)


def _says_the_same(before: Pod, pod: Pod) -> bool:
    """Tell whether all that groups depend on is as it was."""
    return before is pod or (
        before.created_at == pod.created_at
        and before.labels == pod.labels
        and before.annotations == pod.annotations
        and before.owner == pod.owner
        and before.workload == pod.workload
        and before.priority == pod.priority
    )
