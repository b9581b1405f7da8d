"""NodeResourceTopology as the two publishers would write it, and its fingerprints."""

from typing import Any

import pytest
from kai_fleet.node.agent import Agent
from kai_fleet.node.nrt import NrtBuilder, legacy_policy, pods_fingerprint
from kai_fleet.profiles.nodes import NodeSpec, expand
from kai_fleet.profiles.profile import load_profile, parse_profile

from tests.tools.fleet.objects import pod_object, small_fleet

NOW = 1_800_000_000.0


def build(spec: NodeSpec, *pods: Any, wrong: bool = False) -> dict[str, Any]:
    agent = Agent(spec)
    builder = NrtBuilder(spec, agent.kubelet)
    for pod in pods:
        agent.pod_seen(pod, NOW)
    agent.due(NOW + 1)
    return builder.build(agent.kubelet, wrong_fingerprint=wrong)


def amounts(body: dict[str, Any], resource: str) -> list[tuple[str, str, str] | None]:
    """Per zone capacity, allocatable and available."""
    result: list[tuple[str, str, str] | None] = []
    for zone in body["zones"]:
        those = [r for r in zone["resources"] if r["name"] == resource]
        result.append((those[0]["capacity"], those[0]["allocatable"], those[0]["available"]) if those else None)
    return result


def attributes(body: dict[str, Any]) -> dict[str, str]:
    return {attribute["name"]: attribute["value"] for attribute in body["attributes"]}


# --- fingerprints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "fingerprint"),
    [
        ([], "pfp0v001ef46db3751d8e999"),
        ([("namespace1", "pod1")], "pfp0v0019e0420efb37746c6"),
        ([("default", "pod-a")], "pfp0v0019131e707ccadb65c"),
        ([("kube-system", "pod-b"), ("default", "pod-a")], "pfp0v0013c74a72bae9bd313"),
    ],
)
def test_pods_fingerprint_is_as_in_the_upstream_library(pods: list[tuple[str, str]], fingerprint: str) -> None:
    assert pods_fingerprint(pods) == fingerprint
    assert pods_fingerprint(reversed(pods)) == fingerprint


# --- contents ---------------------------------------------------------------------------------------------------------


