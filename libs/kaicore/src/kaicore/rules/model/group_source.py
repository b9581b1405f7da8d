"""Sources of groups: objects of any dialect that group pods, as facts about one object each.

A group is made of a source, the pods that belong to it, and the priority classes (`kaicore.rules.groups`). A source
alone is the API server's knowledge of one object.
"""

import msgspec

from kaicore.rules.model.group import MatchPolicy, PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.pod import Owner
from kaicore.rules.model.selector import Requirement


class SetRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pod sets that arise from pods' labels (Volcano's `subGroupPolicy`): one for each combination of values.

    Attributes:
        name: of the inner set below which they are.
        parent: of that inner set.
        min_pods: of each of them.
        min_sets: how many of them must be satisfied.
        match_labels: labels of the pods that belong here.
        requirements: more about their labels; all must hold.
        label_keys: labels with a value for each set.
        topology: of each of them.
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
        templates: the groups that it stands for.
        queue: empty where it names none; its pods may.
        priority_class: empty where it names none.
        priority: a value that the object itself gives.
        preemptible: None where it does not say.
        kai: whether it speaks KAI's dialect, in which a priority of 100 or more means not preemptible.
        together: `<namespace>/<name>` of the gangs that start at once with this one.
        staleness_grace_us: see `Group`.
        preemption_delay_us: see `Group`; None where it does not say.
        ends_whole: see `Group`.
        provisioning_class: see `Group`; empty where it names none, its pods may.
        failures: of a Job: what it bears; None where it does not count evictions as failures.
        active_deadline_s: seconds after which its pods are ended, by its deadline or its maximum execution time; 0 for
            never.
        suspended: of an owner of pods: whether it says that they are not to be made yet.
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
