"""Shares of a GPU in cycles: which GPU a pod gets, when another is opened, who makes way, and why one waits."""

from typing import Any, Self

import msgspec
import pytest
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.decisions import CycleResult, EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import amounts, pod
from tests.given.cluster.hierarchy import queue
from tests.given.cluster.sharing_cluster import ON, Sharing

ZONE = amounts(cpu=8, memory=32, gpu=1)


class Shares(Sharing):
    """A cluster with a scheduler that gives shares of GPUs."""

    compares_indexes = True

    def cycle(self, config: EngineConfig | None = None) -> CycleResult:
        return super().cycle(config or ON)

    def nodes(self, count: int, *, gpu: int = 2, memory: int = 0, **kwargs: Any) -> Self:
        labels = {"nvidia.com/gpu.memory": str(memory)} if memory else {}
        return self.add_nodes(count, cpu=64, gpu=gpu, labels=labels, **kwargs)

    def parts(self, result: CycleResult) -> dict[str, list[tuple[str, int]]]:
        """Of placed pods by name: for each part the number of its GPU in the order of opening, and thousandths."""
        numbers = {name: number for number, name in enumerate(self.state.shared_gpus.groups)}
        return {
            one.name: [(f"{one.node}/{numbers[part.group]}", part.milli) for part in one.gpus]
            for one in result.placements
        }

    def reasons(self, result: CycleResult) -> list[str]:
        return [str(reason) for item in result.pending for reason in item.reasons]


def test_pods_with_a_share_wait_as_unsupported_while_sharing_is_off() -> None:
    made = Shares().nodes(1)
    made.share("a", 500)
    result = made.cycle(EngineConfig())
    assert not result.placements
    assert made.reasons(result) == [
        "asks for a share of a GPU (gpu-fraction): shares are off until the scheduler's settings have gpu_sharing: true"
    ]


def test_shares_fill_an_open_gpu_before_another_is_opened() -> None:
    made = Shares().nodes(2)
    for number, milli in enumerate((500, 300, 200, 600)):
        made.share(f"p{number}", milli, created_at=number)
    result = made.cycle()
    assert made.parts(result) == {
        "p0": [("n0/0", 500)],
        "p1": [("n0/0", 300)],
        "p2": [("n0/0", 200)],
        "p3": [("n0/1", 600)],
    }
    kinds = [type(one).__name__ for one in result.decisions]
    assert kinds == ["GpuOpened", "PodPlaced", "PodPlaced", "PodPlaced", "GpuOpened", "PodPlaced"]


def test_share_goes_to_the_open_gpu_where_least_is_left_whatever_node_that_is_on() -> None:
    made = Shares().nodes(2, gpu=1)
    made.share("a", 500)
    made.share("b", 600, created_at=1)
    assert made.parts(made.cycle()) == {"a": [("n0/0", 500)], "b": [("n1/1", 600)]}
    made.share("c", 400, created_at=2)
    assert made.parts(made.cycle()) == {"c": [("n1/1", 400)]}


def test_parts_of_one_pod_are_on_different_gpus() -> None:
    made = Shares().nodes(1)
    made.share("a", 300)
    made.share("b", 300, devices=2, created_at=1)
    made.share("c", 100, devices=3, created_at=2)
    result = made.cycle()
    assert made.parts(result) == {"a": [("n0/0", 300)], "b": [("n0/0", 300), ("n0/1", 300)]}
    assert made.reasons(result) == ["1 node without GPUs for 0.1 of a GPU on each of 3 GPUs (such as n0)"]


def test_memory_is_a_part_of_the_nodes_gpu_and_no_part_where_the_node_does_not_say() -> None:
    made = Shares().nodes(1, memory=40960)
    made.add_node("silent", cpu=64, gpu=8)
    made.share("a", mib=20450)
    made.share("b", mib=20451, created_at=1)
    made.share("c", mib=50000, created_at=2)
    result = made.cycle()
    assert made.parts(result) == {"a": [("n0/0", 500)], "b": [("n0/1", 501)]}
    assert made.reasons(result) == ["2 nodes without GPUs for 50000 MiB of a GPU's memory (such as n0)"]


def test_no_gpu_is_opened_where_a_device_plugin_offers_each_several_times() -> None:
    made = Shares().nodes(1)
    node = made.state.columns.facts[0]
    assert node is not None
    made.record("node/n0", payloads.NodeObserved(msgspec.structs.replace(node, gpus_repeated=True)))
    made.share("a", 500)
    result = made.cycle()
    assert not result.placements
    assert made.reasons(result) == [
        "1 node without GPUs for 0.5 of a GPU, as a device plugin (HAMi) offers each GPU several times (such as n0)"
    ]


