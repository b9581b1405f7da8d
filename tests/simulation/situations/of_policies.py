"""Pods that wait because of the operator's policies."""

from kaicore.policy import Facts, Flags, Hold, Nodes, Policy, Queue, Waiting, Work
from kaicore.rules.engine.config import Backfill, EngineConfig
from kaicore.rules.events.reasons import group as reasons
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import Cluster, pod
from tests.given.work.policies import WithPolicies, setting_of
from tests.simulation.situations import shows


class NotHere(Policy):
    name, node_labels, reason = "not-here", ("spot",), "spot is for service"

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.labels("spot") != "true"


class NotYet(Policy):
    name = "not-yet"

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        return Hold("nights only", facts.now_us + 3_600_000_000)


def with_policy(kind: type[Policy]) -> EngineConfig:
    return EngineConfig(policies=(setting_of(kind),), backfill=Backfill.OFF)


def asking(kind: type[Policy]) -> tuple[Cluster, Pod]:
    cluster = WithPolicies(kind)
    cluster.add_node("n0", cpu=64, gpu=8, labels={"spot": "true"})
    return cluster, cluster.add_pod(pod("one", cpu=1, gpu=8))


@shows(
    reasons.FilteredByPolicy, "not-here", "spot is for service", "n0", "8 nvidia.com/gpu", config=with_policy(NotHere)
)
def filtered() -> tuple[Cluster, Pod]:
    return asking(NotHere)


@shows(reasons.HeldByPolicy, "not-yet", "nights only", "until 20", "8 nvidia.com/gpu", config=with_policy(NotYet))
def held() -> tuple[Cluster, Pod]:
    return asking(NotYet)
