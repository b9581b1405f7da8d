"""The differences between kubelets of different versions: a test for each one that `CHANGES` names with its source."""

from typing import Any

import pytest
from kaicore.rules.engine.config import EngineConfig, KubeletOverride
from kaicore.rules.events.payloads import PodPlaced
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.pod import Pod, QosClass
from kaicore.rules.numa.kubelet.cpu_packing import Spreading, distribute
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.versions import CHANGES, NEWEST_MINOR, REFERENCE_MINOR, PodLevel, kubelet_model

from tests.given.cluster.factory import Cluster, amounts, container, node, pod

ZONE = amounts(cpu=8, memory=32)
MANAGERS = EngineConfig(kubelets=(KubeletOverride(feature_gates={"PodLevelResourceManagers": True}),))


def cluster_of(version: str, policy: str = "single-numa-node", zones: int = 2, **kwargs: Any) -> Cluster:
    return Cluster().add_node("n1", *[ZONE] * zones, policy=policy, kubelet_version=version, **kwargs)


def outcome(cluster: Cluster, one: Pod, config: EngineConfig | None = None) -> PodPlaced | Reason:
    """The node of a pod, or the reason without one."""
    cluster.add_pod(one)
    result = cluster.cycle(config)
    return result.placements[0] if result.placements else result.pending[0].reasons[0]


def zones_of(decision: PodPlaced | Reason) -> dict[str, dict[str, int]]:
    assert isinstance(decision, PodPlaced), decision
    placement = decision.placement
    return {} if placement is None else {zone.zone: zone.amount for zone in placement.zone_amounts()}


# Which model.


@pytest.mark.parametrize(
    ("version", "minor", "text"),
    [
        ("v1.31.14", 31, "as kubelet 1.31 (it reports v1.31.14)"),
        ("v1.34.0-gke.100", 34, "as kubelet 1.34 (it reports v1.34.0-gke.100)"),
        ("", REFERENCE_MINOR, "as kubelet 1.36 (it reports no version)"),
        ("dev", REFERENCE_MINOR, "as kubelet 1.36 (it reports 'dev', which is no version)"),
        ("v1.44.1", NEWEST_MINOR, "as kubelet 1.38 (the newest that is known here; it reports v1.44.1)"),
        ("v1.19.3", 26, "as kubelet 1.26 (the oldest that is known here; it reports v1.19.3)"),
    ],
)
def test_a_node_follows_the_rules_of_its_version_or_the_nearest_known(version: str, minor: int, text: str) -> None:
    model = kubelet_model(node("n1", kubelet_version=version))
    assert (model.minor, model.text()) == (minor, text)


def test_a_declared_feature_tells_that_its_gate_is_on() -> None:
    """`status.declaredFeatures` (KEP-5328); resizing pods' own resources needs the gate of these."""
    declared = (
        "InPlacePodLevelResourcesVerticalScaling",
        "PodLevelResourceManagers",
        "RestartAllContainersOnContainerExits",
    )
    model = kubelet_model(node("n1", kubelet_version="v1.37.2", declared_features=declared))
    assert model.gates_on == {"PodLevelResources", "PodLevelResourceManagers"}
    assert KubeletSettings(minor=model.minor, gates_on=model.gates_on).pod_level is PodLevel.BUDGET
    assert model.text().endswith("with PodLevelResourceManagers, PodLevelResources, which it declares")


@pytest.mark.parametrize(
    ("minor", "on", "off", "level"),
    [
        (33, (), (), PodLevel.CONTAINERS),
        (34, (), (), PodLevel.NOTHING),
        (35, (), ("PodLevelResources",), PodLevel.REFUSED),
        (36, (), ("PodLevelResources",), PodLevel.REFUSED),
        (35, ("PodLevelResourceManagers",), (), PodLevel.NOTHING),
        (36, ("PodLevelResourceManagers",), (), PodLevel.BUDGET),
        (37, (), (), PodLevel.NOTHING),
        (38, ("PodLevelResourceManagers",), ("PodLevelResources",), PodLevel.REFUSED),
    ],
)
def test_what_is_aligned_of_pods_with_resources_of_their_own(
    minor: int, on: tuple[str, ...], off: tuple[str, ...], level: PodLevel
) -> None:
    """kubernetes/kubernetes#133279 (1.34), #134768 (1.36) and #141209: off by default in 1.37 too."""
    settings = KubeletSettings(minor=minor, gates_on=frozenset(on), gates_off=frozenset(off))
    assert settings.pod_level is level


