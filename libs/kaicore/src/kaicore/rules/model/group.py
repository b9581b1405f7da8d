"""Groups: pods that start together or not at all, as a tree of pod sets with minimum counts.

One model serves every dialect: PodGroups of KAI, Volcano and the scheduler-plugins, Koordinator's annotations, the
native Workload API, owners such as a Job. Nothing behind the adapters knows which dialect it was. A group is made of a
source, the pods that belong to it, and the priority classes (`kaicore.rules.groups`). A source is one object of any
dialect, as the API server knows it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from kaicore.errors import InvalidObject
from kaicore.rules.model.pod import Owner
from kaicore.rules.model.selector import Requirement


class MatchPolicy(StrEnum):
    """The pods that count towards a group's minimum, in Koordinator's words (`match-policy`)."""

    WAITING_AND_RUNNING = "waiting-and-running"
    """Those that hold a node and those that are placed now: a group that lost a pod may replace that one alone."""

    ONLY_WAITING = "only-waiting"
    """Only those that are placed in one go: what runs already does not help those that wait."""

    ONCE_SATISFIED = "once-satisfied"
    """As the first, until the minimum was reached once; from then on each pod is on its own."""


class SliceLayer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Slices of a pod set: so many pods of consecutive ranks share a domain.

    Attributes:
        size: pods of each slice; every domain of the level holds a multiple of it.
        required: level at which the pods of a slice must share a domain; empty for none.
        preferred: level at which they should; empty for none.
        spares: how many nodes of a domain are left free for a failed node's pods.
    """

    size: int
    required: str = ""
    preferred: str = ""
    spares: int = 0


class SpreadRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A domain takes no more of like work while it holds more than a part of it.

    Attributes:
        level: of the domains.
        most_milli: the part, in thousandths of what the domain above holds, that a domain may hold already.
        preferred: whether such a domain comes last, instead of not at all.
    """

    level: str
    most_milli: int
    preferred: bool = False


class TopologyConstraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod set's place in a network topology, with the pods of its child sets included.

    Levels are named as in the object: by label key, alias, layer, tier or tier's name.

    Attributes:
        topology: name of the tree of domains; empty for the one that has the levels.
        required: level at which all of them must share a domain; empty for none.
        preferred: level at which they should; if they cannot, the next wider one counts, up to the required one.
        field: where in the object it is said, for people.
        kind: of the object that defines the topology, with its API group
            (`kaicore.rules.model.node`); empty for any, and for a label that no object tells of.
        closest: whether the narrowest level above the single nodes counts as preferred.
        unconstrained: whether any place in the topology will do; then the smallest gaps are filled first.
        slices: each size a divisor of that of the next wider layer.
        exclusive: whether sets of the same parent are in domains of the required level that they do not share.
        required_also: further levels at which they must share a domain; the narrowest of all counts.
        preferred_also: further levels at which they should; likewise.
        together: whether the pods of all groups that start at once with this one (`Group.together`) are meant.
        problem: what is wrong with what the object says, for people; then no pod of the group starts.
        spread: limits to the like work of a domain; each level is the required one or wider.
        spread_with: like work is the same set of groups of the namespace with pods of these labels; empty for groups of
            the same object.
    """

    topology: str = ""
    required: str = ""
    preferred: str = ""
    field: str = ""
    kind: str = ""
    closest: bool = False
    unconstrained: bool = False
    slices: tuple[SliceLayer, ...] = ()
    exclusive: bool = False
    required_also: tuple[str, ...] = ()
    preferred_also: tuple[str, ...] = ()
    together: bool = False
    problem: str = ""
    spread: tuple[SpreadRule, ...] = ()
    spread_with: tuple[Requirement, ...] = ()


class RankSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """The label or annotation with a pod's index in its set.

    Attributes:
        label: label, or else annotation, with a number as value.
        offset: number of the first pod.
        job_label: where pods of several jobs are in one set: label, or else annotation, with the number of the job.
        job_size: how many pods each job has; the ranks of a job follow those of the job before.
        order_only: whether only the order of the numbers counts: ranks go from 0 on without a gap, and pods that tell
            none come last.
    """

    label: str
    offset: int = 0
    job_label: str = ""
    job_size: int = 0
    order_only: bool = False


