"""The built-in rules of the score table: policies like an operator's, each with the band that it fills.

The engine asks them as they are here, without a guard (`kaicore.rules.engine.policies.class_rules`). An operator may
read them as examples, check and try them, name one in the settings, or replace it by a policy of its band. They see of
nodes what every policy may see: amounts as they are charged now, and findings that they declare.

Two things that rank nodes are no such rules. The band `name` makes no two nodes equal; rankings rest on that, so no
policy may fill it. And the pods' own preferences, the devices of their claims and the levels of topologies are wishes
of users, not rules about nodes: which node serves them depends on where the pods of the gang went before
(`node_score.by_devices`, `kaicore.rules.engine.topology`).
"""

import numpy as np

from kaicore.policy import CPU, GPU, MEMORY, MOST, Facts, Ints, NodeFinding, Nodes, Policy, PolicyBand, Work, is_device

#: A node with more than so many times of what it has in use counts as one with that much.
FULLEST = 9
#: More devices count as so many.
MOST_IDLE = 2047
#: The most other replicas that take a node first, the most room, and the most GPUs: greater numbers count as these.
LAST_TURN, MOST_TAKEN, MOST_OPENED = 3, 4095, 3


class LeaveDevices(Policy):
    """Score: nodes with devices are for pods that ask for some."""

    name, version, band, live, within = "leave-devices", "1", PolicyBand.LEAVES_DEVICES, True, ""
    findings = (NodeFinding.CLAIMABLE,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return 0 for nodes with devices of a kind that the work does not ask for."""
        spared = np.zeros(len(nodes), np.bool_)
        for name in () if work.devices else filter(is_device, nodes.resources):
            spared |= nodes.allocatable(name) > 0
        if not (work.devices or work.claims):
            spared |= nodes.found(NodeFinding.CLAIMABLE) > 0
        return (~spared).astype(np.int64)


class AvoidRejected(Policy):
    """Score: nodes that pods of the class had to leave because their zones were not right come last."""

    name, version, band, live, within = "avoid-rejected", "1", PolicyBand.AVOIDED, True, ""
    findings = (NodeFinding.AVOIDED,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return -1 for these nodes."""
        return -nodes.found(NodeFinding.AVOIDED)


class KeepOwnPolicy(Policy):
    """Score: nodes with a kubelet that keeps the pods' own NUMA policy `best-effort` come first."""

    name, version, band, live, within = "keep-own-policy", "1", PolicyBand.KEEPS_POLICY, True, ""
    findings = (NodeFinding.KEEPS_POLICY,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return 1 for these nodes."""
        return nodes.found(NodeFinding.KEEPS_POLICY)


class OwnTurnFirst(Policy):
    """Score: nodes that other replicas of the shard take first come later."""

    name, version, band, live, within = "own-turn-first", "1", PolicyBand.TURN, True, ""
    findings = (NodeFinding.TURN,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return less for each replica that takes a node first."""
        return -np.minimum(nodes.found(NodeFinding.TURN), LAST_TURN)


class GoodZones(Policy):
    """Score: zones that serve the pod well come first (`numa_scoring`)."""

    name, version, band, live, within = "good-zones", "1", PolicyBand.ZONES, True, ""
    findings = (NodeFinding.ZONES,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return how well a node's zones serve the pod, -1 where nothing of it is bound to zones."""
        return nodes.found(NodeFinding.ZONES)


class KeepRoom(Policy):
    """Score: pods with devices go where recent work loses the least room (`recent_work_days`)."""

    name, version, band, live, within = "recent-work", "1", PolicyBand.ROOM_TAKEN, True, ""
    findings = (NodeFinding.ROOM_TAKEN,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the less, the more room a pod takes."""
        return MOST - np.minimum(nodes.found(NodeFinding.ROOM_TAKEN), MOST_TAKEN)


class FittingParts(Policy):
    """Score: a share of a GPU goes where it fits best, if no recent work is known."""

    name, version, band, live, within = "fitting-parts", "1", PolicyBand.ROOM_TAKEN, True, ""
    findings = (NodeFinding.PARTS,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the less, the more its GPUs cost."""
        return MOST - np.minimum(nodes.found(NodeFinding.PARTS), MOST_TAKEN)


class IdleDevices(Policy):
    """Score: work without devices takes nodes with few free ones first."""

    name, version, band, live, within = "idle-devices", "2", PolicyBand.ROOM_TAKEN, True, ""
    findings = (NodeFinding.FREE_CLAIMABLE, NodeFinding.FREE_PARTS)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the less, the more devices are free."""
        idle = np.zeros(len(nodes), np.int64)
        for name in () if work.devices else filter(is_device, nodes.resources):
            idle += np.maximum(nodes.free(name), 0)
        others = nodes.found(NodeFinding.FREE_CLAIMABLE) + nodes.found(NodeFinding.FREE_PARTS)
        scores: Ints = MOST - np.minimum(idle, MOST_IDLE) - np.minimum(others, MOST_IDLE)
        return scores


class FewOpened(Policy):
    """Score: nodes that open few GPUs for a share come first."""

    name, version, band, live, within = "few-opened", "1", PolicyBand.OPENED, True, ""
    findings = (NodeFinding.OPENED,)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return less for each GPU that is opened."""
        return -np.minimum(nodes.found(NodeFinding.OPENED), MOST_OPENED)


def fullness(nodes: Nodes, work: Work) -> Ints:
    """Return the per mille in use of what work asks for, with one pod of it: of its devices, or of CPU and memory.

    It is the mean over these resources. Of what the work does not ask for, more may be in use than there is. A GPU that
    is opened for a share is one more that is in use.
    """
    if work.claims and not any(map(is_device, work.requests)):
        there = nodes.found(NodeFinding.CLAIMABLE)
        used = np.minimum(there - nodes.found(NodeFinding.FREE_CLAIMABLE) + work.claims, there)
        full: Ints = used * 1000 // np.maximum(there, 1)
    else:
        weighed = [name for name in work.devices or (CPU, MEMORY) if name in nodes.resources]
        total = np.zeros(len(nodes), np.int64)
        for name in weighed:
            most = np.maximum(nodes.allocatable(name), 1)
            total += np.minimum(nodes.used(name) + work.requests.get(name, 0), most * FULLEST) * 1000 // most
        full = total // max(len(weighed), 1)
    if work.shares_gpu and GPU in nodes.resources:
        opened, used, most = nodes.found(NodeFinding.OPENED), nodes.used(GPU), np.maximum(nodes.allocatable(GPU), 1)
        full = full + (used + opened) * 1000 // most - used * 1000 // most
    return full


class PackedNodes(Policy):
    """Score: full nodes come first, so that whole ones stay free."""

    name, version, band, live, within = "packed", "2", PolicyBand.FULL, True, ""
    findings = (NodeFinding.CLAIMABLE, NodeFinding.FREE_CLAIMABLE, NodeFinding.OPENED)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the per mille in use."""
        return fullness(nodes, work)


class SpreadPods(Policy):
    """Score: empty nodes come first, so that pods keep out of each other's way."""

    name, version, band, live, within = "spread", "2", PolicyBand.FULL, True, ""
    findings = (NodeFinding.CLAIMABLE, NodeFinding.FREE_CLAIMABLE, NodeFinding.OPENED)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the per mille that is free; less than 0 where more is in use than there is."""
        return MOST - fullness(nodes, work)


_RULES: tuple[type[Policy], ...] = (
    *(LeaveDevices, AvoidRejected, KeepOwnPolicy, OwnTurnFirst, GoodZones),
    *(KeepRoom, FittingParts, IdleDevices, FewOpened, PackedNodes, SpreadPods),
)
#: By name, in the order of their bands.
BUILT_IN: dict[str, type[Policy]] = {kind.name: kind for kind in _RULES}
