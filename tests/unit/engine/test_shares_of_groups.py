"""Shares of GPUs: elastic gangs, sub-groups, victims for a whole GPU, replicas, and GPUs that nothing holds."""

import pytest
from kaicore.rules.deciding.decide import Proposal, decide
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.making_room import RoomPromised
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.group import PodSet
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import pod
from tests.given.cluster.sharing_cluster import ON
from tests.unit.engine.test_shares import Shares

HALF = GpuShare(milli=500)


def used(made: Shares) -> list[int]:
    """The used thousandths of each open GPU, the most first."""
    gpus = made.state.columns.gpus
    return sorted((gpus.used(name) for name in made.state.shared_gpus.groups), reverse=True)


def reserve(made: Shares, gpu: str = "0", *, uid: str = "reservation") -> Pod:
    """The reservation pod of the one group is seen, and says which GPU it holds."""
    (group,) = made.state.shared_gpus.groups
    return made.reservation_pod(group, gpu, uid=uid, resource_version=str(made.now))


def test_elastic_gang_of_shares_starts_with_its_minimum_and_grows_by_the_parts_that_come_free() -> None:
    made = Shares().nodes(1)
    alone = made.share("alone", 700)
    made.full([alone])
    gang = made.gang("g", 5, least=2, cpu=1, gpu_share=HALF, created_at=1)
    result = made.cycle()
    assert sorted(made.placed(result)) == ["g-0", "g-1"]
    assert len(result.batches) == 1
    assert used(made) == [1000, 700]
    made.run(gang[:2])
    made.delete_pod(made.state.pods[alone.uid].pod)
    assert sorted(made.placed(made.cycle())) == ["g-2", "g-3"]
    assert used(made) == [1000, 1000]


def test_surplus_of_an_elastic_gang_of_shares_makes_way_and_its_minimum_stays() -> None:
    made = Shares().nodes(1)
    made.full(made.gang("g", 4, least=2, cpu=1, gpu_share=HALF, priority=1))
    made.add_pod(pod("whole", cpu=1, gpu=1, priority=2, created_at=1))
    result = made.cycle()
    assert len(made.evicted(result)) == 2
    groups = {made.state.pods[f"uid-{name}"].gpus[0].group for name in made.evicted(result)}
    assert len(groups) == 1, "both hold parts of one GPU"


def test_sub_groups_of_shares_start_together_or_not_at_all_and_count_their_parts() -> None:
    made = Shares().nodes(1)
    sets = (PodSet(), PodSet(name="leader", min_pods=1), PodSet(name="workers", min_pods=3))
    made.gang("g", 0, sets=sets)
    made.subgroup("leader", "g", 1, cpu=1, gpu_share=GpuShare(milli=700))
    workers = made.subgroup("workers", "g", 3, cpu=1, gpu_share=HALF)
    assert not list(made.cycle().decisions), "0.7, and 0.5 on the other GPU twice: the third worker has none"
    made.delete_pod(workers[0])
    made.subgroup("workers", "g", 1, cpu=1, gpu_share=GpuShare(milli=300))
    result = made.cycle()
    assert sorted(made.placed(result)) == ["g-leader-0", "g-workers-0", "g-workers-1", "g-workers-2"]
    assert len(result.batches) == 1
    assert used(made) == [1000, 1000]


def test_whole_gpu_is_made_of_the_parts_that_cost_least() -> None:
    made = Shares().nodes(1)
    many = [made.share(f"many-{number}", 300, priority=1, created_at=number) for number in range(3)]
    made.full([*many, made.share("one", 800, priority=1, created_at=5)])
    assert used(made) == [900, 800]
    made.add_pod(pod("whole", cpu=1, gpu=1, priority=2, created_at=9))
    assert sorted(made.evicted(made.cycle())) == ["one"]


def proposals(made: Shares) -> list[Proposal]:
    """Two schedulers decide on the same log."""
    return [decide(made.state, ON, shard=shard, now=made.now, actor=shard) for shard in ("one", "other")]


def test_gpu_is_opened_once_when_two_schedulers_decide_at_once() -> None:
    made = Shares().nodes(1, gpu=1)
    made.share("a", 500)
    first, second = (proposal.units[1] for proposal in proposals(made))
    kinds = [[type(event.payload).__name__ for event in unit.events] for unit in (first, second)]
    assert kinds == [["GpuOpened", "PodPlaced", "NodeCharged"]] * 2
    # Whichever the log takes first moves the node's stream on, so that it refuses the other.
    version = made.state.versions["node/n0"]
    assert first.expect is not None
    assert second.expect is not None
    assert first.expect["node/n0"] == second.expect["node/n0"] == version


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another GPU"])
def test_node_of_a_gpu_that_nothing_holds_gives_no_whole_gpu_and_opens_none_until_it_is_held_again(again: bool) -> None:
    made = Shares().nodes(1, gpu=4)
    made.full([made.share("a", 500)])
    made.delete_pod(reserve(made))
    if again:
        reserve(made, "1", uid="anew")
    made.add_pod(pod("whole", cpu=1, gpu=1, created_at=1))
    made.share("part", 300, created_at=2)
    made.add_pod(pod("none", cpu=1, created_at=3))
    result = made.cycle()
    assert made.placed(result) == {"none": "n0"}
    whole, part = made.reasons(result)
    assert "pods share a GPU without its reservation pod" in whole
    assert "0.3 of a GPU needed; largest free part 0" in part
    reserve(made, "0", uid="anew")
    assert sorted(made.placed(made.cycle())) == ["part", "whole"]


@pytest.mark.parametrize("repair", [False, True])
def test_pod_on_a_gpu_that_nothing_holds_is_placed_anew_where_it_asks_for_repair(repair: bool) -> None:
    made = Shares().nodes(2, gpu=1)
    asks = {"kai.scheduler/numa-repair": "true"} if repair else {}
    gang = made.gang("g", 1, cpu=1, gpu_share=HALF, annotations=asks)
    made.full(gang)
    made.delete_pod(reserve(made))
    config = EngineConfig(gpu_sharing=True, repair=True, repair_after_us=0)
    healed = [one.uid for one in made.cycle(config).decisions if isinstance(one, payloads.RepairRequested)]
    assert healed == ([gang[0].uid] if repair else [])


def test_start_is_promised_for_the_end_of_the_last_pod_that_shares_a_gpu() -> None:
    made = Shares().nodes(1)
    config = EngineConfig(gpu_sharing=True, actions=(Action.ALLOCATE,), backfill=Backfill.EASY, hold_after_us=0)
    deadlines = {f"p{hours}": hours * 3600 for hours in (2, 4)}
    for name, seconds in deadlines.items():
        made.share(name, 500, active_deadline_s=seconds)
    made.add_pod(pod("whole", cpu=1, gpu=1, active_deadline_s=3600))
    began = made.now
    made.cycle(config)
    made.run(*(one.pod for one in list(made.state.pods.values()) if one.pod.name in {*deadlines, "whole"}))
    made.gang("gang", 2, gpu=1, cpu=1)
    result = made.cycle(config)
    (promise,) = [one for item in result.groups for one in item.reasons if isinstance(one, RoomPromised)]
    assert promise.unlimited == 0
    assert abs(promise.starts_at - began - 4 * 3_600_000_000) < 1_000_000
