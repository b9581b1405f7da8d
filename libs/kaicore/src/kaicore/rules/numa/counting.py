"""KAI-Scheduler's counting rule, kept as a named evaluator (`counting`) to measure the exact one against.

Source: KAI-Scheduler before v0.17, `docs/developer/designs/numa-topology/README.md`. Guaranteed pods only,
`single-numa-node` and `restricted` only. Of every resource that the zones report, the width is the fewest zones with
sufficient allocatable amounts, and a mask is feasible when its free amounts suffice. One common mask of that width must
serve all. Container scope is greedy, init containers are checked but not accumulated. Known gaps: decision 0004.
"""

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.kubelet.evaluators import Hints
from kaicore.rules.numa.kubelet.masks import lowest_place, zones_of
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.requests import AlignedContainer, AlignedRequest
from kaicore.rules.numa.kubelet.verdict import TOPOLOGY_AFFINITY, Admitted, Holding, Rejected
from kaicore.rules.numa.kubelet.zones import NodeZones


def admit(node: NodeZones, request: AlignedRequest) -> Admitted | Rejected:
    """Tell what the counting rule makes of a pod.

    Args:
        node: its zones; used up.
        request: a `counted_request`.
    """
    settings, table = node.settings, node.table
    if settings.policy not in (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED):
        return Admitted((), {})
    containers = request.containers
    if settings.pod_scope:
        containers = (AlignedContainer("", ContainerKind.APP, request.pod),)
    free = {**node.free, **node.memory.free}
    total = {**node.capacity, **node.memory.allocatable}
    reported = [name for name in total if any(total[name])]
    holdings = []
    for container in containers:
        hints = []
        for resource, need in container.amounts:
            if resource in reported and resource in free:
                width = table.first_width(table.reaching(total[resource], need))
                feasible = table.reaching(free[resource], need)
                hints.append(Hints(resource, feasible, feasible & table.of_width[width], width))
        common = (1 << len(table)) - 1 if settings.policy is TopologyPolicy.RESTRICTED else table.of_width[1]
        for hint in hints:
            common &= hint.preferred
        if hints and not common:
            message = "no common mask of the smallest width"
            return Rejected(TOPOLOGY_AFFINITY, message, container, tuple(hints), node, {})
        if not hints or container.kind is ContainerKind.INIT:
            continue
        holding = Holding(container, table.masks[lowest_place(common)])
        needs = dict(container.amounts)
        for hint in hints:
            _charge(holding, hint.resource, needs[hint.resource], free[hint.resource])
        holdings.append(holding)
    return Admitted(tuple(holdings), {})


def _charge(holding: Holding, resource: str, need: int, free: list[int]) -> None:
    """Split an amount over the mask, greedily and ascending."""
    taken = [0] * len(free)
    for zone in zones_of(holding.mask):
        taken[zone] = max(min(need, free[zone]), 0)
        free[zone] -= taken[zone]
        need -= taken[zone]
    if is_memory(resource):
        drawn = tuple((zone, amount) for zone, amount in enumerate(taken) if amount)
        holding.blocks.append(MemoryBlock(resource, holding.mask, sum(taken), drawn=drawn))
    else:
        holding.amounts[resource] = taken
