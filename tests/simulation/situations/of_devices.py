"""Pods with resource claims that keep them waiting."""

from kaicore.rules.events.reasons import node as reasons
from kaicore.rules.model.device import PodClaim
from kaicore.rules.model.pod import Pod

from tests.given.cluster.devices import add_claim, devices, exactly, from_template, using
from tests.given.cluster.factory import Cluster, pod
from tests.simulation.situations import shows


@shows(reasons.ResourceClaimNotReady, "claim gpu", "is not made yet from template one-gpu", "1 cpu")
def claim_is_not_made() -> tuple[Cluster, Pod]:
    cluster = devices(a1=1)
    return cluster, cluster.add_pod(pod("one", cpu=1, resource_claims=(PodClaim("gpu", template="one-gpu"),)))


@shows(reasons.ResourceClaimOutOfReach, "a1", "node selector of an allocated claim", "1 cpu")
def claim_is_allocated_elsewhere() -> tuple[Cluster, Pod]:
    cluster = devices(a1=1)
    field = {"key": "metadata.name", "operator": "In", "values": ["b1"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    add_claim(cluster, "shared", status={"allocation": {"devices": {"results": []}, "nodeSelector": selector}})
    return cluster, using(cluster, "shared", name="one")


@shows(reasons.NoMatchingDevices, "a1", "2 gpu.example.com", "1 cpu")
def too_few_devices() -> tuple[Cluster, Pod]:
    cluster = devices(a1=1)
    add_claim(cluster, "two", exactly(count=2))
    return cluster, using(cluster, "two", name="one")


@shows(reasons.DevicesTaken, "a1", "1 gpu.example.com", "1 cpu")
def devices_are_taken() -> tuple[Cluster, Pod]:
    cluster = devices(a1=1)
    from_template(cluster, name="first")
    cluster.cycle()
    return cluster, from_template(cluster, name="one")
