"""A restore point of a state: facts that are tried, and then taken back by other facts, leave no trace."""

import msgspec
from kaicore.rules.events.payloads import EvictionDecided, NodeObserved, PodRejected
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import RestorePoint

from tests.given.cluster.factory import node, pod
from tests.given.work.workloads import OWNER, Workloads


def _kept(state: ClusterState) -> tuple[object, ...]:
    """Return what only a restore point restores."""
    return (
        state.context.clock,
        state.rejections.standing(),
        dict(state.node_readiness.not_ready_since),
        state.workload_index.records(),
        {key: [(home.node, home.gone_at) for home in homes] for key, homes in state.homes.items()},
    )


def test_facts_that_are_taken_back_leave_a_restored_state_as_it_was() -> None:
    cluster = Workloads().add_node("n1", cpu=8)
    cluster.record("node/n2", NodeObserved(node("n2", cpu=8, ready=False)))
    members = cluster.gang("gang", 3, cpu=1)
    cluster.full(members)
    cluster.delete_pod(members[2])
    cluster.add_pod(pod("refused", cpu=1, node_name="n2", phase="Failed", reason="TopologyAffinityError"))
    refusal = PodRejected("uid-refused", "default", "refused", "n2", "TopologyAffinityError", "no locality")
    cluster.record("pod/uid-refused", refusal)
    moved = cluster.add_pod(pod("moved", cpu=1, node_name="n1", phase="Running", owner=OWNER))
    evicted = EvictionDecided(moved.uid, "default", "moved", "n1", "default/1", "", "Consolidated", fits_on="n1")
    cluster.record("pod/uid-moved", evicted)
    state = cluster.state
    before = _kept(state)
    assert before[1], "the rejection stands"
    assert before[-1], "a home waits for a successor"
    restore_point = RestorePoint(state, state.pods[members[0].uid].group)
    cluster.now += 60_000_000
    cluster.record("node/n2", NodeObserved(node("n2", cpu=8)))
    cluster.gang("gang", 0, least=2)
    successor = msgspec.structs.replace(moved, uid="again", name="again", node_name="", phase="Pending")
    cluster.add_pod(successor)
    cluster.delete_pod(successor)
    cluster.record("node/n2", NodeObserved(node("n2", cpu=8, ready=False)))
    cluster.gang("gang", 0, least=3)
    taken_back = _kept(state)
    assert all(one != other for one, other in zip(before, taken_back, strict=True))
    restore_point.restore()
    assert _kept(state) == before
