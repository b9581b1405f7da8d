"""The placers of a cycle on its nodes: on all of them, on some, and beside what other replicas are to decide first.

Replicas share a shard's nodes. One that takes nodes before it knows what their owners make of them decides in vain.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zones.doubts import Doubts, TrustingDoubts
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.placer import NO_CLAIM, Assignment, Placer, PlacingObserver
from kaicore.rules.engine.placement.room_for_work import RoomForWork
from kaicore.rules.engine.placement.statement import Statement
from kaicore.rules.engine.session.cycle_pods import CyclePods
from kaicore.rules.engine.work.gang_planner import Steps, members_of
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.numa.columns import Flags

#: For so long after its creation a pod is left to wait for a replica that may be filling the nodes that it would get.
_PATIENCE_US = 2_000_000

#: A replica that has not decided about a pod so long after its creation is not waited for by pods that are older.
_STUCK_US = 60_000_000

#: Instead of a number of other replicas' claims: all, also of those that are stuck.
_ALL = -1


class CyclePlacers:
    """Makes the placers of one cycle, each once.

    Attributes:
        now: places pods on the nodes as they are, only where they fit whatever is not known yet.
    """

    def __init__(
        self,
        cycle_input: CycleInput,
        config: EngineConfig,
        columns: NodeColumns,
        *,
        pods: CyclePods,
        observer: PlacingObserver | None,
    ) -> None:
        """Args:
        cycle_input: what the cycle decides on.
        config: the shard's settings.
        columns: the cycle's own copy of the nodes.
        pods: looks up the cycle's pods; those that wait were looked up already.
        observer: looks on; None for nobody.
        """
        self._input, self._config, self._pods, self._observer = cycle_input, config, pods, observer
        self._room = _room_for_work(cycle_input, columns, pods)
        self._left_by_claims: dict[int, Flags | None] = {}
        self._beside_by_claims: dict[int, Placer | None] = {}
        statement = Statement(columns)
        matters = cycle_input.matters
        self._doubts = None if matters is None else Doubts(matters, statement)
        self.now = self._placer(statement, self._doubts)

    @property
    def due(self) -> int:
        """The end of the first doubt for which a pod was refused a node, microseconds since the epoch; 0 for none."""
        return 0 if self._doubts is None else self._doubts.due

    def on(self, rows: Flags) -> Placer:
        """Return a placer on some of the nodes as they are now."""
        return self._placer(self.now.statement, self._doubts, rows=rows)

    def certain(self, statement: Statement) -> Placer:
        """Return a placer on another statement, where nothing is in doubt."""
        return self._placer(statement)

    def ahead(self) -> Placer:
        """Return a placer on another copy of the nodes as they are now, with all that is reserved."""
        return self.certain(Statement(self.now.statement.columns.copy(), like=self.now.statement))

    def for_steps(self, steps: Steps) -> Iterator[Placer]:
        """Yield the placers with which steps are tried now, one after the other until they find a place.

        1. Where no other replica is to decide first: about what became free there (`ExcludedNodes.left_to_others`), and
           about pods that came before these, or about any as long as these have not waited for long
           (`ExcludedNodes.wanted_by_others`).
        2. Everywhere; what it places is not to start where another replica is to decide first.
        3. Everywhere, with pods taken to get what they are accounted to hold, if a node was refused only for what pods
           of the same steps get (`TrustingDoubts`).
        """
        doubts = self._doubts
        if doubts is not None:
            doubts.begin_steps()
        beside_others = self._beside_others(self._claims_before(members_of(steps)))
        if beside_others is not None:
            yield beside_others
        yield self.now
        if doubts is None:
            return
        if doubts.were_of_companions(
            self._pods.class_of(member).aligned.without(frozenset(self._config.ignore_list))
            for member in members_of(steps)
        ):
            placer, trusting = self._trusting
            trusting.begin_steps()
            yield placer

    def defers(self, assignments: Sequence[Assignment]) -> bool:
        """Tell whether pods are not to start on their rows before another replica has decided about what is free there.

        Args:
            assignments: where the pods would go.
        """
        left = self._left_to_others(self._claims_before(assignment.member for assignment in assignments))
        return left is not None and any(left[assignment.row] for assignment in assignments)

    def _claims_before(self, members: Iterable[Member]) -> int:
        """Return of how many of `_claims` some pods wait for the replicas: all that are as old as the oldest of them.

        Pods that were created a moment ago wait for all (`_ALL`). Who waited for others' younger pods, too, might wait
        for ever.
        """
        if self._input.excluded_nodes.wanted_by_others is None:
            return 0
        now, created = self._input.now, [member.pod.created_at for member in members]
        if all(0 <= now - at * 1_000_000 < _PATIENCE_US for at in created):
            return _ALL
        return bisect_right(self._claims, min(created))

    @cached_property
    def _claims(self) -> list[int]:
        """The times of `ExcludedNodes.wanted_by_others`, sorted, each once; without those of replicas that are stuck.

        There are no more than there are other replicas.
        """
        wanted, since = self._input.excluded_nodes.wanted_by_others, self._input.now - _STUCK_US
        times: list[int] = [] if wanted is None else np.unique(wanted).tolist()
        return [at for at in times if at < NO_CLAIM and at * 1_000_000 > since]

    def _left_to_others(self, claims: int) -> Flags | None:
        """Return the rows where other replicas are to decide first: about the first so many of `_claims`, too."""
        if claims not in self._left_by_claims:
            excluded = self._input.excluded_nodes
            left, wanted = excluded.left_to_others, excluded.wanted_by_others
            if wanted is not None and claims:
                first, last = (0, NO_CLAIM - 1) if claims == _ALL else (self._claims[0], self._claims[claims - 1])
                closed = (wanted >= first) & (wanted <= last)
                left = closed if left is None else left | closed
            self._left_by_claims[claims] = left if left is not None and left.any() else None
        return self._left_by_claims[claims]

    def _beside_others(self, claims: int) -> Placer | None:
        """Return a placer where no other replica is to decide first; None where no row is left to others."""
        if claims not in self._beside_by_claims:
            left = self._left_to_others(claims)
            self._beside_by_claims[claims] = None if left is None else self.on(~left)
        return self._beside_by_claims[claims]

    @cached_property
    def _trusting(self) -> tuple[Placer, Doubts]:
        matters = self._input.matters
        assert matters is not None, "asked where there are doubts"
        doubts = TrustingDoubts(matters, self.now.statement)
        return self._placer(self.now.statement, doubts), doubts

    def _placer(self, statement: Statement, doubts: Doubts | None = None, *, rows: Flags | None = None) -> Placer:
        return Placer(
            statement,
            self._pods.class_of,
            self._input.excluded_nodes,
            self._config,
            doubts,
            rows=rows,
            observer=self._observer,
            room=self._room,
            cycle=self._input.cycle,
        )


def _room_for_work(cycle_input: CycleInput, columns: NodeColumns, pods: CyclePods) -> RoomForWork | None:
    """Return the room for recent work as the cycle begins; None in a cycle without a waiting pod with devices."""
    waiting = pods.classes.values()
    if not cycle_input.recent_work or not any(one.size[0] or one.devices.wanted or one.gpu_share for one in waiting):
        return None
    return RoomForWork(cycle_input.recent_work, columns)
