"""Nodes without the parts of GPUs that a pod asks for: free of what pods hold, or in all."""

from collections.abc import Iterator

import numpy as np

from kaicore.rules.engine.constraints.node_filter import first_by_name
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.share_fit import NONE, ShareFit
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.gpus import NoGpuToShare, NoPartOfGpu
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.numa.columns import Flags, Ints

_REPEATED = ", as a device plugin (HAMi) offers each GPU several times"


class ShareFilter:
    """Nodes where a class with a share of a GPU finds none."""

    def __init__(self, columns: NodeColumns, share: ShareFit, *, in_all: bool = False) -> None:
        """Args:
        columns: the cycle's own copy.
        share: of the class.
        in_all: whether it is about the GPUs that the nodes have in all, whatever pods hold of them.
        """
        self._columns = columns
        self._share = share
        self._in_all = in_all

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        if not self._in_all:
            costs = zip(rows.tolist(), self._share.costs(rows).tolist(), strict=True)
            refused = [cost == NONE or not self._share.admits(row) for row, cost in costs]
            return np.array(refused, np.bool_)
        has = self._columns.allocatable[rows, self._columns.resources[GPU]] >= self._share.share.devices
        failing: Flags = ~has | (self._share.parts[rows] > WHOLE)
        return failing

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield one reason, with the largest free part as its example; of GPUs in all, one for each cause."""
        columns, share = self._columns, self._share
        if self._in_all:
            repeated = np.array(
                [getattr(columns.facts[row], "gpus_repeated", False) for row in rows.tolist()], np.bool_
            )
            for alike, why in ((rows[~repeated], ""), (rows[repeated], _REPEATED)):
                if len(alike):
                    example = columns.names[first_by_name(columns, alike)]
                    yield NoGpuToShare(nodes=len(alike), example=example, wanted=f"{share.share}{why}")
            return
        largest = np.array([share.largest(row) for row in rows.tolist()], np.int64)
        most = rows[largest == largest.max()]
        row = first_by_name(columns, most)
        yield NoPartOfGpu(
            nodes=len(rows),
            example=columns.names[row],
            needed=int(share.parts[row]),
            devices=share.share.devices,
            largest=int(largest.max()),
        )
