"""Queues: shares and limits of a cluster's users, as a hierarchy.

One model for two dialects: the Queues of KAI (`scheduling.run.ai`), and the ClusterQueues, Cohorts and LocalQueues of
Kueue. Names distinguish them, because all of them live side by side: a KAI Queue goes by its own name, a LocalQueue by
`<namespace>/<name>`, the other two by `ClusterQueue/<name>` and `Cohort/<name>` (no namespace has a capital letter).
"""

import msgspec

from kaicore.rules.model.node import Taint
from kaicore.rules.model.pod import Amounts, Toleration
from kaicore.rules.model.selector import Requirement

#: The queue of all work when no queue is configured, and of work that names none, whether one of this name is or not.
DEFAULT_QUEUE = "default"

#: The label by which KAI-Scheduler's shards divide nodes, groups and queues.
NODE_POOL_LABEL = "kai.scheduler/node-pool"

CLUSTER_QUEUE_PREFIX = "ClusterQueue/"
COHORT_PREFIX = "Cohort/"
PREEMPTION_CONFIG_PREFIX = "PreemptionConfig/"


def queue_kind_of(name: str) -> str:
    """Return the kind of the object that a queue's name is of, with its API group."""
    for prefix in (CLUSTER_QUEUE_PREFIX, COHORT_PREFIX, PREEMPTION_CONFIG_PREFIX):
        if name.startswith(prefix):
            return f"{prefix[:-1]}.kueue.x-k8s.io"
    return "LocalQueue.kueue.x-k8s.io" if "/" in name else "Queue.scheduling.run.ai"


class QueueShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue's amounts of one resource, in the resource's canonical units (`kaicore.rules.model.quantity`).

    Attributes:
        quota: guaranteed; None for unlimited.
        limit: never exceeded; None for none.
        borrowing: how much beyond the quota may be used; None for as much as the other bounds leave.
        lendable: how much of the quota others may use while it is idle; None for all of it (Kueue's lending limit).
        weight: share of what is beyond the quotas, in thousandths; 0 for none.
        quota_milli: thousandths of a GPU that come to a quota in whole GPUs; they count where parts of GPUs do.
        limit_milli: the same of a limit.
    """

    quota: int | None = 0
    limit: int | None = None
    borrowing: int | None = None
    lendable: int | None = None
    weight: int = 1000
    quota_milli: int = 0
    limit_milli: int = 0


class FlavorQuota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a ClusterQueue's or Cohort's quotas in one ResourceFlavor; the queue's quotas are the sums.

    Attributes:
        quotas: of the resources that may be used of it: not of those with neither a quota nor anything to borrow.
    """

    flavor: str
    quotas: Amounts = {}


class NumberRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A requirement on a label with a number, of work that may be evicted.

    Attributes:
        missing: the number of work without such a label; None where that is not selected.
        comparison: with the number of the work that needs room, such as `LessThan`; empty for none.
        least: of the number; None for any.
        most: likewise.
    """

    label: str
    missing: int | None = None
    comparison: str = ""
    least: int | None = None
    most: int | None = None


class VictimSelector(msgspec.Struct, frozen=True, omit_defaults=True):
    """The work that a rule lets be evicted; all of it must hold.

    Attributes:
        scope: its queue's place beside that of the work that needs room, in Kueue's words.
        comparison: of its priority with that of the work that needs room; empty for any priority.
        labels: of its pods.
        queue_labels: of its ClusterQueue.
    """

    scope: str
    comparison: str = ""
    labels: tuple[Requirement, ...] = ()
    queue_labels: tuple[Requirement, ...] = ()
    numbers: tuple[NumberRule, ...] = ()


class PreemptionRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule of a PreemptionConfig of Kueue.

    Attributes:
        trigger: when it counts, in Kueue's words.
        labels: of the pods of the work that needs room.
        selectors: any of them lets work be evicted.
        unsupported: what of it is not known here, so that it lets nothing be evicted.
    """

    name: str
    trigger: str = ""
    labels: tuple[Requirement, ...] = ()
    selectors: tuple[VictimSelector, ...] = ()
    unsupported: str = ""


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue.

    Attributes:
        name: unique in its cluster; see the module for what it looks like.
        origin: the kind it was read from, such as `Queue.scheduling.run.ai`.
        namespace: of a LocalQueue.
        parent: name of its parent; empty for a root.
        shares: by resource; a resource that is not named has no quota, no limit, and the usual weight.
        priority: queues of higher priority are given what is beyond the quotas first.
        created_at: seconds since the epoch.
        preempt_min_runtime_us: how long its groups run at least before one of the same queue may have them evicted,
            microseconds; None for what its parent says.
        reclaim_min_runtime_us: the same for groups of other queues.
        pooled: its quotas come on top of those of its children (a Cohort); otherwise the children divide its own.
        only_named: work that asks for a resource it does not name is not for it (a ClusterQueue).
        alias_of: what names this queue means another one (a LocalQueue its ClusterQueue); it is none itself.
        namespaces: its work comes from these; empty for all.
        stopped: takes no new work.
        may_preempt: whether its work may have other work of the same queue evicted.
        may_reclaim: whether its work may have that of other queues evicted.
        reclaims_lower: of other queues' work, only that of lower priority.
        borrows_from_lower: whether its work also has others evicted where it needs more than its share: of queues that
            use more than their quotas, work of lower priority (Kueue's `borrowWithinCohort`).
        most_priority_lent: of no higher priority than this; None for any.
        labels: of a ClusterQueue, by which rules of preemption select it.
        rules_in: name of the PreemptionConfig with rules for its work; empty for none.
        rules: of a PreemptionConfig, which is no queue itself.
        flavors: what the quotas are sums of.
        unsupported: constraints that this version cannot honour, and for which its work therefore waits.
        controlled: of a ClusterQueue: Kueue itself says in its status whether it is active, so Kueue admits its work.
        node_pool: value of the label `kai.scheduler/node-pool`, by which shards divide queues too.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    origin: str = ""
    namespace: str = ""
    parent: str = ""
    shares: dict[str, QueueShare] = {}
    priority: int = 100
    created_at: int = 0
    preempt_min_runtime_us: int | None = None
    reclaim_min_runtime_us: int | None = None
    pooled: bool = False
    only_named: bool = False
    alias_of: str = ""
    namespaces: tuple[str, ...] = ()
    stopped: bool = False
    may_preempt: bool = True
    may_reclaim: bool = True
    reclaims_lower: bool = False
    borrows_from_lower: bool = False
    most_priority_lent: int | None = None
    labels: dict[str, str] = {}
    rules_in: str = ""
    rules: tuple[PreemptionRule, ...] = ()
    flavors: tuple[FlavorQuota, ...] = ()
    unsupported: tuple[str, ...] = ()
    node_pool: str = ""
    controlled: bool = False


class ResourceFlavor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ResourceFlavor of Kueue: which nodes a part of the quotas stands for.

    Attributes:
        node_labels: what its nodes are labelled with; none for all nodes.
        node_taints: what pods must tolerate to be of it.
        tolerations: what is tolerated besides what the pods say.
        topology: name of the Topology of Kueue that its nodes are in; empty for none.
    """

    name: str
    uid: str = ""
    resource_version: str = ""
    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str = ""