class PodSet(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A node of a group's tree: a leaf holds pods, an inner node holds other pod sets.

    Attributes:
        name: unique in its group; the root's is empty.
        parent: name of the set that it belongs to; the root's own is empty as well.
        min_pods: how many of its pods must run at once; 0 asks for none, so that each pod starts for itself. Of an
            inner set: how many of all pods below it, besides what its child sets ask for.
        min_sets: of an inner set: how many of its child sets must be satisfied; None for all.
        topology: where its pods are to be.
        ended: how many of its pods have ended well, as their owner tells, whether or not they are still there.
        rank: where pods tell their rank; None where they take the ranks in order of age and name.
        ends_whole: of a set below the root: whether none of its pods is evicted without all others of the set.
    """

    name: str = ""
    parent: str = ""
    min_pods: int = 0
    min_sets: int | None = None
    topology: TopologyConstraint | None = None
    ended: int = 0
    rank: RankSource | None = None
    ends_whole: bool = False


class Group(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Pods that are decided on together.

    Attributes:
        key: identifies the group in its cluster: `<origin kind>/<namespace>/<name>`.
        origin: the kind of object it was read from, such as `PodGroup.scheduling.run.ai`, `Job.batch` or `Pod`.
        sets: the tree, the root first and every parent before its children; a group of one set has just the root.
        queue: the queue that pays for it; empty for the default queue.
        priority: higher goes first.
        preemptible: whether others may have it evicted; what is not preemptible must stay within its queue's quota.
        created_at: seconds since the epoch.
        together: keys of the groups that must all start at once with this one, itself included (Koordinator's gang
            group), sorted; empty for none.
        match_policy: which pods count towards the minimum.
        staleness_grace_us: how long it may be below its minimum until it is evicted, microseconds; None for the
            configured time, negative for ever.
        preemption_delay_us: how long it waits until it may have others evicted, microseconds.
        preemption_policy: `Never` for one that has no other evicted, whatever its pods say; empty where they count.
        ends_whole: whether none of its pods is evicted without all others (native `disruptionMode: PodGroup`).
        provisioning_class: the ProvisioningClass by which it asks for nodes that it needs and that are not there; empty
            where it chooses none, `none` where it wants none.
        admitted: whether its pods have what Kueue writes on them when it admits them.
        most_failed_nodes: with pods on more failed nodes at once it ends as a whole; with fewer it waits for others. 0
            where it does not say.
    """

    key: str
    namespace: str
    name: str
    uid: str = ""
    origin: str = ""
    sets: tuple[PodSet, ...] = (PodSet(),)
    queue: str = ""
    priority: int = 0
    preemptible: bool = True
    created_at: int = 0
    together: tuple[str, ...] = ()
    match_policy: MatchPolicy = MatchPolicy.WAITING_AND_RUNNING
    staleness_grace_us: int | None = None
    preemption_delay_us: int = 0
    ends_whole: bool = False
    provisioning_class: str = ""
    admitted: bool = False
    preemption_policy: str = ""
    most_failed_nodes: int = 0


class SetRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pod sets that arise from pods' labels (Volcano's `subGroupPolicy`): one for each combination of values.

    Attributes:
        name: of the inner set below which they are.
        parent: of that inner set.
        min_sets: how many of them must be satisfied.
        match_labels: labels of the pods that belong here.
        requirements: more about their labels; all must hold.
        rank: where their pods tell their rank.
    """

    name: str
    parent: str = ""
    min_pods: int = 0
    min_sets: int = 0
    match_labels: dict[str, str] = {}
    requirements: tuple[Requirement, ...] = ()
    label_keys: tuple[str, ...] = ()
    topology: TopologyConstraint | None = None
    rank: RankSource | None = None


class GroupTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The form of a source's groups.

    Attributes:
        name: which of its groups; empty where it has one kind of groups only.
        sets: the tree, the root first and every parent before its children.
        rules: sets that arise from labels besides.
    """

    name: str = ""
    sets: tuple[PodSet, ...] = (PodSet(),)
    rules: tuple[SetRule, ...] = ()


