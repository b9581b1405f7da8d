"""Cycles that raise are run without what makes them raise, and replays leave out the same."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kaicore.rules.deciding.cycle_run import left_out_of_cycles, run_on
from kaicore.rules.deciding.why import pending_reasons
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.work.gang_planner import GangPlanner
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.logs.replaying import replayed

ZONE = amounts(cpu=8, memory=64, gpu=1)


def cluster(*pods: str, nodes: int = 3) -> Cluster:
    made = Cluster().add_nodes(nodes, ZONE)
    for name in pods:
        made.add_pod(pod(name, cpu=1, gpu=1))
    made.may_raise = True
    return made


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes cycles raise whenever they plan some pods' groups, or put a pod on some nodes."""
    plan, put, put_together = GangPlanner.joint_steps, Placer._put, Placer._put_in_a_row

    def poison(*, pods: tuple[str, ...] = (), nodes: tuple[str, ...] = ()) -> None:
        def planned(self: GangPlanner, group: PendingGroup) -> Any:
            if any(member.pod.name in pods for member in group.workload.waiting.values()):
                raise OverflowError(f"no room for {id(self)}")
            return plan(self, group)

        def placed(self: Placer, member: Member, row: int, *rest: Any) -> Assignment:
            if self.statement.columns.names[row] in nodes:
                raise ZeroDivisionError("zones")
            return put(self, member, row, *rest)

        def placed_together(self: Placer, members: Sequence[Member], row: int, *rest: Any) -> list[Assignment]:
            if self.statement.columns.names[row] in nodes:
                raise ZeroDivisionError("zones")
            return put_together(self, members, row, *rest)

        monkeypatch.setattr(GangPlanner, "joint_steps", planned)
        monkeypatch.setattr(Placer, "_put", placed)
        monkeypatch.setattr(Placer, "_put_in_a_row", placed_together)

    return poison


def check_replay(made: Cluster) -> None:
    report = replayed(made.events)
    assert report.differences == []
    assert report.cycles > 0


@pytest.mark.parametrize("bad", [("b",), ("a", "c"), ("a", "b", "c", "d")])
def test_groups_that_make_a_cycle_raise_are_left_out_and_wait_for_that_reason(
    bad: tuple[str, ...], poisoned: Callable[..., None]
) -> None:
    made = cluster("a", "b", "c", "d", "e", nodes=5)
    poisoned(pods=bad)
    result = made.cycle()
    assert {one.name for one in result.placements} == {*"abcde"} - {*bad}
    for name in bad:
        (reason, *_) = pending_reasons(made.state.pods[f"uid-{name}"], made.state)
        assert str(reason).endswith("no cycle with it comes to an end: OverflowError")
    assert len(left_out_of_cycles(made.state)) == len(bad)
    check_replay(made)
    poisoned()
    assert {one.name for one in made.cycle().placements} == {*bad}
    assert left_out_of_cycles(made.state) == []


@pytest.mark.parametrize("bad", [("n1",), ("n0", "n2")])
def test_nodes_that_make_cycles_raise_are_left_out_instead_of_the_groups(
    bad: tuple[str, ...], poisoned: Callable[..., None]
) -> None:
    made = cluster("a", "b", "c", "d", "e", "f", nodes=4)
    poisoned(nodes=bad)
    result = made.cycle()
    assert {one.node for one in result.placements} == {"n0", "n1", "n2", "n3"} - {*bad}
    waiting = next(uid for uid in sorted(made.state.waiting))
    reasons = [str(one) for one in pending_reasons(made.state.pods[waiting], made.state)]
    assert any("no cycle with it comes to an end: ZeroDivisionError" in one and bad[0] in one for one in reasons)
    why = "no cycle with it comes to an end: ZeroDivisionError"
    assert left_out_of_cycles(made.state) == [f"node {name}: {why}" for name in bad]
    check_replay(made)


def test_cycle_that_raises_without_groups_and_nodes_too_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    made = cluster("a")

    def broken(self: ClusterState, config: EngineConfig, *, now: int) -> None:
        raise KeyError("queues")

    monkeypatch.setattr(ClusterState, "queue_accounts", broken)
    with pytest.raises(KeyError, match="queues"):
        run_on(made.state, EngineConfig(), now=made.now)
