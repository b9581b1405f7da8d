"""Kubelets that are ahead of the API: what contradicts a prediction then, and what counts until it is observed."""

import pytest
from kaicore.rules.deciding.cycle_input import StateDoubts
from kaicore.rules.deciding.why import miss_notes, notes
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import Placement, Provenance
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.state.pods.agreement import MissCause, contradiction
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import Cluster, amounts, container, on_zone, pod

SECOND = 1_000_000


class Node(Cluster):
    """A cluster of one node with two zones of eight CPUs, and an exporter that has observed before."""

    def __init__(self, *, observing: bool = True, memory: int = 0) -> None:
        super().__init__()
        self.add_node("n1", amounts(cpu=8, memory=memory), amounts(cpu=8, memory=memory))
        if observing:
            self.place("first", 1)
            self.observe("first", "node-0", 1)
            self.delete_pod(pod("first", cpu=1))
            self.now += 60 * SECOND

    def place(self, name: str, cpus: int) -> str:
        """Have a pod come and decided on; the zone that is predicted for it."""
        self.add_pod(pod(name, cpu=cpus))
        self.cycle()
        predicted = self.state.pods[f"uid-{name}"].predicted
        assert predicted is not None, f"{name} has no place"
        return predicted.containers[0].zones[0].zone

    def observe(self, name: str, zone: str, cpus: int) -> None:
        """The exporter reports a pod; where it contradicts the prediction, ingest says so."""
        self.see(name, Placement(Provenance.OBSERVED, (on_zone(zone, amounts(cpu=cpus)),)))

    def see(self, name: str, placement: Placement) -> MissCause | None:
        self.report(pod(name), *placement.containers, init=placement.init)
        predicted = self.state.pods[f"uid-{name}"].predicted
        assert predicted is not None
        if cause := contradiction(predicted, placement):
            ids = f"uid-{name}", "default", name, "n1"
            missed = payloads.PredictionMissed(*ids, "single-numa-node", cause, predicted, placement)
            self.record(f"pod/uid-{name}", missed)
        return cause

    def see_staged(self, name: str, **held: int) -> MissCause | None:
        """The exporter reports the CPUs of a pod's containers on the first zone, `setup` among them."""
        containers = tuple(on_zone("node-0", amounts(cpu=cpus), one) for one, cpus in held.items())
        return self.see(name, Placement(Provenance.OBSERVED, containers, ("setup",)))

    def end(self, name: str, cpus: int) -> None:
        """The API tells that a pod has succeeded."""
        self.add_pod(pod(name, cpu=cpus, node_name="n1", phase="Succeeded"))

    def used(self) -> list[int]:
        zones = self.state.columns.zones
        by_zone: list[int] = zones.used[self.state.columns.row("n1"), :, zones.resources["cpu"]].tolist()
        return by_zone

    def causes(self) -> dict[str, int]:
        return self.state.counters.misses.get("n1", {})


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pod_decided_on_before_an_end_was_told_may_be_where_that_was_freed(node: Node) -> None:
    assert node.place("old", 8) == "node-0"
    assert node.place("early", 6) == "node-1"
    node.end("old", 8)
    assert node.used() == [6000, 6000], "the kubelet may have freed zone 0 before it admitted it"
    assert decode_state(encode_state(node.state)).pods["uid-early"].alternatives
    (note,) = notes(node.state.pods["uid-early"], node.state)
    assert "may be on zones node-0 (cpu 6) as well" in note
    assert node.place("small", 2) == "node-0"
    node.add_pod(pod("big", cpu=4))
    assert node.cycle().placements == ()
    node.observe("early", "node-0", 6)
    assert node.used() == [8000, 0]
    assert notes(node.state.pods["uid-early"], node.state) == []


def test_restored_state_knows_of_an_end_for_as_long_as_the_one_that_was_folded(node: Node) -> None:
    node.place("old", 8)
    node.place("early", 6)
    node.end("old", 8)
    node.now += 60 * SECOND
    node.add_pod(pod("later", cpu=1))
    row = node.state.columns.row("n1")
    for state in (node.state, decode_state(encode_state(node.state))):
        assert [one.shaken for one in StateDoubts(state, now=node.now).arrivals(row)] == [True]


def test_room_that_is_open_between_zones_counts_once_for_the_node(node: Node) -> None:
    node.place("old", 8)
    node.place("early", 6)
    node.end("old", 8)
    zones = node.state.columns.zones
    assert zones.repeated[node.state.columns.row("n1"), zones.resources["cpu"]] == 6000
    node.observe("early", "node-1", 6)
    assert (node.used(), zones.repeated.any()) == ([0, 6000], False)