def test_reason_names_the_largest_free_part() -> None:
    made = Shares().nodes(2, gpu=1)
    made.share("a", 800)
    made.share("b", 900, created_at=1)
    made.cycle()
    made.share("c", 300, created_at=2)
    assert made.reasons(made.cycle()) == ["0.3 of a GPU needed; largest free part 0.2 on n0 (2 nodes)"]


def test_whole_gpu_and_share_never_have_the_same_gpu() -> None:
    made = Shares().nodes(1)
    made.share("a", 100)
    made.add_pod(pod("two", cpu=1, gpu=2))
    assert made.placed(made.cycle()) == {"a": "n0"}
    made.add_pod(pod("one", cpu=1, gpu=1))
    made.share("b", 950)
    assert made.placed(made.cycle()) == {"b": "n0"}


def test_gang_of_shares_starts_as_a_whole_or_not_at_all() -> None:
    made = Shares().nodes(1)
    made.gang("g", 5, cpu=1, gpu_share=GpuShare(milli=500))
    assert not list(made.cycle().decisions)
    assert made.state.columns.gpus.unused() == []
    made.gang("h", 4, cpu=1, gpu_share=GpuShare(milli=500))
    result = made.cycle()
    assert sorted(made.placed(result)) == [f"h-{number}" for number in range(4)]
    assert len(result.batches) == 1, "two GPUs and four pods are one decision"


def test_cycle_with_shares_replays_and_groups_are_named_alike() -> None:
    names = []
    for _ in range(2):
        made = Shares().nodes(3)
        for number in range(6):
            made.share(f"p{number}", 400, created_at=number)
        names.append(list(made.cycle().decisions))
    assert names[0] == names[1]


def test_zone_of_the_gpu_is_predicted_and_charged_before_it_is_seen() -> None:
    made = Shares().add_node("n0", ZONE, ZONE)
    made.share("a", 500)
    made.share("b", 600, created_at=1)
    made.cycle()
    columns = made.state.columns
    gpus = columns.zones.used[0, :2, columns.zones.resources["nvidia.com/gpu"]]
    assert gpus.tolist() == [1, 1]
    opened = [group.opened.placement for group in made.state.shared_gpus.groups.values()]
    assert [one.zone_amounts()[0].zone for one in opened if one is not None] == ["node-0", "node-1"]


def test_lower_priority_makes_way_for_a_share_on_its_gpu() -> None:
    made = Shares().nodes(1, gpu=1)
    low = [made.share(f"low-{number}", 500, priority=1) for number in range(2)]
    made.full(low)
    made.share("high", 300, priority=2)
    result = made.cycle()
    (victim,) = made.evicted(result)
    assert made.evicted(result) == {victim: EvictionReason.PREEMPTED}
    assert made.nominated(result) == {"high": "n0"}
    made.share("thief", 300, priority=1)
    assert not list(made.cycle().decisions)
    made.go(result)
    again = made.cycle()
    assert made.parts(again)["high"] == [("n0/0", 300)]
    assert made.placed(again) == {"high": "n0"}, "0.2 are left, and the thief asks for 0.3"


def test_all_parts_of_a_gpu_make_way_for_a_whole_one() -> None:
    made = Shares().nodes(1, gpu=1)
    low = [made.share(f"low-{number}", 300, priority=1) for number in range(3)]
    made.full(low)
    made.add_pod(pod("whole", cpu=1, gpu=1, priority=2))
    result = made.cycle()
    assert sorted(made.evicted(result)) == ["low-0", "low-1", "low-2"]
    made.go(result)
    assert not made.cycle().placements, "the reservation pod holds the GPU until its group is closed"
    (group,) = made.state.shared_gpus.groups
    made.record("node/n0", payloads.GpuClosed("n0", group, "Unused"))
    assert made.placed(made.cycle()) == {"whole": "n0"}


def test_victims_that_are_not_needed_stay_on_their_parts() -> None:
    made = Shares().nodes(2, gpu=1)
    low = [made.share(f"low-{number}", 500, priority=number % 2) for number in range(4)]
    made.full(low)
    made.gang("high", 2, cpu=1, gpu_share=GpuShare(milli=500), priority=5)
    assert sorted(made.evicted(made.cycle())) == ["low-0", "low-2"]


