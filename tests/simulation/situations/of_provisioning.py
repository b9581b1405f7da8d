"""Groups that wait for new nodes."""

from kaicore.rules.events.reasons import making_room as reasons
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.provisioning import FAILED, NOT_SERVED, PROVISIONING_CLASS_ANNOTATION

from tests.given.cluster.factory import Cluster
from tests.simulation.situations import shows
from tests.unit.engine.test_provisioning import ON, Requests, a_gang_that_lacks_a_node, met


def gang(cluster: Requests) -> tuple[Cluster, Pod]:
    return cluster, cluster.state.pods["uid-gang-0"].pod


@shows(reasons.WaitsForProvisioning, "2 pods", "default/kai-gang", "requested", "3 cpu", config=ON)
def waits() -> tuple[Cluster, Pod]:
    return gang(a_gang_that_lacks_a_node())


@shows(reasons.ProvisioningRetried, "default/kai-gang", "attempt 1", "Failed", "3 cpu", config=ON)
def retried() -> tuple[Cluster, Pod]:
    cluster = a_gang_that_lacks_a_node()
    cluster.fares(cluster.requested(cluster.cycle(ON)), met(FAILED, "no quota"))
    return gang(cluster)


@shows(reasons.ProvisioningImpossible, "does not serve", "3 cpu", "n1", config=ON)
def impossible() -> tuple[Cluster, Pod]:
    cluster = a_gang_that_lacks_a_node()
    cluster.refused(cluster.requested(cluster.cycle(ON)), 404, NOT_SERVED, "not served")
    return gang(cluster)


@shows(reasons.ProvisioningClassNotAllowed, "gold", "allow", "3 cpu", config=ON)
def not_allowed() -> tuple[Cluster, Pod]:
    return gang(a_gang_that_lacks_a_node(annotations={PROVISIONING_CLASS_ANNOTATION: "gold"}))