def test_a_pod_that_has_run_for_long_is_where_it_was_predicted(node: Node) -> None:
    node.place("old", 8)
    node.place("early", 6)
    node.add_pod(pod("early", cpu=6, node_name="n1", phase="Running"))
    node.now += 6 * SECOND
    node.end("old", 8)
    assert node.used() == [0, 6000]


def test_a_pod_decided_on_after_the_end_was_told_is_where_it_was_predicted(node: Node) -> None:
    node.place("old", 8)
    node.end("old", 8)
    assert node.place("late", 6) == "node-0"
    assert node.used() == [6000, 0]


def test_without_exporters_no_doubt_is_raised() -> None:
    node = Node(observing=False)
    node.place("old", 8)
    node.place("early", 6)
    node.end("old", 8)
    assert node.used() == [0, 6000]


@pytest.mark.parametrize("told_first", [True, False], ids=["end, miss", "miss, end"])
def test_a_miss_that_an_early_release_explains_has_a_cause_of_its_own(node: Node, *, told_first: bool) -> None:
    node.place("old", 8)
    node.place("early", 6)
    if told_first:
        node.end("old", 8)
    node.observe("early", "node-0", 6)
    if not told_first:
        assert node.causes() == {}
        assert "why will show" in miss_notes("uid-early", node.state)[0]
        node.state = decode_state(encode_state(node.state))
        node.end("old", 8)
    assert node.causes() == {"single-numa-node/ReleasedEarlier": 1}
    node.delete_pod(pod("early", cpu=6))
    (note,) = miss_notes("uid-early", node.state)
    assert "freed what default/old held before the API reported" in note


@pytest.mark.parametrize("deleted", [False, True], ids=["succeeded", "deleted"])
def test_a_miss_is_explained_by_an_end_that_is_told_after_that_of_its_own_pod(node: Node, *, deleted: bool) -> None:
    node.place("old", 8)
    node.place("early", 6)
    node.observe("early", "node-0", 6)
    if deleted:
        node.delete_pod(pod("early", cpu=6))
    else:
        node.end("early", 6)
    assert node.causes() == {}
    node.state = decode_state(encode_state(node.state))
    node.end("old", 8)
    assert node.causes() == {"single-numa-node/ReleasedEarlier": 1}
    (note,) = miss_notes("uid-early", node.state)
    assert "freed what default/old held before the API reported" in note


def test_an_early_release_explains_the_zones_of_a_pod_that_kept_other_cpus_of_an_init_container(node: Node) -> None:
    node.place("old", 8)
    node.add_pod(pod("early", container("setup", ContainerKind.INIT, cpu=3), container("main", cpu=6)))
    node.cycle()
    predicted = node.state.pods["uid-early"].predicted
    assert predicted is not None
    assert {zone.zone for item in predicted.containers for zone in item.zones} == {"node-1"}
    assert node.see_staged("early", main=6, setup=1) is MissCause.ZONES
    node.end("old", 8)
    assert node.causes() == {"single-numa-node/ReleasedEarlier": 1}


def test_a_pod_that_came_late_finds_nearly_all_of_many_early_releases_done(node: Node) -> None:
    names = [f"old{number}" for number in range(14)]
    for name in names:
        node.place(name, 1)
    assert node.place("late", 2) == "node-1"
    node.observe("late", "node-0", 2)
    for name in names[:10]:
        node.end(name, 1)
    assert node.causes() == {"single-numa-node/ReleasedEarlier": 1}


def test_what_follows_from_an_early_release_has_the_same_cause(node: Node) -> None:
    node.place("old", 8)
    node.place("early", 6)
    assert node.place("next", 2) == "node-1"
    node.end("old", 8)
    node.observe("early", "node-0", 6)
    node.observe("next", "node-0", 2)
    assert node.causes() == {"single-numa-node/ReleasedEarlier": 2}


def test_a_miss_that_nothing_explains_keeps_its_cause_after_a_while(node: Node) -> None:
    node.place("early", 6)
    node.observe("early", "node-1", 6)
    node.now += 4 * SECOND
    node.add_pod(pod("other", cpu=1, scheduler_name="other"))
    assert node.causes() == {}
    node.now += 2 * SECOND
    node.add_pod(pod("another", cpu=1, scheduler_name="other"))
    assert node.causes() == {"single-numa-node/zones": 1}
    assert miss_notes("uid-early", node.state) == []


def test_a_half_read_that_was_recorded_as_a_miss_is_told_apart(node: Node) -> None:
    node.place("early", 6)
    node.observe("early", "node-1", 6)
    node.observe("early", "node-0", 6)
    assert node.causes() == {"single-numa-node/HalfRead": 1}