def test_a_gate_that_matters_to_no_admission_cannot_be_configured() -> None:
    with pytest.raises(ValueError, match=r"feature_gates\[PodLevelResource\]: must be one of PodLevelResources"):
        KubeletOverride(feature_gates={"PodLevelResource": True})


# Memory groups: kubernetes/kubernetes#123443, since 1.32.


@pytest.mark.parametrize(("version", "admitted"), [("v1.31.14", True), ("v1.32.0", False), ("v1.36.2", False)])
def test_memory_of_zones_that_serve_another_group(version: str, admitted: bool) -> None:
    """#123443: CPUs of both zones and more memory than one has, where zone 0 serves the memory of another pod alone."""
    cluster = cluster_of(version, "restricted")
    assert zones_of(outcome(cluster, pod("first", cpu=4, memory=4))) == {"node-0": amounts(cpu=4, memory=4)}
    second = outcome(cluster, pod("second", cpu=10, memory=40))
    assert isinstance(second, PodPlaced) == admitted
    if isinstance(second, Reason):
        assert "UnexpectedAdmissionError" in str(second)
    else:
        # The zones are one group now: a pod that fits zone 0 is refused there, as recorded of 1.31.14 (versions-0030).
        third = outcome(cluster, pod("third", cpu=1, memory=1))
        assert isinstance(third, Reason)
        assert "TopologyAffinityError" in str(third)


# Pods with resources of their own.


OWN = amounts(cpu=5, memory=8)


def of_its_own(name: str, *containers: Any, resources: Any = None) -> Pod:
    return pod(name, *containers, pod_resources=resources or OWN)


@pytest.mark.parametrize(("version", "aligned"), [("v1.33.13", True), ("v1.34.4", False), ("v1.37.2", False)])
def test_containers_of_a_pod_with_resources_of_its_own(version: str, aligned: bool) -> None:
    """kubernetes/kubernetes#133279: since 1.34 neither CPUs nor memory of such a pod are aligned."""
    decision = outcome(cluster_of(version), of_its_own("p", container(cpu=4, memory=4)))
    assert zones_of(decision) == ({"node-0": amounts(cpu=4, memory=4)} if aligned else {})


@pytest.mark.parametrize(
    ("version", "policy", "refused"),
    [
        *(("v1.33.13", policy, True) for policy in ("single-numa-node", "none", "restricted")),
        ("v1.31.14", "restricted", False),
        ("v1.34.4", "single-numa-node", False),
    ],
)
def test_a_container_that_asks_for_nothing_of_a_pod_with_resources_of_its_own(
    version: str, policy: str, refused: bool
) -> None:
    """Recorded of 1.35.4 with the gate off, which is how 1.33 has it: the memory manager takes the pod for any other.

    A newer API server lets such a pod through and calls it Guaranteed.
    """
    decision = outcome(
        cluster_of(version, policy), of_its_own("p", container("main", cpu=4, memory=4), container("helper"))
    )
    assert isinstance(decision, Reason) == refused
    for said in ("the memory manager refuses a container that asks for none", "UnexpectedAdmissionError"):
        assert (said in str(decision)) == refused


def test_a_kubelet_without_pod_level_resources_refuses_pods_with_resources_of_their_own() -> None:
    """KEP-2837, `pkg/kubelet/lifecycle/features_linux.go` since 1.34; before, no admission looks at the gate."""
    config = EngineConfig(kubelets=(KubeletOverride(feature_gates={"PodLevelResources": False}),))
    one = of_its_own("p", container(cpu=4, memory=4))
    refused = outcome(cluster_of("v1.34.4"), one, config)
    assert isinstance(refused, Reason)
    assert "PodLevelResourcesNotSupported" in str(refused)
    assert isinstance(outcome(cluster_of("v1.33.13"), one, config), PodPlaced)
    assert isinstance(outcome(cluster_of("v1.34.4"), pod("plain", cpu=4, memory=4), config), PodPlaced)


