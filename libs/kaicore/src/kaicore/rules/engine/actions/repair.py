"""The action Repair: evicts pods on zones that their own NUMA policy forbids, one by one, where a successor has a
better node.
"""

import numpy as np

from kaicore.rules.engine.actions.action import CycleAction
from kaicore.rules.engine.cycle_input import MisalignedPod


class Repair(CycleAction):
    """Evict misaligned pods for which another node is free; that node is charged, so that no other pod gets it.

    At most one pod of an owner and class is evicted per cycle.
    """

    def run(self) -> None:
        """See `CycleAction.run`."""
        session = self.session
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
        own_row = session.nodes.row(member.node)
        if workload is None or not workload.constrained:
            return session.nodes.now.place(member, besides=own_row) is not None
        if session.topologies.problem(workload) is not None:
            return False
        others = np.arange(len(session.nodes.columns.present)) != own_row
        return session.step_placer.place_again([(workload, [member])], session.nodes.now, among=others) is not None