@pytest.mark.parametrize(
    ("other", "waits", "moves"),
    [
        pytest.param(650, {"gpu_share": GpuShare(milli=500)}, 1, id="its gap is large enough once one of two has gone"),
        pytest.param(750, {"gpu_share": GpuShare(milli=500)}, 0, id="no part elsewhere is large enough for either"),
        pytest.param(650, {"gpu": 1}, 0, id="one share would stay on the GPU"),
    ],
)
def test_share_changes_place_where_a_part_elsewhere_takes_it(other: int, waits: dict[str, Any], moves: int) -> None:
    made = Shares().nodes(2, gpu=1)
    made.full(
        [
            made.share(name, milli, owner=Owner("ReplicaSet", name, f"uid-{name}"))
            for name, milli in (("a", 300), ("b", 300), ("other", other))
        ]
    )
    made.add_pod(pod("waits", cpu=1, **waits))
    result = made.cycle(EngineConfig(gpu_sharing=True, consolidate_win_us=3_600_000_000))
    assert [(one.name in "ab", one.fits_on) for one in result.evictions] == [(True, "n1")] * moves
    assert made.nominated(result) == ({"waits": "n0"} if moves else {})


def test_share_goes_to_another_gpu_of_its_node_so_that_a_whole_one_is_free() -> None:
    made = Shares().nodes(1)
    sizes = {"stays": 600, "ends": 700, "goes": 250}
    pods = [made.share(name, milli, owner=Owner("Job", name, f"uid-{name}")) for name, milli in sizes.items()]
    made.full(pods[:2])
    made.full(pods[2:])
    made.delete_pod(pods[1])
    made.add_pod(pod("waits", cpu=1, gpu=1))
    result = made.cycle(EngineConfig(gpu_sharing=True, consolidate_win_us=3_600_000_000))
    assert [(one.name, one.fits_on) for one in result.evictions] == [("goes", "n0")]
    assert made.nominated(result) == {"waits": "n0"}


def test_two_shares_change_place_so_that_a_third_fits_beside_the_smaller_one() -> None:
    made = Shares().nodes(2, gpu=1)
    sizes = {"a470": 470, "a320": 320, "b470": 470, "b320": 320}
    made.full(
        [made.share(name, milli, owner=Owner("Job", name, f"uid-{name}")) for name, milli in sizes.items()],
    )
    made.share("wants", 350)
    result = made.cycle(EngineConfig(gpu_sharing=True, consolidate_win_us=3_600_000_000))
    goes = {one.name: one.fits_on for one in result.evictions}
    assert sorted(sizes[name] for name in goes) == [320, 470]
    (row,) = made.nominated(result).values()
    assert {sizes[name]: node == row for name, node in goes.items()} == {320: True, 470: False}