class JobFailures(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Job's allowed number of failed pods, evictions counted.

    Attributes:
        limit: of failed pods, of the Job or of each index.
        failed: how many have (`status.failed`); of the Job, where it is not counted by index.
        per_index: whether the limit is of each index; the pods' annotations have its failures.
    """

    limit: int
    failed: int = 0
    per_index: bool = False


#: In what is kept of a Volcano Job (`GroupSource.kept`): the `schedulerName`s of the pods that it will make, divided by
#: commas.
SCHEDULER_NAMES = "schedulerNames"


class GroupSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that says how pods belong together.

    Attributes:
        kind: with its API group, such as `PodGroup.scheduling.run.ai` or `Job.batch`.
        created_at: seconds since the epoch.
        owner: its controller.
        parent: key of the object of which its group is a part (a CompositePodGroup); empty for a group by itself.
        templates: the groups that it stands for.
        queue: empty where it names none; its pods may.
        priority_class: empty where it names none.
        priority: a value that the object itself gives.
        preemptible: None where it does not say.
        kai: whether it speaks KAI's dialect, in which a priority of 100 or more means not preemptible.
        together: `<namespace>/<name>` of the gangs that start at once with this one.
        staleness_grace_us: see `Group`.
        preemption_delay_us: see `Group`; None where it does not say.
        preemption_policy: see `Group`.
        ends_whole: see `Group`.
        provisioning_class: see `Group`; empty where it names none, its pods may.
        failures: of a Job: what it bears; None where it does not count evictions as failures.
        active_deadline_s: seconds after which its pods are ended, by its deadline or its maximum execution time; 0 for
            never.
        suspended: of an owner of pods: whether it says that they are not to be made yet.
        most_failed_nodes: see `Group`.
        kept: what else it says that nothing is done with yet, or that only its status needs.
    """

    kind: str
    uid: str
    namespace: str
    name: str
    resource_version: str
    created_at: int = 0
    owner: Owner | None = None
    templates: tuple[GroupTemplate, ...] = (GroupTemplate(),)
    queue: str = ""
    priority_class: str = ""
    priority: int | None = None
    preemptible: bool | None = None
    kai: bool = False
    together: tuple[str, ...] = ()
    match_policy: MatchPolicy = MatchPolicy.WAITING_AND_RUNNING
    staleness_grace_us: int | None = None
    preemption_delay_us: int | None = None
    ends_whole: bool = False
    kept: dict[str, str] = {}
    failures: JobFailures | None = None
    provisioning_class: str = ""
    active_deadline_s: int = 0
    suspended: bool = False
    parent: str = ""
    preemption_policy: str = ""
    most_failed_nodes: int = 0

    @property
    def key(self) -> str:
        """The object's identity in its cluster."""
        return source_key(self.kind, self.namespace, self.name)

    def template(self, name: str) -> GroupTemplate | None:
        """Return one of its templates."""
        return next((template for template in self.templates if template.name == name), None)


def source_key(kind: str, namespace: str, name: str) -> str:
    """Return what identifies an object in its cluster, as `GroupSource.key` does."""
    return f"{kind}/{namespace}/{name}"


def leaves(sets: Sequence[PodSet]) -> tuple[PodSet, ...]:
    """Return the sets that hold pods, in the tree's order."""
    parents = {one.parent for one in sets[1:]}
    return tuple(one for one in sets if one.name not in parents)


def satisfied(sets: Sequence[PodSet], pods: Mapping[str, int]) -> bool:
    """Tell whether a tree has what it asks for, with so many pods in each leaf."""
    # From the last to the first, every set comes after all that is below it.
    counts: dict[str, int] = {}
    met: dict[str, int] = {}
    below: dict[str, int] = {}
    for one in reversed(sets):
        inner = one.name in below
        count = counts.get(one.name, 0) if inner else pods.get(one.name, 0)
        enough = count >= one.min_pods
        if inner:
            needed = below[one.name] if one.min_sets is None else one.min_sets
            enough = enough and met.get(one.name, 0) >= needed
        if one.name == sets[0].name:
            return enough
        counts[one.parent] = counts.get(one.parent, 0) + count
        met[one.parent] = met.get(one.parent, 0) + enough
        below[one.parent] = below.get(one.parent, 0) + 1
    return True


def is_gang(group: Group) -> bool:
    """Tell whether more than one pod of a group has to start at once, or it with other groups."""
    return bool(group.together) or min_pods(group.sets) > 1


def min_pods(sets: Sequence[PodSet]) -> int:
    """Return the least number of pods with which a tree has what it asks for."""
    needed: dict[str, list[int]] = {}
    for one in reversed(sets):
        below = sorted(needed.pop(one.name, ()))
        asked = max(one.min_pods, sum(below[: len(below) if one.min_sets is None else one.min_sets]))
        if one.name == sets[0].name:
            return asked
        needed.setdefault(one.parent, []).append(asked)
    return 0


def ordered(sets: Iterable[PodSet], *, root: PodSet, subject: str, field: str) -> tuple[PodSet, ...]:
    """Return a tree, the root first and every parent before its children, otherwise in the order given.

    Raises InvalidObject: a name is there twice, a parent is not there at all, or sets are each other's parents.

    Args:
        sets: all but the root, in any order.
        root: the set that those without a parent belong to.
        subject: the object that says so, for errors.
        field: where it says so, for errors.
    """
    given = list(sets)
    by_name: dict[str, PodSet] = {}
    for index, one in enumerate(given):
        if one.name in by_name or one.name == root.name:
            raise InvalidObject(subject, f"{field}[{index}].name", one.name, "is there twice or empty")
        by_name[one.name] = one
    below: dict[str, list[PodSet]] = {}
    for index, one in enumerate(given):
        if one.parent != root.name and one.parent not in by_name:
            raise InvalidObject(subject, f"{field}[{index}].parent", one.parent, "is no sub-group of this group")
        below.setdefault(one.parent, []).append(one)
    tree = [root]
    for one in tree:
        tree += below.pop(one.name, ())
    if below:
        name = min(below)
        raise InvalidObject(subject, field, name, "is below itself")
    return tuple(tree)


def check_minimums(sets: Sequence[PodSet], *, subject: str, field: str) -> None:
    """Check that no set asks for more child sets than it has. Raises InvalidObject: naming the set."""
    below = Counter(one.parent for one in sets[1:])
    for one in sets:
        if one.min_sets is not None and one.min_sets > below[one.name]:
            problem = f"asks for {one.min_sets} sub-groups and has {below[one.name]}"
            raise InvalidObject(subject, field, one.name, problem)
