"""Pods that are in the way where they are, and volumes."""

from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import node as reasons
from kaicore.rules.model.pod import HostPort, Pod, PodRules

from tests.given.cluster.factory import Cluster, pod
from tests.given.cluster.storage import ZONE, claim, storage, using, volume
from tests.simulation.situations import shows
from tests.unit.engine.test_pod_rules import HOST, away, near, running, spread, zones

WEB = {"app": "web"}


def asking(cluster: Cluster, rules: PodRules | None, **spec: object) -> tuple[Cluster, Pod]:
    return cluster, cluster.add_pod(pod("one", cpu=1, labels=WEB, rules=rules, **spec))  # type: ignore[arg-type]


@shows(reasons.NoTopologyLabel, "x", "zone", "1 cpu")
def no_label() -> tuple[Cluster, Pod]:
    return asking(zones(none="x"), spread())


@shows(reasons.TopologySpread, "a1", "zone", "skew 2", "1 allowed")
def skewed() -> tuple[Cluster, Pod]:
    cluster = zones(a="a1", b="b1")
    running(cluster, "there", "a1")
    cluster.add_node("b1", cpu=8, labels={HOST: "b1", "zone": "b"}, unschedulable=True)
    return asking(cluster, spread())


@shows(reasons.PodAffinity, "a1", "zone", "app In db", "1 cpu")
def far_from_others() -> tuple[Cluster, Pod]:
    return asking(zones(a="a1"), near("db"))


@shows(reasons.PodAntiAffinity, "a1", "zone", "app In db", "1 cpu")
def near_others() -> tuple[Cluster, Pod]:
    cluster = zones(a="a1")
    running(cluster, "db", "a1", labels={"app": "db"})
    return asking(cluster, away("db"))


@shows(reasons.AntiAffinityOfOthers, "a1", "zone", "1 cpu")
def others_keep_away() -> tuple[Cluster, Pod]:
    cluster = zones(a="a1")
    running(cluster, "db", "a1", labels={"app": "db"}, rules=away("web"))
    return asking(cluster, None)


@shows(reasons.HostPortTaken, "a1", "80", "1 cpu")
def port_taken() -> tuple[Cluster, Pod]:
    cluster = zones(a="a1")
    rules = PodRules(host_ports=(HostPort(80),))
    running(cluster, "there", "a1", rules=rules)
    return asking(cluster, rules)


@shows(reasons.VolumeOutOfReach, "a1", "zone", "1 cpu")
def out_of_reach() -> tuple[Cluster, Pod]:
    cluster = storage()
    claim(cluster, volume="v", bound=True)
    volume(cluster, claimed=True, zones={ZONE: "c"})
    cluster.record("node/x", payloads.NodeDeleted("uid-x", "x"))
    return cluster, using(cluster, "c", name="one")


@shows(reasons.NoVolumeLeft, "a1", "local", "1 cpu")
def none_left() -> tuple[Cluster, Pod]:
    cluster = storage()
    claim(cluster, storage_class="local", request=2**30)
    return cluster, using(cluster, "c", name="one")


@shows(reasons.VolumeInUse, "default/c", "1 cpu")
def in_use() -> tuple[Cluster, Pod]:
    cluster = storage()
    claim(cluster, volume="v", bound=True, access_modes=("ReadWriteOncePod",))
    volume(cluster, claimed=True)
    using(cluster, "c", name="first")
    cluster.cycle()
    return cluster, using(cluster, "c", name="one")


@shows(reasons.VolumeNotReady, "claim c", "does not exist", "1 cpu")
def no_claim() -> tuple[Cluster, Pod]:
    cluster = storage()
    return cluster, using(cluster, "c", name="one")
