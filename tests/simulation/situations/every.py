"""All situations."""

from tests.simulation.situations import SITUATIONS
from tests.simulation.situations import of_devices as _devices
from tests.simulation.situations import of_groups as _groups
from tests.simulation.situations import of_nodes as _nodes
from tests.simulation.situations import of_pods_nearby as _nearby
from tests.simulation.situations import of_policies as _policies
from tests.simulation.situations import of_promises as _promises
from tests.simulation.situations import of_provisioning as _provisioning
from tests.simulation.situations import of_queues as _queues
from tests.simulation.situations import of_topologies as _topologies
from tests.simulation.situations import of_victims as _victims
from tests.simulation.situations import of_zones as _zones

#: The modules that register them.
MODULES = (
    *(_devices, _groups, _nodes, _nearby, _policies, _promises, _provisioning, _queues, _topologies, _victims),
    _zones,
)

__all__ = ["MODULES", "SITUATIONS"]
