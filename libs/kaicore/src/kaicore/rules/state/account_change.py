"""Comparison of an observation with a pod's present charge: only a difference moves the node's stream.

Most observations equal the prediction, and a decision that was taken without them is as good as with them. So the
state's charges of the pod, with and without the observation, are compared. Memory is drawn from the zones in the order
in which pods came, so it is compared by its blocks.
"""

from collections import Counter
from collections.abc import Iterable

from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.zone_charge import ZoneCharge
from kaicore.rules.state.contradiction import MissCause, contradiction
from kaicore.rules.state.resolve import zone_charge


def observation_charges(
    topology: NodeTopology | None,
    pod: Pod,
    *,
    predicted: Placement | None,
    before: Placement | None,
    observed: Placement,
    resources: Iterable[str] = (),
) -> bool:
    """Tell whether an observation changes what a pod is charged with.

    Args:
        topology: of its node; None where it has none.
        pod: the pod.
        predicted: its zones as predicted.
        before: as they were observed the last time, None where they were not.
        observed: as they are observed now.
        resources: those that zones of any node are known to have.
    """
    columns = ZoneColumns()
    own = (name for zone in (topology.zones if topology else ()) for name in zone.resources)
    columns.reserve(rows=0, resources=(*resources, *own))

    def charge(seen: Placement | None) -> ZoneCharge | None:
        return zone_charge(columns, topology, pod=pod, predicted=predicted, observed=seen)

    if _comparable(charge(before)) != _comparable(charge(observed)):
        return True
    keeps = any(container.kind is ContainerKind.INIT for container in pod.containers)
    return keeps and (_foreseen(predicted, before) or _foreseen(predicted, observed))


def _foreseen(predicted: Placement | None, seen: Placement | None) -> bool:
    """Tell whether what init containers keep is predicted again, which depends on all that the node holds then."""
    if seen is None or seen.init is not None:
        return False
    return predicted is None or contradiction(predicted, seen) is MissCause.ZONES


def _comparable(charge: ZoneCharge | None) -> object:
    if charge is None:
        return None
    blocks = Counter((block.resource, block.mask, block.size, block.init) for block in charge.blocks)
    return charge.amounts, blocks