def test_an_idle_node_as_rte_writes_it() -> None:
    body = build(small_fleet()[0])
    assert attributes(body) == {
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "container",
        "nodeTopologyPodsFingerprint": "pfp0v001ef46db3751d8e999",
        "nodeTopologyPodsFingerprintMethod": "with-exclusive-resources",
    }
    assert body["topologyPolicies"] == ["RestrictedContainerLevel"]
    assert body["metadata"]["annotations"] == {"topology.node.k8s.io/fingerprint": "pfp0v001ef46db3751d8e999"}
    assert [zone["name"] for zone in body["zones"]] == ["node-0", "node-1"]
    assert body["zones"][0]["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    assert amounts(body, "cpu") == [("8", "7", "7"), ("8", "8", "8")]
    assert amounts(body, "nvidia.com/gpu") == [("4", "4", "4"), ("4", "4", "4")]
    gib = 1024**3
    reserved = gib + 100 * 1024**2
    assert amounts(body, "memory") == [
        (str(32 * gib), str(32 * gib - reserved), str(32 * gib - reserved)),
        (str(32 * gib), str(32 * gib), str(32 * gib)),
    ]


def test_deprecated_policy_name_is_published_for_policy_and_scope() -> None:
    assert [legacy_policy("single-numa-node", scope) for scope in ("container", "pod")] == [
        "SingleNUMANodeContainerLevel",
        "SingleNUMANodePodLevel",
    ]
    assert legacy_policy("restricted", "pod") == "RestrictedPodLevel"
    assert legacy_policy("best-effort", "container") == "BestEffortContainerLevel"
    assert legacy_policy("none", "pod") == "None"


def test_only_pods_with_exclusive_resources_are_printed_by_rte_and_all_by_nfd() -> None:
    pods = [
        pod_object("a", amounts={"cpu": "2", "memory": "1Gi"}),
        pod_object("b", amounts={"cpu": "500m"}),
        pod_object("c", amounts={"nvidia.com/gpu": "1"}),
    ]
    rte, nfd = build(small_fleet()[0], *pods), build(small_fleet(publisher="nfd")[0], *pods)
    printed = attributes(rte)["nodeTopologyPodsFingerprint"]
    assert printed == pods_fingerprint([("default", "a"), ("default", "c")])
    subjects = [("default", name) for name in "abc"]
    assert attributes(nfd)["nodeTopologyPodsFingerprint"] == pods_fingerprint(subjects)
    assert "nodeTopologyPodsFingerprintMethod" not in attributes(nfd)
    assert "metadata" not in nfd
    assert amounts(rte, "cpu")[0] == ("8", "7", "5")
    assert amounts(rte, "nvidia.com/gpu")[0] == ("4", "4", "3")


def test_a_wrong_fingerprint_is_well_formed_and_wrong() -> None:
    right, wrong = build(small_fleet()[0]), build(small_fleet()[0], wrong=True)
    assert attributes(wrong)["nodeTopologyPodsFingerprint"].startswith("pfp0v001")
    assert attributes(wrong) != attributes(right)


def test_without_static_managers_there_is_neither_cpu_nor_memory() -> None:
    text = """groups: [{name: a, zones: 2, perZone: {cpus: 4, memory: 8Gi},
                        devices: {a.com/x: [{id: x, zones: [1]}], a.com/flat: 1}}]"""
    body = build(expand(parse_profile(text, source="f"))[0])
    # A zone with nothing at all still shows its CPUs; a device without topology appears nowhere.
    assert body["zones"][0]["resources"] == [{"name": "cpu", "capacity": "4", "allocatable": "0", "available": "0"}]
    assert body["zones"][1]["resources"] == [{"name": "a.com/x", "capacity": "1", "allocatable": "1", "available": "1"}]


SHARED_DEVICE = """
groups:
  - name: a
    zones: 2
    perZone: {{cpus: 8, memory: 8Gi}}
    devices: {{a.com/nic: [{{id: nic, zones: [0, 1]}}]}}
    kubelet:
      topologyManagerPolicy: best-effort
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      reservedSystemCPUs: "0"
    nrt: {{publisher: {publisher}, exclude: [{exclude}]}}
"""


@pytest.mark.parametrize(
    ("publisher", "nic", "memory"),
    [
        # RTE: the device and the block in full in each zone. NFD: the device on its last zone, the block drained.
        ("rte", ["0", "0"], [8 * 1024**3 - 100 * 1024**2 - 9 * 1024**3, 8 * 1024**3 - 9 * 1024**3]),
        ("nfd", ["1", "0"], [0, 8 * 1024**3 - (9 * 1024**3 - (8 * 1024**3 - 100 * 1024**2))]),
    ],
)
def test_what_lies_in_several_zones_is_counted_as_the_publisher_does(
    publisher: str, nic: list[str], memory: list[int]
) -> None:
    spec = expand(parse_profile(SHARED_DEVICE.format(publisher=publisher, exclude=""), source="f"))[0]
    wide = pod_object("wide", amounts={"cpu": "1", "memory": "9Gi", "a.com/nic": "1"})
    body = build(spec, wide)
    assert [row and row[2] for row in amounts(body, "a.com/nic")] == nic
    assert [row and row[2] for row in amounts(body, "memory")] == [str(max(0, size)) for size in memory]


def test_excluded_resources_are_left_out() -> None:
    spec = expand(parse_profile(SHARED_DEVICE.format(publisher="rte", exclude="memory"), source="f"))[0]
    assert amounts(build(spec), "memory") == [None, None]


def test_nfd_never_learns_of_devices_that_came_or_went_after_it_started() -> None:
    for publisher, count in (("rte", "3"), ("nfd", "4")):
        spec = small_fleet(publisher=publisher)[0]
        agent = Agent(spec)
        builder = NrtBuilder(spec, agent.kubelet)
        agent.kubelet.set_device_health("nvidia.com/gpu", "gpu-00", healthy=False)
        row = amounts(builder.build(agent.kubelet), "nvidia.com/gpu")[0]
        assert row is not None
        assert row[1] == count


def test_every_bundled_profile_publishes_something_sensible() -> None:
    for spec in expand(load_profile("demo24")):
        if spec.group.nrt.publisher == "none":
            continue
        body = build(spec)
        for zone in body["zones"]:
            for resource in zone["resources"]:
                assert int(resource["capacity"]) >= int(resource["allocatable"]) == int(resource["available"]), (
                    spec.name
                )
