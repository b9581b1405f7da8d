"""Reprieve: after the whole step was placed, victims that are not needed are put back."""

from collections.abc import Sequence

from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.candidates import Candidates
from kaicore.rules.engine.victims.victim_set import VictimSet
from kaicore.rules.queues.cycle_queues import CycleQueues, GroupRequests


def charge_all(accounts: CycleQueues, requests: GroupRequests) -> bool:
    """Charge groups with so much as far as their queues admit it; tells whether they admit all."""
    for group, request in requests:
        if accounts.refusal(group, request):
            return False
        accounts.charge(group, request)
    return True


class Reprieve:
    """Puts victims of one search back, on the future's nodes."""

    def __init__(
        self,
        session: Session,
        candidates: Candidates,
        reserved: Sequence[Assignment],
        assignments: Sequence[Assignment],
    ) -> None:
        """Args:
        session: the cycle.
        candidates: the pods that may be evicted.
        reserved: reservations of other groups that stay, charged already.
        assignments: where what is to start was placed.
        """
        self._session = session
        self._candidates = candidates
        self._reserved = reserved
        self._assignments = assignments
        self._placer = session.nodes.future

    def rules_admit(self) -> bool:
        """Tell whether the rules about other pods let pods be where they were placed, as the nodes are now.

        An assignment was good when it was found. Since then pods may have gone that it needs near it, or pods are put
        back that it must not be near. The same holds for reservations of other groups. The order is that in which the
        next cycle restores the reservations.
        """
        session, placer = self._session, self._placer
        assignments = sorted(
            [*self._reserved, *self._assignments],
            key=lambda assignment: session.pending_groups[assignment.member.group].reservation_order_key,
        )
        feasible_nodes = [placer.feasible_nodes(session.pods.class_of(assignment.member)) for assignment in assignments]
        if not any(nodes.non_monotonic for nodes in feasible_nodes):
            return True
        for assignment in assignments:
            placer.statement.leave(assignment.pod_charge, sign=-1)
        admitted = True
        for assignment, nodes in zip(assignments, feasible_nodes, strict=True):
            admitted = admitted and not nodes.ruled_out(assignment.row)
            placer.statement.leave(assignment.pod_charge)
        return admitted

    def needed(self, victim_sets: Sequence[VictimSet]) -> list[int]:
        """Put back the victims that are not needed, the dearest first, on the zones that they have.

        Args:
            victim_sets: as they were evicted.

        Returns:
            the numbers of the sets that are needed, in order.
        """
        session = self._session
        put_back: set[int] = set()
        ended: set[str] = set()
        by_cost = sorted(range(len(victim_sets)), key=lambda index: victim_sets[index].key, reverse=True)
        for index in by_cost:
            victim_set = victim_sets[index]
            if victim_set.shrinks and not ended.isdisjoint(victim_set.groups):
                continue
            before = session.accounts.savepoint()
            if charge_all(session.accounts, victim_set.held_by(session.pods)) and self._stay_put(victim_set):
                session.count_eviction(victim_set.members, sign=-1)
                self._candidates.put_back(victim_set)
                put_back.add(index)
                continue
            session.accounts.undo(before)
            if not victim_set.shrinks:
                ended.update(victim_set.groups)
        return [index for index in range(len(victim_sets)) if index not in put_back]

    def _stay_put(self, victim_set: VictimSet) -> bool:
        """Take the eviction of a whole set back, if everything else can be as it is."""
        statement = self._placer.statement
        columns = statement.columns
        if not all(columns.fits(columns.rows[member.node], member.requests) for member in victim_set.members):
            return False
        savepoint = statement.savepoint()
        stay = all(statement.stays_put(self._session.pods.charge_of(member)) for member in victim_set.members)
        if stay and self.rules_admit():
            return True
        statement.rollback(savepoint)
        return False
