"""The nodes at two times: now, and after all terminating pods are gone.

Allocation places pods on the nodes at the first time. Victims are sought, and room is reserved, on the nodes at the
second. Source: KAI-Scheduler v0.17.0, pkg/scheduler/framework/statement.go (`Allocate` and `Pipeline`).
"""

from collections.abc import Callable, Iterable

import numpy as np

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.placement.statement import PodCharge, Statement
from kaicore.rules.numa.columns import Ints


class NodeTimeline:
    """The nodes now, and in the future.

    Attributes:
        now: places pods on the nodes as they are, with all that the cycle has decided and reserved.
    """

    def __init__(
        self,
        now: Placer,
        *,
        placer: Callable[[Statement], Placer],
        leaving: Callable[[], Iterable[PodCharge]],
    ) -> None:
        """Args:
        now: places pods on the nodes as they are now.
        placer: returns a placer on another statement.
        leaving: returns the pods that leave, evictions that the cycle has decided included. It is called when the
            future is first asked for.
        """
        self.now = now
        self._placer = placer
        self._leaving = leaving
        self._future: Placer | None = None
        #: See `idle_in_future`, and how many changes there were when it was summed up.
        self._idle: Ints | None = None
        self._idle_at = -1

    @property
    def statement(self) -> Statement:
        """The statement on the nodes as they are now."""
        return self.now.statement

    @property
    def columns(self) -> NodeColumns:
        """The nodes as they are now."""
        return self.now.statement.columns

    @property
    def has_future(self) -> bool:
        """True if the future was asked for, so that every later charge has to be made there too."""
        return self._future is not None

    @property
    def future(self) -> Placer:
        """Places pods on the nodes as they will be when all pods that leave are gone."""
        if self._future is None:
            statement = Statement(self.columns.copy(), like=self.statement)
            for pod_charge in self._leaving():
                statement.evict(pod_charge)
            for group in statement.columns.gpus.unused():
                statement.close(group)
            self._future = self._placer(statement)
        return self._future

    def idle_in_future(self) -> Ints:
        """Return by resource what all ready nodes will have free, all together."""
        statement = self.future.statement
        columns, moment = statement.columns, len(statement.touched)
        if self._idle is None or self._idle_at != moment or len(self._idle) != columns.used.shape[1]:
            ready = columns.present & columns.ready
            self._idle = np.maximum(columns.allocatable - columns.used, 0)[ready].sum(axis=0)
            self._idle_at = moment
        return self._idle

    def row(self, node: str) -> int:
        """Return a node's row; -1 if there is no such node."""
        return self.columns.rows.get(node, -1)
