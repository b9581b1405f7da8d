"""All groups of a cluster, kept up to date as sources, pods and priority classes come, change and go.

Changes are reported one at a time, in any order; the groups depend only on the present objects. A group is made of its
source, its pods and the priority classes. The source's fields come first. Fields that it leaves empty come from the
group's oldest pod, and the rest has the defaults of Kubernetes.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from kaicore.rules.groups import koordinator, labels
from kaicore.rules.groups.composite import Below, parts, place_in_tree, tree_sets
from kaicore.rules.groups.dialects.table import GATES
from kaicore.rules.groups.kai_topology import kai_topology, pod_topology
from kaicore.rules.groups.kueue import kueue_topology, pod_group_rank, pod_group_size, starts_whole
from kaicore.rules.groups.membership import POD, Membership, membership, owner_kind
from kaicore.rules.groups.pod_templates import annotated_tiers
from kaicore.rules.model.group import (
    Group,
    GroupSource,
    GroupTemplate,
    MatchPolicy,
    PodSet,
    TopologyConstraint,
    source_key,
)
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.provisioning import PROVISIONING_CLASS_ANNOTATION

#: From this priority on, a group of KAI's dialect that does not say otherwise cannot be preempted.
#: Source: KAI-Scheduler, `preemptibility` of PodGroup v2alpha2.
NON_PREEMPTIBLE_PRIORITY = 100

PriorityOf = Callable[[str], int | None]


def make_group(
    member: Membership,
    source: GroupSource | None,
    oldest: Pod | None,
    *,
    pod_sets: Iterable[str] = (),
    priority_of: PriorityOf,
    below: Below = lambda key: (),
) -> Group:
    """Return a group.

    Args:
        source: what it is made of; None where pods alone make it.
        oldest: the first of its pods by age and name; None without any, which only a source can be.
        priority_of: the value of a priority class, None where there is none of that name.
        below: the objects that name the source, by its key, as their parent.
    """
    if source is None:
        assert oldest is not None
        return _of_pods(member, oldest)
    template = source.template(member.template) or source.templates[0]
    alone = member.group == source.key
    priority = source.priority
    for name in (
        source.priority_class,
        oldest.labels.get(labels.PRIORITY_CLASS_LABEL, "") if oldest is not None else "",
    ):
        priority = priority_of(name) if priority is None and name else priority
    if priority is None:
        priority = oldest.priority if oldest is not None else 0
    kai = source.kai or (oldest is not None and labels.names_kai_queue(oldest))
    composite = source.kind == labels.COMPOSITE_POD_GROUP
    sets = tree_sets(source, below) if composite else _sets(template, pod_sets)
    return Group(
        key=member.group,
        namespace=source.namespace,
        name=member.group.split("/", 2)[2],
        uid=source.uid,
        origin=source.kind,
        sets=sets if source.kind == labels.KAI_POD_GROUP else _with_topology(sets, oldest),
        queue=source.queue or (labels.queue_of(oldest) if oldest is not None else ""),
        priority=priority,
        preemptible=_preemptible(source.preemptible, oldest, priority=priority, kai=kai),
        created_at=source.created_at if alone or oldest is None else oldest.created_at,
        together=_together(source.together, member.group) or _after(source, oldest, member.group),
        match_policy=source.match_policy,
        staleness_grace_us=source.staleness_grace_us,
        preemption_delay_us=source.preemption_delay_us or 0,
        preemption_policy=source.preemption_policy,
        ends_whole=source.ends_whole,
        provisioning_class=source.provisioning_class or (_provisioning_class(oldest) if oldest is not None else ""),
        admitted=oldest is not None and labels.is_admitted(oldest),
        most_failed_nodes=source.most_failed_nodes,
    )


def _of_pods(member: Membership, oldest: Pod) -> Group:
    """Return a group that pods alone make: a pod, a gang that annotations describe, or a pod group of Kueue."""
    kind = member.group.partition("/")[0]
    if kind == labels.KUEUE_WORKLOAD:
        return _pod_group_of_kueue(member, oldest)
    gang = kind != POD
    annotations = oldest.annotations
    count = int(koordinator.gang_min_available(oldest)) if gang else 0
    gathering = koordinator.gather_strategy(annotations, pods=count) if gang else None
    topology = gathering or (pod_topology(annotations) if gang else _pod_topology(oldest))
    root = PodSet(min_pods=count, topology=topology, rank=koordinator.topology_index(gathering))
    return _group_of_pods(
        oldest,
        member,
        uid="" if gang else oldest.uid,
        origin=labels.SIGS_POD_GROUP if gang else POD,
        sets=_only(root),
        together=_together(koordinator.gang_group(annotations), member.group) if gang else (),
        match_policy=koordinator.match_policy(annotations) if gang else MatchPolicy.WAITING_AND_RUNNING,
        preemption_delay_us=0
        if gang or labels.preemption_delay_problem(oldest)
        else labels.preemption_delay_us(oldest),
    )


def _group_of_pods(oldest: Pod, member: Membership, **given: Any) -> Group:
    """Return a group of pods without an object; its oldest pod speaks for all."""
    name = member.group.split("/", 2)[2]
    return Group(
        key=member.group,
        namespace=oldest.namespace,
        # Of a pod alone it is the pod's, and one object with that.
        name=oldest.name if name == oldest.name else name,
        queue=labels.queue_of(oldest),
        priority=oldest.priority,
        preemptible=_preemptible(None, oldest, priority=oldest.priority, kai=labels.names_kai_queue(oldest)),
        created_at=oldest.created_at,
        provisioning_class=_provisioning_class(oldest),
        admitted=labels.is_admitted(oldest),
        **given,
    )


@lru_cache(maxsize=4096)
def _only(root: PodSet) -> tuple[PodSet, ...]:
    """Return the sets of a group of one; most pods have the same, which are one object then."""
    return (root,)


def _pod_topology(pod: Pod) -> TopologyConstraint | None:
    """Return where a pod without any group is to be, in Kueue's words, Volcano's or KAI's."""
    annotations = pod.annotations
    if not annotations:
        return None
    return kueue_topology(annotations, pods=1) or annotated_tiers(annotations) or pod_topology(annotations)


