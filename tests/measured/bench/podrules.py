"""A cycle with pods that look at each other: anti-affinity by host, spread over zones, preferences."""

import time
from collections.abc import Iterator

from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import PodRules, PodTerm, PreferredPods, SpreadConstraint
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster.factory import Cluster, node, pod
from tests.measured.bench.figures import Figure, figure

_ZONE, _HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


def _rules(kind: str, app: str) -> PodRules | None:
    labels = (Requirement("app", "In", (app,)),)
    term = PodTerm(_HOST, PodSelector(("default",), labels=labels))
    spread = SpreadConstraint(1, _ZONE, PodSelector(("default",), labels=labels, living=True))
    return {
        "no rules": None,
        "anti-affinity by host": PodRules(anti_affinity=(term,)),
        "spread over zones": PodRules(spread=(spread,)),
        "preferred affinity by host": PodRules(preferred_pods=(PreferredPods(1, term),)),
    }[kind]


def filled(nodes: int, pods: int, *, apps: int, kind: str) -> Cluster:
    """Nodes in 20 zones; pods of several apps, each with an index of its own, as many running as waiting."""
    cluster = Cluster()
    for index in range(nodes):
        labels = {_ZONE: f"z{index % 20}", _HOST: f"n{index:05}"}
        cluster.record(f"node/n{index:05}", payloads.NodeObserved(node(f"n{index:05}", cpu=64, labels=labels)))
    for index in range(2 * pods):
        app = f"app-{index % apps}"
        one = pod(f"p{index:06}", cpu=1, labels={"app": app, "index": str(index)}, rules=_rules(kind, app))
        if index < pods:
            one = pod(one.name, cpu=1, labels=one.labels, node_name=f"n{index % nodes:05}", phase="Running")
        cluster.add_pod(one)
    return cluster


def figures() -> Iterator[Figure]:
    nodes, pods, apps = 10_000, 5_000, 40
    for kind in ("no rules", "anti-affinity by host", "spread over zones", "preferred affinity by host"):
        cluster = filled(nodes, pods, apps=apps, kind=kind)
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            proposal = decide(cluster.state, EngineConfig(), shard="default", now=cluster.now, actor="bench")
            seconds.append(time.perf_counter() - began)
        placed = len(proposal.result.placements)
        name = f"cycle with {kind}: {nodes} nodes, {pods} running, {pods} waiting, {apps} apps: {placed} placed"
        yield figure(name, [second * 1e3 for second in seconds], "ms")
