"""Room for recent work: how much of it a pod takes on each node, so that devices are not left unusable.

A class of recent work can use a node's free devices where the node is for the class and one of its pods fits. How many
it can use is the mean of two counts: those that are free, and those that the node's free CPUs, memory and other amounts
suffice for. The first keeps devices together, the second keeps CPUs and memory for them.

A pod that comes to a node takes devices, and may leave the others where fewer classes can use them. What is lost to a
class is a part of all that the class can use in the cluster: the scarcer, the dearer. The mean of these parts, by the
weights of the classes, is the part of all free devices that the pod takes: the room, in hundredths of a device.

All classes that a node is for count once more together: what comes is a mix. How much of it a node serves is the least
of its free devices and of what its CPUs and memory suffice for, by what the mix asks for in the mean for each device.
So work of much CPU goes where there is more of it than the mix needs. No class by itself sees what the others need.

A class with a share of a GPU can use free GPUs, and of GPUs that are opened for sharing those with a free part that is
large enough, as much as is free. For such a class CPUs and memory count only if they do not suffice for one pod:
decision 0060 has what the other way lost.

Source of the idea: fragmentation gradient descent ("Beware of Fragmentation", USENIX ATC 2023). There a device counts
alike for each class, and as long as one pod fits. The price by scarcity is ours, and keeps work that any GPU serves off
GPUs that other work needs; so is the second count. Decision 0060 has what each of them brings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kaicore.rules.engine.constraints.constraint_evaluator import tolerated_rows
from kaicore.rules.engine.constraints.node_matching import affine, selected
from kaicore.rules.engine.placement.node_columns import DeviceCounts, NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import is_native
from kaicore.rules.numa.columns import Flags, Ints

#: More free devices of a node do not count.
_MOST_DEVICES = 4096
#: Devices that a class can use are counted in thousandths; both counts together.
_DEVICE = 2 * 1000
#: The weights of all classes together, and what is lost if all that each class can use is lost.
_WEIGHTS = 1_000_000
_ALL = _WEIGHTS * 10**9
#: Greater amounts of a node count as these.
_MOST_AMOUNT = 2**63 // _DEVICE - 1


class RecentClass(msgspec.Struct, frozen=True):
    """A class of recent work.

    Attributes:
        claimed: how many devices the claims of a pod ask for.
        weight: pod-seconds; only ratios matter.
    """

    pod_class: PodClass
    claimed: int
    weight: int


class NodeRoom(NamedTuple):
    """Free amounts of nodes.

    Attributes:
        free: of the resources that matter (`RoomForWork.asked`); shape (nodes, resources).
        claimable: devices of claims; shape (nodes,).
        parts: of each GPU that is opened for sharing, in thousandths; shape (nodes, GPUs).
    """

    free: Ints
    claimable: Ints
    parts: Ints


class RoomForWork:
    """The classes of recent work on the rows of a cycle, with prices as the cycle begins.

    Attributes:
        asked: columns of the resources that matter: of those that any of the classes asks for.
    """

    def __init__(self, mix: Sequence[RecentClass], columns: NodeColumns) -> None:
        """Args:
        mix: at least one class.
        columns: the cycle's own copy, before its first charge.
        """
        shares = [one.pod_class.gpu_share for one in mix]
        #: Places of the classes with a share of a GPU, and of how many GPUs.
        self._shares: Ints = np.flatnonzero([share is not None for share in shares])
        self._shared: Ints = np.array([share.devices for share in shares if share is not None], np.int64)
        *vectors, gpus = _vectors(columns, mix, {GPU: 1} if len(self._shares) else {})
        needs = np.stack(vectors)
        self.asked: Ints = np.flatnonzero(needs.any(axis=0) | gpus.astype(bool))
        #: The place of GPUs among them, if any class shares one.
        self._gpu = int(np.flatnonzero(self.asked == columns.resources[GPU])[0]) if len(self._shares) else -1
        claimed = np.array([one.claimed for one in mix], np.int64)
        self._any_claimed = bool(claimed.any())
        devices = np.isin(self.asked, [column for name, column in columns.resources.items() if not is_native(name)])
        # Devices of claims are one more resource.
        needs, devices = np.column_stack([needs[:, self.asked], claimed]), np.append(devices, True)
        if not self._any_claimed:
            needs, devices = needs[:, :-1], devices[:-1]
        #: By resource and class, whether it is a device that the class asks for.
        self._devices: Ints = ((needs > 0) & devices).astype(np.int64).T
        #: By class, thousandths of the devices of a pod.
        self._scale: Ints = (np.minimum(needs, _MOST_DEVICES) * devices).sum(axis=1) * 1000
        self._scale[self._shares] = 1000
        self._is_device: Ints = devices.astype(np.int64)
        #: By resource and class: needs, the most that is looked at (more would not fit into 64 bits), and what is added
        #: where nothing is needed.
        self._needs: Ints = np.maximum(needs.T, 1)
        self._most: Ints = np.where(needs.T > 0, np.iinfo(np.int64).max // np.maximum(self._scale, 1), 0)
        self._none: Ints = np.where(needs.T > 0, 0, _MOST_DEVICES * 1000)
        allowed = np.stack([_allowed(one.pod_class, columns) for one in mix], axis=1)
        # Rows are sorted by the bits of a pattern as one value: by columns it took a third of a cycle on 10,000 nodes.
        memories = columns.gpu_memory if len(self._shares) else np.zeros(len(columns.present), np.int64)
        bits = np.concatenate([np.packbits(allowed, axis=1), memories[:, None].view(np.uint8)], axis=1)
        _, first, patterns = np.unique(
            bits.view(np.dtype((np.void, bits.shape[1]))).reshape(-1), return_index=True, return_inverse=True
        )
        #: Patterns of which classes a row is for, and each row's pattern.
        self._patterns: Flags = allowed[first]
        #: By pattern and class with a share, the part of a GPU that a pod takes.
        self._parts: Ints = np.array(
            [[share.part_of(memory) for share in shares if share is not None] for memory in memories[first].tolist()],
            np.int64,
        )
        self.patterns: Ints = patterns.reshape(-1).astype(np.int64)
        #: The same, to look up single rows.
        self.pattern_of: list[int] = self.patterns.tolist()
        #: Resources that are no devices, each with how much of it the work has for each of its devices.
        self._means = self._means_of(needs, [one.weight for one in mix])
        self._set_prices(columns, [one.weight for one in mix])

    def _set_prices(self, columns: NodeColumns, weighed: Sequence[int]) -> None:
        """Settle what is lost with a device that a class, or all together, can use no more.

        Args:
            columns: the cycle's own copy, before its first charge.
        """
        rows = np.flatnonzero(columns.present & columns.ready & ~columns.unschedulable)
        there = self.of_rows(columns, rows, claimable=DeviceCounts(columns).free[rows])
        # Most nodes are like others, and this is the dearest step that is about all of them.
        figures = np.column_stack([*there[:2], there.parts, self.patterns[rows]])
        _, first, alike = np.unique(
            np.ascontiguousarray(figures).view(np.dtype((np.void, figures.itemsize * figures.shape[1]))).reshape(-1),
            return_index=True,
            return_counts=True,
        )
        usable = self._usable(NodeRoom(*(part[first] for part in there)), self.patterns[rows[first]])
        weights = np.array(weighed, np.int64).astype(object)
        weights = (weights * _WEIGHTS // max(int(weights.sum()), 1)).astype(np.int64)
        self._prices: Ints = weights * (_ALL // _WEIGHTS) // np.maximum(alike @ usable, _DEVICE)
        #: By pattern, the price of a device for all classes together that a row is for.
        self._price: Ints = self._patterns @ self._prices
        idle = int((self._amounts(there) @ self._is_device).sum())
        idle += int(there.parts.sum()) // 1000 if len(self._shares) else 0
        #: What is lost with a hundredth of a device, of those that are free as the cycle begins.
        self._hundredth = max(_ALL // (100 * max(idle, 1)), 1)

    def _means_of(self, needs: Ints, weights: Sequence[int]) -> list[tuple[int, int]]:
        """Return resources that are no devices, each with the mean need of the work for a device.

        Args:
            needs: of the classes; shape (classes, resources).
        """
        sizes = self._scale.copy()
        sizes[self._shares] = self._shared * np.minimum(self._parts, WHOLE).mean(axis=0).astype(np.int64)
        size = sum(weight * one for weight, one in zip(weights, sizes.tolist(), strict=True))
        amounts = (needs.astype(object) * np.array(weights, object)[:, None]).sum(axis=0).tolist()
        means = ((place, int(amount) * 1000 // max(size, 1)) for place, amount in enumerate(amounts))
        return [(place, mean) for place, mean in means if mean and not self._is_device[place]]

    def free(self, columns: NodeColumns, row: int) -> Ints:
        """Return what one row has free of the resources that matter."""
        free: Ints = columns.allocatable[row].take(self.asked) - columns.used[row].take(self.asked)
        return free

    def of_rows(self, columns: NodeColumns, rows: Ints, *, claimable: Ints) -> NodeRoom:
        """Return what rows have free."""
        free = columns.allocatable[rows][:, self.asked] - columns.used[rows][:, self.asked]
        return NodeRoom(free, claimable, columns.gpus.free_parts(rows))

    def taken(self, before: NodeRoom, after: NodeRoom, patterns: Ints) -> Ints:
        """Return the room that a pod takes on each of some nodes, hundredths of a device.

        Args:
            patterns: of the nodes (`patterns`).
        """
        # Both at once: of one node, numpy's calls cost more than what they do.
        free, claimable = (np.concatenate([before[place], after[place]]) for place in (0, 1))
        both = NodeRoom(free, claimable, _one_upon_the_other(before.parts, after.parts))
        worth, count = self._worth(both, np.concatenate([patterns, patterns])), len(patterns)
        taken: Ints = (worth[:count] - worth[count:]) // self._hundredth
        return taken

    def taken_in_turn(self, there: NodeRoom, patterns: Ints) -> Ints:
        """Return the room that each of some pods takes on one node (`there`: before the first, and after each)."""
        worth = self._worth(there, patterns)
        taken: Ints = (worth[:-1] - worth[1:]) // self._hundredth
        return taken

    def _worth(self, there: NodeRoom, patterns: Ints) -> Ints:
        """Return the worth of what nodes have free, as a part of what is free in the cluster, in parts of `_ALL`."""
        worth: Ints = self._usable(there, patterns) @ self._prices + self._together(there) * self._price[patterns]
        return worth

    def _together(self, there: NodeRoom) -> Ints:
        """Return how many free devices of each node all classes together can use, in parts of `_DEVICE`."""
        free = self._amounts(there)
        devices: Ints = np.minimum(free @ self._is_device, _MOST_DEVICES) * _DEVICE
        if len(self._shares):
            devices = devices + there.parts.sum(axis=1) * (_DEVICE // WHOLE)
        for resource, mean in self._means:
            devices = np.minimum(devices, np.minimum(free[:, resource], _MOST_AMOUNT) * _DEVICE // mean)
        return devices

    def _amounts(self, there: NodeRoom) -> Ints:
        """Return the free amounts of nodes, devices of claims the last; none is negative."""
        free = there.free
        return np.maximum(np.concatenate([free, there.claimable[:, None]], axis=1) if self._any_claimed else free, 0)

    def _usable(self, there: NodeRoom, patterns: Ints) -> Ints:
        """Return how many free devices each class can use on each node, in parts of `_DEVICE`; (nodes, classes)."""
        free = self._amounts(there)
        devices = np.minimum(free @ self._devices, _MOST_DEVICES)
        served = np.minimum(free[:, :, None], self._most) * self._scale // self._needs + self._none
        served = np.minimum.reduce(served, 1)
        able = self._patterns[patterns] & (served >= self._scale)
        usable: Ints = np.where(able, devices * 1000 + np.minimum(served, devices * 1000), 0)
        if len(self._shares):
            usable[:, self._shares] = able[:, self._shares] * self._of_gpus(free, there.parts, patterns)
        return usable

    def _of_gpus(self, free: Ints, parts: Ints, patterns: Ints) -> Ints:
        """Return how much of the free GPUs each class with a share can use, in parts of `_DEVICE`."""
        needed, whole = self._parts[patterns], free[:, self._gpu, None]
        usable, count = whole * WHOLE, whole
        for of_one in parts.T[:, :, None]:
            fits = of_one >= needed
            usable, count = usable + fits * of_one, count + fits
        found: Ints = np.where((count >= self._shared) & (needed <= WHOLE), usable * (_DEVICE // WHOLE), 0)
        return found


def _vectors(columns: NodeColumns, mix: Sequence[RecentClass], more: Amounts) -> list[Ints]:
    """Return what classes request, and more amounts, as vectors of one length: each may make resources known."""
    amounts = [*(one.pod_class.requests for one in mix), more]
    for one in amounts:
        columns.vector(one)
    return [columns.vector(one) for one in amounts]


def _one_upon_the_other(one: Ints, other: Ints) -> Ints:
    """Return the rows of two tables; the narrower one is filled up with 0."""
    table = np.zeros((len(one) + len(other), max(one.shape[1], other.shape[1])), np.int64)
    table[: len(one), : one.shape[1]] = one
    table[len(one) :, : other.shape[1]] = other
    return table


def _allowed(pod_class: PodClass, columns: NodeColumns) -> Flags:
    flags: Flags = selected(columns, pod_class.node_selector) & affine(columns, pod_class.node_affinity)
    return flags & tolerated_rows(pod_class, columns)