def _pod_group_of_kueue(member: Membership, oldest: Pod) -> Group:
    """Return a pod group of Kueue."""
    size = pod_group_size(oldest)
    topology = kueue_topology(oldest.annotations, pods=size)
    least = size if starts_whole(oldest) else 1
    root = PodSet(min_pods=least, topology=topology, rank=pod_group_rank(oldest.annotations))
    return _group_of_pods(oldest, member, origin=labels.KUEUE_WORKLOAD, sets=(root,))


def _provisioning_class(pod: Pod) -> str:
    return pod.annotations.get(PROVISIONING_CLASS_ANNOTATION, "")


def _together(names: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return the keys of gangs that start at once, the group's own among them; none if it is the only one."""
    keys = {source_key(labels.SIGS_POD_GROUP, *name.split("/", 1)) for name in names} | {key}
    return tuple(sorted(keys)) if len(keys) > 1 else ()


def _after(source: GroupSource, oldest: Pod | None, key: str) -> tuple[str, ...]:
    """Return the keys of a group and of the one that its pods wait for, by a gate of their controller; none without.

    It does not go on without that one, which goes on without it.
    """
    gate = next((gate for kind, gate in GATES if kind == source.kind), None)
    name = oldest.labels.get(gate.after, "") if oldest is not None and gate is not None else ""
    return tuple(sorted((key, source_key(source.kind, source.namespace, name)))) if name else ()


def _sets(template: GroupTemplate, pod_sets: Iterable[str]) -> tuple[PodSet, ...]:
    """Return a template's tree, with the sets that arise from the labels of the pods there are."""
    if not template.rules:
        return template.sets
    sets = list(template.sets)
    arisen = sorted(pod_sets)
    for rule in template.rules:
        sets.append(PodSet(rule.name, rule.parent, min_sets=rule.min_sets))
        prefix = f"{rule.name}."
        names = [name for name in arisen if name.startswith(prefix)]
        sets += [PodSet(name, rule.name, rule.min_pods, topology=rule.topology, rank=rule.rank) for name in names]
    return tuple(sets)


def _with_topology(sets: tuple[PodSet, ...], oldest: Pod | None) -> tuple[PodSet, ...]:
    """Return a tree with what its oldest pod says about topology in KAI's words, where the source says nothing.

    A PodGroup of KAI itself has the last word.
    """
    root, *others = sets
    if oldest is None or any(one.topology is not None for one in sets):
        return sets
    topology = kai_topology(oldest.annotations)
    return sets if topology is None else (replace(root, topology=topology), *others)


def _preemptible(declared: bool | None, oldest: Pod | None, *, priority: int, kai: bool) -> bool:
    if declared is None and oldest is not None and (oldest.labels or oldest.annotations):
        declared = labels.PREEMPTIBILITIES.get(oldest.labels.get(labels.PREEMPTIBILITY_LABEL, ""))
        if declared is None:
            declared = labels.volcano_preemptable(oldest.labels, oldest.annotations)
    return declared if declared is not None else not kai or priority < NON_PREEMPTIBLE_PRIORITY


_ALONE = f"{POD}/"
_COMPOSITE = f"{labels.COMPOSITE_POD_GROUP}/"


class _Age(NamedTuple):
    created_at: int
    namespace: str
    name: str
    uid: str


class _Member(NamedTuple):
    pod: Pod
    place: Membership


@dataclass(slots=True)
class _Pods:
    """Attributes:
    ages: of those that can be decided on, the oldest first.
    sets: how many of those are in each set.
    """

    uids: set[str] = field(default_factory=set)
    ages: list[_Age] = field(default_factory=list)
    sets: dict[str, int] = field(default_factory=dict)


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
        #: Pods that depend on a source, whether it is there or not.
        self._dependents: dict[str, set[str]] = {}
        #: Keys of Kueue's Workloads, by the key of the object that each stands for.
        self._workloads: dict[str, set[str]] = {}
        #: Keys of the sources that are parts of another one's tree, by its key.
        self._below: dict[str, set[str]] = {}
        #: Groups that are made of a source.
        self._made_of: dict[str, set[str]] = {}
        #: Groups that are to be made anew.
        self._unsettled: set[str] = set()

    def pods_of(self, key: str) -> frozenset[str]:
        """Return the uids of a group's pods, those that cannot be decided on included."""
        if key.startswith(_ALONE):
            return frozenset((self.groups[key].uid,)) if key in self.groups else frozenset()
        members = self._pods.get(key)
        return frozenset(members.uids) if members is not None else frozenset()

    def place_of(self, uid: str) -> Membership | None:
        """Return where a pod belongs; None for a pod that is not known."""
        member = self._members.get(uid)
        return member.place if member is not None else None

    def parts_of(self, group: Group) -> Iterator[Group]:
        """Yield a group and the objects of its tree that can be decided on, each as a group by itself."""
        for part in parts(group, self._below_of) if group.origin == labels.COMPOSITE_POD_GROUP else (group,):
            source = self.sources.get(part.key)
            if source is None or not place_in_tree(source, self.sources.get).problem:
                yield part

    # What happens.

    def source_seen(self, source: GroupSource) -> tuple[str, ...]:
        """Take in a source that is new or has changed; return the uids of the pods that belong elsewhere now."""
        self._forget_workload(source.key)
        self._leave_tree(source.key)
        self.sources[source.key] = source
        if source.parent:
            self._below.setdefault(source.parent, set()).add(source.key)
        if source.kind == labels.KUEUE_WORKLOAD:
            self._workloads.setdefault(_stands_for(source), set()).add(source.key)
        return self._source_changed(source.key)

    def source_gone(self, key: str, uid: str) -> tuple[str, ...]:
        """Take in that a source is gone, unless another one of its name is there; return as above."""
        source = self.sources.get(key)
        if source is None or source.uid != uid:
            return ()
        self._forget_workload(key)
        self._leave_tree(key)
        del self.sources[key]
        return self._source_changed(key)

    def workloads_of(self, key: str) -> list[GroupSource]:
        """Return the Workloads of Kueue that stand for an object, by its key; in no order."""
        return [self.sources[one] for one in self._workloads.get(key, ())]

    def _forget_workload(self, key: str) -> None:
        before = self.sources.get(key)
        if before is not None and before.kind == labels.KUEUE_WORKLOAD:
            _discard(self._workloads, _stands_for(before), key)

    def _below_of(self, key: str) -> list[GroupSource]:
        """Return the sources that are parts of another one, the oldest first."""
        parts = [self.sources[one] for one in self._below.get(key, ())]
        return sorted(parts, key=lambda one: (one.created_at, one.key))

    def _leave_tree(self, key: str) -> None:
        """Take a source out of the tree in which it was; that is to be made anew."""
        before = self.sources.get(key)
        if before is not None and before.parent:
            self._unsettled.update(place_in_tree(before, self.sources.get).looked_at)
            _discard(self._below, before.parent, key)

    def priority_class(self, name: str, value: int | None) -> None:
        """Take in a priority class, None when it is gone."""
        if self._priorities.get(name) == value:
            return
        if value is None:
            del self._priorities[name]
        else:
            self._priorities[name] = value
        self._unsettled.update(key for key in self.groups if not key.startswith(_ALONE))
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

    def pod_seen_again(self, pod: Pod) -> None:
        """Have a known pod with another status, on which no group depends."""
        self._members[pod.uid] = _Member(pod, self._members[pod.uid].place)

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
        source = self.sources.get(key)
        if source is not None and source.parent:
            self._unsettled.update(place_in_tree(source, self.sources.get).looked_at)
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
            self.groups[place.group] = make_group(place, None, pod, priority_of=self._priorities.get)
            self.changed.add(place.group)
            return
        pods = self._pods.setdefault(place.group, _Pods())
        pods.uids.add(pod.uid)
        if place.problem:
            return
        insort(pods.ages, _age(pod))
        arises = place.pod_set not in pods.sets and _sets_arise(place)
        if place.group not in self.groups or pods.ages[0].uid == pod.uid or arises:
            self._unsettled.add(place.group)
        pods.sets[place.pod_set] = pods.sets.get(place.pod_set, 0) + 1

    def _take(self, member: _Member) -> None:
        pod, place = member
        del self._members[pod.uid]
        for key in place.looked_at:
            _discard(self._dependents, key, pod.uid)
        if _is_alone(place):
            # Unless there is another one of the name by now.
            group = self.groups.get(place.group)
            if group is not None and group.uid == pod.uid:
                del self.groups[place.group]
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
            if _sets_arise(place):
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
        if oldest is None and (source is None or source.kind not in labels.POD_GROUPS or source.parent):
            if self.groups.pop(key, None) is not None:
                _discard(self._made_of, key.partition(":")[0], key)
                self.changed.add(key)
            return
        group = make_group(
            place,
            source,
            oldest.pod if oldest is not None else None,
            pod_sets=pods.sets if pods is not None else (),
            priority_of=self._priorities.get,
            below=self._below_of,
        )
        if self.groups.get(key) != group:
            self.groups[key] = group
            self.changed.add(key)
        if place.source:
            self._made_of.setdefault(place.source, set()).add(key)


def _discard(keys: dict[str, set[str]], of: str, one: str) -> None:
    """Take a key out of those of another one, which is left out as soon as it has none."""
    if of in keys:
        keys[of].discard(one)
        if not keys[of]:
            del keys[of]


def _is_alone(place: Membership) -> bool:
    return place.group.startswith(_ALONE)


def _sets_arise(place: Membership) -> bool:
    """Tell whether a group's sets may depend on its pods; those of a tree of objects do not, and it is long to make."""
    return not place.group.startswith(_COMPOSITE)


def _stands_for(workload: GroupSource) -> str:
    """Return the key of what a Workload of Kueue stands for: its controller, or the pod group of its name."""
    owner = workload.owner
    return source_key(owner_kind(owner), workload.namespace, owner.name) if owner is not None else workload.key


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
