"""The built-in rules of the score table that are policies like an operator's: fullness, and devices that are left idle.

The engine asks them as they are here, without a guard, about nodes as they are charged now. An operator may read them
as examples, check and try them, name one in the settings, or replace it by a policy of its band.

The other bands stay in the table (`kaicore.rules.engine.placement.node_score`), for the face has not what they need:
zones, kubelets' own policies, other replicas and past rejections; and for recent work, the prices of all its classes.
"""

import numpy as np

from kaicore.policy import CPU, MEMORY, MOST, Facts, Ints, Nodes, Policy, PolicyBand, Work, is_device

#: A node with more than so many times of what it has in use counts as one with that much.
FULLEST = 9
#: More devices count as so many.
MOST_IDLE = 2047


def fullness(nodes: Nodes, work: Work) -> Ints:
    """Return the per mille in use of what work asks for, with one pod of it: of its devices, or of CPU and memory.

    It is the mean over these resources. Of what the work does not ask for, more may be in use than there is.
    """
    weighed = [name for name in work.devices or (CPU, MEMORY) if name in nodes.resources]
    total = np.zeros(len(nodes), np.int64)
    for name in weighed:
        most = np.maximum(nodes.allocatable(name), 1)
        total += np.minimum(nodes.used(name) + work.requests.get(name, 0), most * FULLEST) * 1000 // most
    return total // max(len(weighed), 1)


class PackedNodes(Policy):
    """Score: full nodes come first, so that whole ones stay free."""

    name, version, band, live = "packed", "1", PolicyBand.FULL, True

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the per mille in use."""
        return fullness(nodes, work)


class SpreadPods(Policy):
    """Score: empty nodes come first, so that pods keep out of each other's way."""

    name, version, band, live = "spread", "1", PolicyBand.FULL, True

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the per mille that is free; less than 0 where more is in use than there is."""
        return MOST - fullness(nodes, work)


class IdleDevices(Policy):
    """Score: work without devices takes nodes with few free ones first."""

    name, version, band, live = "idle-devices", "1", PolicyBand.ROOM_TAKEN, True

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the less, the more devices are free."""
        idle = np.zeros(len(nodes), np.int64)
        for name in () if work.devices else filter(is_device, nodes.resources):
            idle += np.maximum(nodes.free(name), 0)
        return MOST - np.minimum(idle, MOST_IDLE)


#: By name.
BUILT_IN: dict[str, type[Policy]] = {kind.name: kind for kind in (PackedNodes, SpreadPods, IdleDevices)}