def test_a_pod_whose_zone_another_is_seen_on_may_be_on_the_other(node: Node) -> None:
    assert (node.place("one", 6), node.place("two", 6)) == ("node-0", "node-1")
    node.observe("two", "node-0", 6)
    assert node.used() == [12000, 6000], "where both cannot be, one is not, whatever has ended"
    node.observe("one", "node-1", 6)
    assert node.used() == [6000, 6000]


@pytest.mark.parametrize("first_seen", ["young", "old"])
def test_pods_that_came_together_and_were_admitted_oldest_first_are_told_apart(node: Node, first_seen: str) -> None:
    for name, created in (("young", 20), ("old", 10)):
        node.add_pod(pod(name, cpu=6, created_at=created))
        node.cycle()
    observed = {"young": "node-1", "old": "node-0"}
    for name in (first_seen, *(observed.keys() - {first_seen})):
        node.observe(name, observed[name], 6)
    assert node.causes() == {"single-numa-node/OldestFirst": 2}
    assert "oldest first, not in the order of decisions" in miss_notes("uid-old", node.state)[0]


def test_pods_of_one_second_are_admitted_in_any_order_if_nothing_else_explains_it(node: Node) -> None:
    for name in ("one", "two"):
        node.place(name, 6)
    node.observe("one", "node-1", 6)
    node.observe("two", "node-0", 6)
    assert node.causes() == {}, "an end may be reported that explains it"
    node.now += 6 * SECOND
    node.add_pod(pod("later", cpu=1))
    assert node.causes() == {"single-numa-node/OldestFirst": 2}


@pytest.mark.parametrize(
    ("decided_apart_s", "bound_apart_s", "causes"),
    [(3, 0, {"single-numa-node/OldestFirst": 1}), (0, 3, {}), (2, None, {})],
    ids=["a slow binding brought them together", "bound apart", "decided on apart"],
)
def test_pods_that_came_together_were_admitted_by_age_and_others_not(
    node: Node, decided_apart_s: int, bound_apart_s: int | None, causes: dict[str, int]
) -> None:
    for name, created in (("young", 20), ("old", 10)):
        node.add_pod(pod(name, cpu=6, created_at=created))
        node.cycle()
        node.now += decided_apart_s * SECOND
    for name in ("young", "old") if bound_apart_s is not None else ():
        node.record(f"pod/uid-{name}", payloads.PodBound(f"uid-{name}", "default", name, "n1"))
        node.now += (bound_apart_s or 0) * SECOND
    node.state = decode_state(encode_state(node.state))
    node.observe("old", "node-0", 6)
    assert node.causes() == causes


def test_only_some_of_the_pods_of_one_second_came_before_another(node: Node) -> None:
    node.place("large", 5)
    node.place("small", 2)
    assert node.place("middle", 4) == "node-1"
    # The kubelet took them as small, middle, large.
    node.observe("small", "node-0", 2)
    node.observe("middle", "node-0", 4)
    node.now += 6 * SECOND
    node.add_pod(pod("later", cpu=1))
    assert node.causes() == {"single-numa-node/OldestFirst": 1}


def test_a_pod_after_one_with_init_containers_that_kept_more_has_the_same_cause(node: Node) -> None:
    node.add_pod(pod("staged", container("setup", ContainerKind.INIT, cpu=3), container("main", cpu=5)))
    node.cycle()
    assert node.place("next", 3) == "node-0"
    assert node.see_staged("staged", main=5, setup=3) is MissCause.INIT_KEPT
    node.observe("next", "node-1", 3)
    node.now += 6 * SECOND
    node.add_pod(pod("later", cpu=1))
    assert node.causes() == {"single-numa-node/InitKept": 2}


def test_a_pod_that_ran_before_an_older_one_was_decided_on_was_not_admitted_after_it(node: Node) -> None:
    node.add_pod(pod("young", cpu=6, created_at=20))
    node.cycle()
    node.add_pod(pod("young", cpu=6, created_at=20, node_name="n1", phase="Running"))
    node.add_pod(pod("old", cpu=6, created_at=10))
    node.cycle()
    node.observe("old", "node-0", 6)
    assert node.causes() == {}


def test_memory_that_may_be_on_another_zone_is_counted_there_and_promised_once() -> None:
    node = Node(memory=16)
    for name in ("old", "early"):
        node.add_pod(pod(name, cpu=6, memory=12))
        node.cycle()
    node.add_pod(pod("old", cpu=6, memory=12, node_name="n1", phase="Succeeded"))
    zones = node.state.columns.zones
    row, memory = node.state.columns.row("n1"), zones.resources["memory"]
    assert zones.used[row, :, memory].tolist() == [12 * 2**30] * 2
    assert (zones.used - zones.repeated)[row, :, memory].tolist() == [0, 12 * 2**30]
