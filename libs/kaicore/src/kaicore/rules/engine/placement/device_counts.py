"""Devices of claims by row: how many a node has in its own pools, and how many of them no claim has.

Devices that draw on one counter set are parts of one card, and count as one device; it is free while none of them is
held. Devices that are offered as an extended resource count there and not here.
"""

import numpy as np

from kaicore.rules.devices.pools import DeviceId, PoolId
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.numa.columns import Ints


class DeviceCounts:
    """The counts, as the columns are now; `catch_up` first after anything was given or taken back.

    Attributes:
        total: by row.
        free: by row.
    """

    def __init__(self, columns: NodeColumns) -> None:
        """Args: columns: the cycle's own copy."""
        self._supply = columns.devices
        self.total: Ints = np.zeros(len(columns.present), np.int64)
        self.free: Ints = np.zeros(len(columns.present), np.int64)
        self._cards: dict[int, list[list[DeviceId]]] = {}
        self._of_pool: dict[PoolId, list[int]] = {}
        self._seen = len(self._supply.changes)
        for name in self._supply.nodes_with_devices:
            row = columns.rows.get(name)
            node = None if row is None else columns.facts[row]
            if row is None or node is None or row in columns.offers:
                continue
            cards: dict[object, list[DeviceId]] = {}
            for pool in self._supply.pools(node):
                if not self._supply.is_of_one_node(pool.id):
                    continue
                self._of_pool.setdefault(pool.id, []).append(row)
                for one in pool.devices:
                    sets = [use.counter_set for use in one.device.consumes]
                    cards.setdefault((pool.id, sets[0]) if sets else one.id, []).append(one.id)
            self._cards[row] = list(cards.values())
            self.total[row] = len(cards)
            self._count(row)

    def __bool__(self) -> bool:
        """True if any node has devices of claims."""
        return bool(self._cards)

    def catch_up(self) -> None:
        """Count again where devices were given or taken back."""
        changes = self._supply.changes
        if self._seen < len(changes):
            for pool in dict.fromkeys(changes[self._seen :]):
                for row in self._of_pool.get(pool, ()):
                    self._count(row)
            self._seen = len(changes)

    def _count(self, row: int) -> None:
        held = self._supply.held
        self.free[row] = sum(not any(map(held.has, card)) for card in self._cards[row])