def test_moved_share_starts_with_the_pod_that_opens_the_gpu_of_both() -> None:
    made, config = Shares(), EngineConfig(gpu_sharing=True, consolidate_win_us=3_600_000_000)
    made.add_node("n0", cpu=16, gpu=1)
    made.full(made.share("first", 470, cpu=12, owner=Owner("Job", "first", "uid-first")))
    made.add_node("n1", cpu=96, gpu=1)
    made.full(
        [made.share("second", 470, cpu=8, owner=Owner("Job", "second", "uid-second")), made.share("other", 500, cpu=5)]
    )
    made.share("wants", 230, cpu=6)
    result = made.cycle(config)
    assert {one.name: one.fits_on for one in result.evictions} == {"first": "n1", "second": "n0"}
    before = [made.state.pods[eviction.uid].pod for eviction in result.evictions]
    unused = made.state.shared_gpus.left_by([one.uid for one in before])
    made.go(result)
    for group in unused:
        made.record("node/n0", payloads.GpuClosed("n0", group.opened.group, "Unused"))
    for one in before:
        spec = {"uid": f"{one.uid}-2", "name": f"{one.name}-2", "node_name": "", "phase": "Pending"}
        made.add_pod(msgspec.structs.replace(one, created_at=made.now // 1_000_000 + 1, **spec))
    assert made.placed(made.cycle(config)) == {"wants": "n0", "first-2": "n1", "second-2": "n0"}


def test_gpu_is_not_opened_where_only_the_slot_for_the_pod_itself_is_left() -> None:
    made = Shares().nodes(1, pods=1)
    made.share("a", 500)
    result = made.cycle()
    assert not result.placements
    assert made.reasons(result) == ["0.5 of a GPU needed; largest free part 1 on n0 (1 node)"]


@pytest.mark.parametrize("strategy", list(PlacementStrategy))
def test_shares_are_not_kept_off_nodes_with_gpus(strategy: PlacementStrategy) -> None:
    made = Shares().add_node("a-without", cpu=64)
    made.nodes(2)
    made.share("a", 500)
    assert made.placed(made.cycle(msgspec.structs.replace(ON, placement_strategy=strategy))) == {"a": "n0"}


def test_queues_count_parts_exactly() -> None:
    made = Shares().nodes(4)
    made.queues(queue("a", limit=1))
    for number, milli in enumerate((300, 300, 300, 100, 200)):
        made.share(f"p{number}", milli, created_at=number, labels={KAI_QUEUE_LABEL: "a"})
    result = made.cycle()
    assert sorted(made.placed(result)) == ["p0", "p1", "p2", "p3"]
    reasons = [str(reason) for item in result.pending for alone in item.alone for reason in alone.reasons]
    assert reasons == ["queue a would be 0.2 gpu over its limit: 0.2 gpu asked for, 0 left"]
    accounts = made.state.queue_accounts(ON, now=made.now)
    assert accounts.used[accounts.tree.find("a")][0] == 1000
    made.delete_pod(made.state.pods["uid-p1"].pod)
    assert made.placed(made.cycle()) == {"p4": "n0"}


@pytest.mark.parametrize("sharing", [True, False])
def test_parts_of_a_quota_count_only_where_parts_of_gpus_do(sharing: bool) -> None:
    made = Shares().queues(queue("q", quota=1, quota_milli=500, limit=2, limit_milli=250))
    tree = made.state.queue_registry.tree_of(EngineConfig(gpu_sharing=sharing))
    number = tree.find("q")
    assert number is not None
    assert (tree.quotas[number], tree.limits[number]) == (([1500], [2250]) if sharing else ([1], [2]))


def test_parts_and_whole_gpus_are_divided_between_queues_alike() -> None:
    made = Shares().nodes(1)
    made.queues(*(queue(name, quota=1) for name in ("a", "b")))
    for number in range(8):
        made.share(f"p{number}", 250, created_at=number, labels={KAI_QUEUE_LABEL: "a"})
    made.full([made.state.pods[f"uid-p{number}"].pod for number in range(8)])
    made.add_pod(pod("whole", cpu=1, gpu=1, labels={KAI_QUEUE_LABEL: "b"}))
    evicted = made.evicted(made.cycle())
    assert set(evicted.values()) == {EvictionReason.RECLAIMED}
    parts = {made.state.pods[f"uid-{name}"].gpus[0].group for name in evicted}
    assert (len(evicted), len(parts)) == (4, 1), "all parts of one GPU"


def test_memory_counts_as_the_part_that_it_is_where_the_pod_is() -> None:
    made = Shares().nodes(1, memory=40000)
    made.queues(queue("a", limit=1))
    for number in range(3):
        made.share(f"p{number}", mib=16000, created_at=number, labels={KAI_QUEUE_LABEL: "a"})
    assert sorted(made.placed(made.cycle())) == ["p0", "p1"]
    made.share("rest", 200, labels={KAI_QUEUE_LABEL: "a"})
    assert sorted(made.placed(made.cycle())) == ["rest"]


def test_memory_that_waits_counts_in_its_queue_as_the_part_of_the_smallest_gpu_and_then_as_what_it_holds() -> None:
    made = Shares().add_node("small", cpu=64, gpu=1, labels={"nvidia.com/gpu.memory": "40000"})
    made.add_node("large", cpu=64, gpu=1, labels={"size": "large", "nvidia.com/gpu.memory": "80000"})
    made.queues(queue("a", limit=2))
    selector = {"size": "large"}
    for number, mib in enumerate((16000, 16000, 60000)):
        one = made.share(f"p{number}", mib=mib, node_selector=selector, labels={KAI_QUEUE_LABEL: "a"})

    def counted() -> tuple[int, int]:
        accounts = made.state.queue_accounts(ON, now=made.now)
        (number,) = [number for number, one in enumerate(accounts.tree.queues) if one.name == "a"]
        (place,) = [place for place, name in enumerate(accounts.tree.resources) if name == "gpu"]
        return accounts.shares.requested[number][place], accounts.used[number][place]

    assert counted() == (400 + 400 + 1000, 0), "of the smallest GPU at most"
    made.delete_pod(one)
    assert sorted(made.placed(made.cycle())) == ["p0", "p1"]
    assert counted() == (400, 400)