def test_pod_scope_aligns_what_a_pod_asks_for_as_a_whole() -> None:
    """KEP-5526: the pod's CPUs and memory are one piece, whatever its containers share of it."""
    config = MANAGERS
    cluster = cluster_of("v1.37.2", scope="pod")
    one = of_its_own("p", container("main", cpu=4, memory=4), container("helper"))
    assert zones_of(outcome(cluster, one, config)) == {"node-0": OWN}
    # What is left of zone 0 is too little for the next; without the gate it would be anywhere.
    two = of_its_own("q", container("main", cpu=2, memory=2), container("helper"))
    assert zones_of(outcome(cluster, two, config)) == {"node-1": OWN}
    refused = outcome(cluster, of_its_own("r", container("main", cpu=2, memory=2), container("helper")), config)
    assert isinstance(refused, Reason)
    assert "TopologyAffinityError" in str(refused)


def test_container_scope_aligns_containers_that_are_limited_to_what_they_ask_for() -> None:
    """KEP-5526, `cm/qos/helpers.go`: CPUs and memory, both asked for and both limited to just that."""
    config = MANAGERS
    cluster = cluster_of("v1.37.2")
    half = container("half", cpu=2)
    one = of_its_own("p", container("main", cpu=4, memory=4), half)
    assert zones_of(outcome(cluster, one, config)) == {"node-0": amounts(cpu=4, memory=4)}


@pytest.mark.parametrize(("version", "admitted"), [("v1.36.3", False), ("v1.37.2", True)])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_containers_without_a_share_where_others_have_one(version: str, scope: str, admitted: bool) -> None:
    """Recorded of 1.36.3 (versions-0057): its memory manager is asked for nothing, and refuses it without chosen zones.

    KEP-5526, `memorymanager/policy_static.go`: 1.37 skips containers that request no memory. Pod scope gives all of
    the pod at once, in both.
    """
    one = of_its_own("p", container("main", cpu=4, memory=4), container("helper"))
    decision = outcome(cluster_of(version, scope=scope), one, MANAGERS)
    assert isinstance(decision, PodPlaced) == (admitted or scope == "pod")
    if isinstance(decision, Reason):
        assert "UnexpectedAdmissionError" in str(decision)
        assert "the memory manager refuses a container that asks for none" in str(decision)


@pytest.mark.parametrize(
    ("policy", "reason"), [("restricted", "TopologyAffinityError"), ("best-effort", "EmptyPodSharedPoolError")]
)
def test_containers_that_leave_nothing_to_the_others(policy: str, reason: str) -> None:
    """KEP-5526, `validatePodScopeResources`: policies that look at hints refuse by them, the others by allocating."""
    one = of_its_own("p", container("main", cpu=5, memory=4), container("helper"))
    refused = outcome(cluster_of("v1.36.3", policy, scope="pod"), one, MANAGERS)
    assert isinstance(refused, Reason)
    assert reason in str(refused)
    assert "leave nothing to those without a share" in str(refused)
    # Alone it needs not share.
    alone = of_its_own("q", container("main", cpu=5, memory=4))
    assert zones_of(outcome(cluster_of("v1.36.3", policy, scope="pod"), alone, MANAGERS)) == {"node-0": OWN}


def test_what_is_configured_of_a_version_goes_before_what_is_reported() -> None:
    older = EngineConfig(kubelets=(KubeletOverride(version="1.33"),))
    decision = outcome(cluster_of("v1.37.2"), of_its_own("p", container(cpu=4, memory=4)), older)
    assert zones_of(decision) == {"node-0": amounts(cpu=4, memory=4)}


def test_burstable_pods_with_resources_of_their_own_have_none_aligned_anywhere() -> None:
    one = pod("p", container(cpu=4, memory=4), qos=QosClass.BURSTABLE, pod_resources=OWN)
    for version in ("v1.31.14", "v1.36.3"):
        assert zones_of(outcome(cluster_of(version), one, MANAGERS)) == {}


# CPUs over several zones.


def spread(minor: int, *options: str, zones_per_socket: int = 1) -> KubeletSettings:
    names = frozenset(("distribute-cpus-across-numa", *options))
    return KubeletSettings(minor=minor, cpu_options=names, zones_per_socket=zones_per_socket)


