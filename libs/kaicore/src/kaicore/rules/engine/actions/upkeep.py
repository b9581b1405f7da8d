"""Actions about groups that run: successors on other nodes, better zones, nodes that are drained, and the end of gangs
below their minimum.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.cycle_input import MisalignedPod, NodeFailure
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.placement.placer import Assignment
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.work.gang_planner import is_misunderstood
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.numa.columns import Flags


class Replace(CycleAction):
    """The first action: pods on failed nodes are placed anew beside the others of their group, or their groups end.

    It applies to groups with a topology constraint, and handles all failed nodes of a group at once. The pods go near
    those that stay. Where that is impossible, the broken slices and sub-groups move as a whole. The new places are
    charged in each cycle until the successors exist, so that no other pod gets them. Where there is no place, the group
    waits for one, or ends as a whole and starts anew (`replace_fail_fast`). A group that says how many failed nodes it
    bears (`Group.most_failed_nodes`) waits with up to as many, and ends with more.

    Source: Kueue v0.20.0-devel, KEP-2724 (node replacement), pkg/controller/tas/node_controller.go and
    pkg/cache/scheduler/tas_flavor_snapshot.go; it replaces one node after the other.
    """

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        on_failed: dict[str, list[Member]] = {}
        for member in session.cycle_input.on_failed_nodes:
            on_failed.setdefault(member.group, []).append(member)
        workloads = [session.cycle_input.workloads[key] for key in on_failed]
        for workload in sorted(workloads, key=_order_key):
            lost = [member for member in on_failed[workload.group.key] if self._is_lost(member, workload)]
            if lost and not workload.ending and session.topologies.of(workload) is not None:
                self._replace(workload, lost)

    def _is_lost(self, member: Member, workload: Workload) -> bool:
        """Tell whether a pod's node has failed for its group: by itself, or as its pods there end or are missing."""
        node = self.session.cycle_input.failed_nodes[member.node]
        if not node.once_pods_end:
            return True
        if node.failure is NodeFailure.TAINTED:
            return not any(other.node == node.name for other in workload.active.values())
        leaving = (other for other in workload.leaving.values() if other.node == node.name)
        terminating = any(other.pod.deletion_at is not None for other in leaving)
        return terminating or not workload.satisfied(workload.counts)

    def _replace(self, workload: Workload, lost: Sequence[Member]) -> None:
        """Find places for lost pods, and evict those that are not leaving yet; or evict the whole group."""
        session = self.session
        uids = {member.pod.uid for member in lost}
        stay = [member for uid, member in sorted(workload.active.items()) if uid not in uids]
        to_evict = [member for member in lost if member.pod.uid in workload.active]
        most = workload.group.most_failed_nodes
        if most and len({member.node for member in lost}) > most:
            _evict(session, [*to_evict, *stay], EvictionReason.TOO_MANY_FAILED_NODES)
            return
        stand_ins = self._stand_ins(workload, [member for member in lost if member.pod.uid not in workload.active])
        if not (to_evict or stand_ins):
            return
        for moved in self._moved_along(workload, lost, stay):
            assignments = self._place([*to_evict, *moved, *stand_ins], workload)
            if assignments is not None:
                _evict(session, [*to_evict, *moved], EvictionReason.NODE_FAILED, assignments)
                return
        if session.config.replace_fail_fast and not most:
            _evict(session, [*to_evict, *stay], EvictionReason.NO_REPLACEMENT)

    def _place(self, members: Sequence[Member], workload: Workload) -> list[Assignment] | None:
        """Charge room for the successors of pods off the failed nodes; None, and nothing is charged, without any."""
        session = self.session
        usable = _besides(session, session.cycle_input.failed_nodes)
        return session.step_placer.place_again([(workload, members)], session.nodes.now, among=usable)

    def _stand_ins(self, workload: Workload, leaving: Sequence[Member]) -> list[Member]:
        """Return the leaving pods with successors that are neither there nor long overdue: they stand for these."""
        now, patience = self.session.cycle_input.now, self.session.config.nomination_us
        arrived: dict[str, int] = {}
        for member in workload.waiting.values():
            leaf = workload.leaf(member)
            arrived[leaf] = arrived.get(leaf, 0) + 1
        stand_ins, minimums = list[Member](), {one.name: one.min_pods for one in workload.group.sets}
        for member in leaving:
            leaf = workload.leaf(member)
            deleted_at = member.pod.deletion_at
            missing = minimums[leaf] - workload.counts.get(leaf, 0) - arrived.get(leaf, 0)
            missing -= sum(workload.leaf(other) == leaf for other in stand_ins)
            if missing > 0 and (deleted_at is None or now < deleted_at * 1_000_000 + patience):
                stand_ins.append(member)
        return stand_ins

    def _moved_along(
        self, workload: Workload, lost: Sequence[Member], stay: Sequence[Member]
    ) -> Iterator[list[Member]]:
        """Yield which pods that stay are moved with the lost ones, from none to the widest set that is broken."""
        yield []
        tried = 0
        for mates in (*self._slices_of(workload, lost, stay), *self._sets_of(workload, lost, stay)):
            if tried < len(mates) < len(stay):
                tried = len(mates)
                yield mates

    def _slices_of(self, workload: Workload, lost: Sequence[Member], stay: Sequence[Member]) -> Iterator[list[Member]]:
        """Yield the other pods of broken slices, of the narrowest layer first."""
        topology = self.session.topologies.of(workload)
        assert topology is not None, "a group with a constraint"
        ranks = self.session.topologies.ranks(workload)
        sizes = {layer.size for constraint in topology.constraints.values() for layer in constraint.slices}
        for size in sorted(sizes):
            slices = {
                one.pod.uid: (workload.leaf(one), ranks[one.pod.uid] // size)
                for one in (*lost, *stay)
                if one.pod.uid in ranks
            }
            broken = {slices[one.pod.uid] for one in lost if one.pod.uid in slices}
            yield [one for one in stay if slices.get(one.pod.uid) in broken]

    def _sets_of(self, workload: Workload, lost: Sequence[Member], stay: Sequence[Member]) -> Iterator[list[Member]]:
        """Yield the other pods of broken sub-groups that have to share a domain, the narrowest first."""
        topology = self.session.topologies.of(workload)
        assert topology is not None, "a group with a constraint"
        around = [workload.sets_around(member) for member in lost]
        for depth in range(max(map(len, around))):
            broken = {names[depth] for names in around if depth < len(names)} & topology.constraints.keys()
            if broken:
                yield [one for one in stay if not broken.isdisjoint(workload.sets_around(one))]


def _order_key(workload: Workload) -> tuple[int, int, str, str, str]:
    group = workload.group
    return -group.priority, group.created_at, group.namespace, group.name, group.key


class StaleGang(CycleAction):
    """The last action: evict what is left of gangs that have been below their minimum for too long.

    They only hold resources that others need. A gang of which a pod has succeeded is about to end by itself and is left
    alone, and so is a gang that starts together with it: neither runs on without the other.

    Source: KAI-Scheduler v0.17.0, pkg/scheduler/actions/stalegangeviction.
    """

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        for key in sorted(session.cycle_input.below):
            workload = session.cycle_input.workloads[key]
            if self._is_stale(workload):
                members = [member for _, member in sorted(workload.active.items())]
                ours = [one for one in members if one.pod.scheduler_name == session.config.scheduler_name]
                _evict(session, ours, EvictionReason.STALE_GANG)

    def _is_stale(self, workload: Workload) -> bool:
        grace = workload.group.staleness_grace_us
        grace = self.session.config.staleness_grace_us if grace is None else grace
        if not workload.below_since or workload.ending or grace < 0:
            return False
        return self.session.cycle_input.now - workload.below_since >= grace and not self._is_complete(workload)

    def _is_complete(self, workload: Workload) -> bool:
        """Tell whether a group, and all that it starts together with, have their minimums by what was decided."""
        workloads = self.session.cycle_input.workloads
        others = (workloads.get(key) for key in {workload.group.key, *workload.group.together})
        return all(other is not None and self.session.gangs.is_satisfied(other) for other in others)


class Repair(CycleAction):
    """Evict misaligned pods for which another node is free; that node is charged, so that no other pod gets it.

    At most one pod of an owner and class is evicted per cycle.
    """

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        if not session.cycle_input.misaligned:
            return
        repaired: set[tuple[str, str]] = set()
        waiting = {
            session.pods.key_of(member)
            for pending_group in session.pending_groups.values()
            for member in pending_group.unplaced
        }
        for misaligned in session.cycle_input.misaligned:
            pod = misaligned.member.pod
            class_key = session.pods.key_of(misaligned.member)
            owner = "" if pod.owner is None else pod.owner.uid
            # Where pods of the class wait already, a successor would only wait with them.
            if (owner, class_key) in repaired or class_key in waiting:
                continue
            if self._may_evict(misaligned):
                repaired.add((owner, class_key))
                session.failures.take([misaligned.member])
                session.record.repair(misaligned)

    def _may_evict(self, misaligned: MisalignedPod) -> bool:
        """Tell whether a pod may go and a successor fits another node, which is charged then."""
        session, member = self.session, misaligned.member
        if member.pod.uid in session.record.evicted or session.failures.refuse([member]):
            return False
        workload = session.cycle_input.workloads.get(member.group)
        if workload is None or not workload.constrained:
            return session.nodes.now.place(member, besides=session.nodes.row(member.node)) is not None
        if is_misunderstood(workload, session.cycle_input):
            return False
        others = _besides(session, [member.node])
        return session.step_placer.place_again([(workload, [member])], session.nodes.now, among=others) is not None


class Drain(CycleAction):
    """Evict pods from nodes that are drained: a gang as a whole, and each other pod for itself.

    What can go on elsewhere goes at once, and its room is charged there. What cannot, for want of room or of a
    controller that makes it anew, has until the drain's time.
    """

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
        by_group: dict[str, list[tuple[Member, int]]] = {}
        for member, until in session.cycle_input.to_drain:
            by_group.setdefault(member.group, []).append((member, until))
        usable = _besides(session, (member.node for member, _ in session.cycle_input.to_drain))
        workloads = [session.cycle_input.workloads[key] for key in by_group if key in session.cycle_input.workloads]
        for workload in sorted(workloads, key=_order_key):
            for members, until in _leaving_together(workload, by_group[workload.group.key]):
                elsewhere = None
                if all(member.pod.owner is not None for member in members):
                    elsewhere = session.step_placer.place_again([(workload, members)], session.nodes.now, among=usable)
                if elsewhere is not None or session.cycle_input.now >= until:
                    _evict(session, members, EvictionReason.DRAINED, elsewhere or ())


def _leaving_together(workload: Workload, leaving: Sequence[tuple[Member, int]]) -> Iterator[tuple[list[Member], int]]:
    """Yield the pods of a group that leave at once, and by when: all of a gang, or one after the other."""
    here = [(member, until) for member, until in leaving if member.pod.uid in workload.active]
    if workload.is_gang and here:
        yield [member for _, member in sorted(workload.active.items())], min(until for _, until in here)
    elif not workload.is_gang:
        for member, until in here:
            yield [member], until


def _besides(session: Session, nodes: Iterable[str]) -> Flags:
    """Return the rows besides those of some nodes."""
    rows = np.ones(len(session.nodes.columns.present), np.bool_)
    # A node that was deleted has no row once no pod is on it.
    rows[[row for row in map(session.nodes.row, nodes) if row >= 0]] = False
    return rows


def _evict(
    session: Session, members: Sequence[Member], reason: EvictionReason, assignments: Sequence[Assignment] = ()
) -> None:
    """Decide that pods are evicted that are not yet, if disruption budgets allow it."""
    members = [member for member in members if member.pod.uid not in session.record.evicted]
    if not members or session.budgets.refuse(members):
        return
    names = session.nodes.columns.names
    fits_on = {assignment.member.pod.uid: names[assignment.row] for assignment in assignments}
    session.count_eviction(members)
    session.evict(
        [
            (
                member,
                session.record.eviction(
                    member,
                    reason,
                    failures_left=session.failures.left(member),
                    fits_on=fits_on.get(member.pod.uid, ""),
                ),
            )
            for member in members
        ]
    )
