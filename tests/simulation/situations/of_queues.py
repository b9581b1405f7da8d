"""Queues that do not let work start, or have others evicted."""

from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import queue as reasons
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import PreemptionRule, Queue, QueueShare

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import OWNER, Workloads
from tests.simulation.situations import shows

LABEL = "kai.scheduler/queue"


def of_queue(*queues: Queue, nodes: int = 1) -> Workloads:
    cluster = Workloads()
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    cluster.add_nodes(nodes, cpu=64, gpu=8)
    return cluster


def asking(cluster: Workloads, name: str = "a", **spec: object) -> tuple[Cluster, Pod]:
    fields: dict[str, object] = {"cpu": 1, "gpu": 8, "labels": {LABEL: name}, "owner": OWNER} | spec
    return cluster, cluster.add_pod(pod("one", **fields))  # type: ignore[arg-type]


def running(cluster: Workloads, name: str, of: str, *, gpu: int = 8, **spec: object) -> None:
    fields: dict[str, object] = {"cpu": 1, "gpu": gpu, "labels": {LABEL: of}, "owner": OWNER} | spec
    cluster.add_pod(pod(name, node_name="n0", phase="Running", **fields))  # type: ignore[arg-type]


@shows(reasons.QueueDoesNotExist, "queue gone", "8 nvidia.com/gpu")
def not_there() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a")), "gone")


@shows(reasons.QueueInvalid, "queue a", "parent gone", "8 nvidia.com/gpu")
def invalid() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", "gone")))


@shows(reasons.QueueNotLeaf, "queue a", "8 nvidia.com/gpu")
def not_a_leaf() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a"), queue("b", "a")))


@shows(reasons.QueueStopped, "queue a", "8 nvidia.com/gpu")
def stopped() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", stopped=True)))


@shows(reasons.NamespaceNotSelected, "queue a", "namespace default", "8 nvidia.com/gpu")
def other_namespaces() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", namespaces=("ml",))))


@shows(reasons.QueueUnsupported, "queue a", "admission checks", "8 nvidia.com/gpu")
def unsupported() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", unsupported=("admission checks",))))


@shows(reasons.ResourceNotCovered, "queue a", "1 cpu")
def not_covered() -> tuple[Cluster, Pod]:
    shares = {"nvidia.com/gpu": QueueShare(quota=8)}
    return asking(of_queue(queue("a", only_named=True, shares=shares)))


@shows(reasons.OverLimit, "queue a never takes it", "8 gpu needed at once", "its limit is 4")
def over_limit() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", limit=4)))


@shows(reasons.NonPreemptibleOverQuota, "queue a", "4 gpu over its quota", "8 gpu asked for")
def over_quota() -> tuple[Cluster, Pod]:
    return asking(of_queue(queue("a", quota=4)), priority=100)


@shows(reasons.OverFairShare, "queue a", "fair share", "8 gpu asked for", "n0")
def over_fair_share() -> tuple[Cluster, Pod]:
    cluster = of_queue(queue("a", quota=0, weight=0), queue("b", quota=8))
    running(cluster, "theirs", "b")
    return asking(cluster)


@shows(reasons.QueueMayNotReclaim, "queue a", "8 nvidia.com/gpu", "n0")
def may_not_reclaim() -> tuple[Cluster, Pod]:
    cluster = of_queue(queue("a", quota=8, may_reclaim=False), queue("b", quota=0))
    running(cluster, "theirs", "b")
    return asking(cluster)


@shows(reasons.QueueMayNotPreempt, "queue a", "8 nvidia.com/gpu", "n0")
def may_not_preempt() -> tuple[Cluster, Pod]:
    cluster = of_queue(queue("a", quota=8, may_preempt=False))
    running(cluster, "low", "a", priority=1)
    return asking(cluster, priority=5)


@shows(reasons.PreemptionRuleUnsupported, "rule r", "ClusterQueue/a", "mode Boosted")
def rule_unsupported() -> tuple[Cluster, Pod]:
    rule = PreemptionRule("r", "Always", unsupported="candidateSelectors[0].priority.mode Boosted")
    ruled = queue("ClusterQueue/a", quota=8, may_preempt=False, rules_in="PreemptionConfig/c")
    cluster = of_queue(ruled, queue("PreemptionConfig/c", rules=(rule,)))
    running(cluster, "low", "ClusterQueue/a", priority=1)
    return asking(cluster, "ClusterQueue/a", priority=5)