def test_cpus_are_packed_unless_the_option_spreads_them() -> None:
    assert KubeletSettings(minor=37).spreading is None
    plan = spread(37).spreading
    assert plan is not None
    assert distribute({0: 8000, 1: 8000}, (8000, 8000), 10_000, by=plan) == {0: 5000, 1: 5000}
    assert distribute({0: 8000, 1: 8000}, (8000, 8000), 6000, by=plan) == {0: 6000}, "one zone has as much"
    assert distribute({0: 6000, 1: 8000}, (8000, 8000), 6000, by=plan) == {1: 6000}, "which leaves both the same"
    whole = Spreading(group=2, threads=2)
    assert distribute({0: 8000, 1: 8000}, (8000, 8000), 10_000, by=whole) == {0: 6000, 1: 4000}
    assert distribute({0: 8000, 1: 8000}, (8000, 8000), 9000, by=whole) == {0: 8000, 1: 1000}, "an odd number is packed"


@pytest.mark.parametrize(("minor", "zones"), [(37, 3), (38, 4)])
def test_cpus_are_spread_over_all_zones_of_the_mask(minor: int, zones: int) -> None:
    """kubernetes/kubernetes#139456, the case of #139430: 176 CPUs on four zones of 64, devices on all four."""
    cluster = Cluster()
    zone = amounts(cpu=62, gpu=2)
    cluster.add_node("n1", *[zone] * 4, policy="restricted", kubelet_version=f"v1.{minor}.0", capacity=amounts(cpu=64))
    config = EngineConfig(kubelets=(KubeletOverride(cpu_options=("distribute-cpus-across-numa",)),))
    config = EngineConfig(kubelets=(*config.kubelets, KubeletOverride(topology_policy=None)))
    decision = outcome(cluster, pod("p", cpu=240, gpu=8), config)
    assert len(zones_of(decision)) == 4, "so many CPUs need all zones anyway"
    best_effort = Cluster()
    best_effort.add_node(
        "n1", *[zone] * 4, policy="best-effort", kubelet_version=f"v1.{minor}.0", capacity=amounts(cpu=64)
    )
    held = zones_of(outcome(best_effort, pod("p", cpu=176, gpu=8), config))
    assert sum(1 for amount in held.values() if amount.get("cpu")) == zones


@pytest.mark.parametrize(("minor", "sockets"), [(36, 2), (37, 1)])
def test_spread_cpus_stay_on_a_socket(minor: int, sockets: int) -> None:
    """kubernetes/kubernetes#139778, the case of #114642: four zones on two sockets, of which each has lost some."""
    plan = spread(minor, "align-by-socket", zones_per_socket=2).spreading
    assert plan is not None
    assert plan.keeps_socket == (minor >= 37)
    held = distribute({0: 4000, 1: 2000, 2: 4000, 3: 2000}, (4000,) * 4, 6000, by=plan)
    assert len({zone // 2 for zone in held}) == sockets


def test_cpus_of_uncore_caches_leave_the_split_open() -> None:
    """KEP-4800 (1.32): which CPUs share a cache nothing publishes, so only the sum over the zones is certain."""
    config = EngineConfig(kubelets=(KubeletOverride(cpu_options=("prefer-align-cpus-by-uncorecache",)),))
    cluster = cluster_of("v1.34.4", "restricted")
    outcome(cluster, pod("first", cpu=2, memory=1), config)
    decision = outcome(cluster, pod("p", cpu=10), config)
    assert isinstance(decision, PodPlaced)
    assert decision.placement is not None
    (main,) = decision.placement.containers
    assert main.uncertain == ("cpu",)


@pytest.mark.parametrize("version", ["v1.37.2", "v1.38.0"])
def test_a_device_that_a_pod_holds_is_promised_to_no_other(version: str) -> None:
    """kubernetes/kubernetes#137534: a kubelet before 1.38 may take it for free, and then does not refuse the other pod.

    That depends on the instant of a List of podresources (decision 0450), so the model is the same in both.
    """
    cluster = Cluster().add_node("n1", amounts(cpu=8, memory=32, gpu=1), kubelet_version=version)
    assert isinstance(outcome(cluster, pod("first", cpu=1, memory=1, gpu=1)), PodPlaced)
    assert isinstance(outcome(cluster, pod("second", cpu=1, memory=1, gpu=1)), Reason)
    assert isinstance(outcome(cluster, pod("third", cpu=1, memory=1)), PodPlaced)


def test_every_change_names_its_source() -> None:
    assert [change.since for change in CHANGES] == sorted(change.since for change in CHANGES)
    assert all("#" in change.source or "KEP-" in change.source for change in CHANGES)
    assert {change.since for change in CHANGES} <= set(range(26, NEWEST_MINOR + 1))
