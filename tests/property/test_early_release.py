"""Amounts that a kubelet gave after an early release are explained by that, and counted until they were seen."""

from collections.abc import Iterator
from itertools import compress, product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.events import payloads
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.verdict import Admitted, predicted_placement
from kaicore.rules.state.pods.agreement import MissCause, contradiction
from kaicore.rules.state.pods.pod_entry import PodEntry

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples

ZONES = st.lists(st.builds(amounts, cpu=st.integers(2, 8), gpu=st.integers(0, 3)), min_size=2, max_size=3)
REQUEST = st.fixed_dictionaries({"cpu": st.integers(1, 6)}, optional={"gpu": st.integers(1, 2)})
POLICY = st.sampled_from(["single-numa-node", "restricted", "best-effort"])


def _pod(name: str, request: Any, *, init: bool) -> Pod:
    setup = [container("setup", ContainerKind.INIT, cpu=2)] if init else []
    return pod(name, *setup, container(**request))


def _cluster(layout: Any, policy: str, before: list[Pod]) -> Cluster:
    cluster = Cluster().add_node("n1", *layout, policy=policy)
    for one in before:
        cluster.add_pod(one)
        cluster.cycle()
    return cluster


def _given(cluster: Cluster, one: Pod, names: list[str]) -> Placement | None:
    """The kubelet's amounts for a pod on the node as it is now, in the form of state files."""
    state = cluster.state
    admitted = admit(
        state.columns.node_zones(state.columns.row("n1")), state.classes[state.pods[one.uid].class_key].aligned
    )
    if not isinstance(admitted, Admitted) or (predicted := predicted_placement(admitted, names)) is None:
        return None
    bare = tuple(ContainerPlacement(item.container, zones=item.zones) for item in predicted.placement.containers)
    inits = tuple(item.container for item in bare if item.container == "setup")
    return Placement(Provenance.OBSERVED, bare, inits)


def _given_whoever_is_there(cluster: Cluster, one: Pod, others: list[Pod], names: list[str]) -> Iterator[Placement]:
    state = cluster.state
    row = state.columns.row("n1")
    charges = [state.pods[other.uid].zone_charge for other in others]
    for there in product([False, True], repeat=len(others)):
        mark = state.columns.mark(row)
        for charge in (state.pods[one.uid].zone_charge, *compress(charges, (not held for held in there))):
            state.columns.zones.release(row, charge)
        placement = _given(cluster, one, names)
        state.columns.restore(row, mark)
        if placement is not None:
            yield placement


def _check_counted(entry: PodEntry, observed: Placement, names: list[str]) -> None:
    assert entry.predicted is not None
    worlds = (entry.predicted, *entry.alternatives)
    # How these are split over the zones of a mask is the kubelet's choice in each world.
    unsure = {name for world in worlds for item in world.containers for name in item.uncertain}
    charged = {(zone, resource): amount for zone, resource, amount in entry.zone_charge.amounts}
    for item in observed.containers:
        for zone in item.zones:
            for resource, amount in zone.amount.items():
                if resource not in unsure:
                    assert charged.get((names.index(zone.zone), resource), 0) >= amount, "it counted where it is"


@settings(max_examples=examples(300), deadline=None)
@given(
    ZONES,
    POLICY,
    st.lists(st.tuples(REQUEST, st.booleans()), min_size=1, max_size=4),
    st.tuples(REQUEST, st.booleans()),
    st.tuples(st.sets(st.integers(0, 3), min_size=1), st.permutations(range(4))),
)
def test_zones_given_after_an_early_release_are_explained_and_were_counted(
    layout: Any, policy: str, before: Any, asked: Any, ends: tuple[set[int], list[int]]
) -> None:
    freed, reported = ends
    others = [_pod(f"p{index}", request, init=init) for index, (request, init) in enumerate(before)]
    cluster = _cluster(layout, policy, others)
    one = _pod("asked", asked[0], init=asked[1])
    cluster.add_pod(one)
    if not cluster.cycle().placements or len(cluster.state.waiting) == len(others):
        return
    entry = cluster.state.pods[one.uid]
    placed = [other for other in others if cluster.state.pods[other.uid].charged]
    ended = [other for index, other in enumerate(placed) if index in freed]
    if entry.predicted is None or not ended:
        return
    twin = _cluster(layout, policy, others)
    for other in ended:
        twin.delete_pod(other)
    twin.add_pod(one)
    names = [f"node-{index}" for index in range(len(layout))]
    observed = _given(twin, one, names)
    if observed is None:
        # A kubelet can reject what came a moment too early: init containers go where there is room for them alone.
        return
    cluster.state.counters.reported = 1
    for index in reported:
        # Ends are reported in any order, also of pods that ended after the admission.
        if index < len(placed):
            cluster.delete_pod(placed[index])
        if freed <= set(reported[: reported.index(index) + 1]):
            break
    cause = contradiction(entry.predicted, observed)
    if cause is None:
        return
    if len(entry.alternatives) < 3:
        # No more other placements of one pod are counted.
        _check_counted(entry, observed, names)
    ids = one.uid, "default", one.name, "n1"
    cluster.report(one, *observed.containers, init=observed.init)
    missed = payloads.PredictionMissed(*ids, policy, cause, entry.predicted, observed)
    cluster.record(f"pod/{one.uid}", missed)
    assert cluster.state.misses.explained[one.uid].cause == MissCause.RELEASED_EARLIER


@settings(max_examples=examples(200), deadline=None)
@given(ZONES, POLICY, st.lists(st.tuples(REQUEST, st.booleans()), min_size=1, max_size=4), REQUEST, st.data())
def test_zones_that_no_kubelet_gives_whoever_is_there_are_never_explained(
    layout: Any, policy: str, before: Any, asked: Any, data: st.DataObject
) -> None:
    requests = enumerate(before)
    others = [pod(f"p{index}", container(**request), created_at=1 + late) for index, (request, late) in requests]
    cluster = _cluster(layout, policy, others)
    one = pod("asked", container(**asked), created_at=1)
    cluster.add_pod(one)
    cluster.cycle()
    entry = cluster.state.pods[one.uid]
    placed = [other for other in others if cluster.state.pods[other.uid].charged]
    if not entry.charged or entry.predicted is None:
        return
    names = [f"node-{index}" for index in range(len(layout))]
    zone = data.draw(st.sampled_from(names))
    observed = Placement(
        Provenance.OBSERVED, (ContainerPlacement("main", zones=(ZoneAmount(zone, amounts(**asked)),)),), ()
    )
    cause = contradiction(entry.predicted, observed)
    if cause is None or any(
        contradiction(possible, observed) is None for possible in _given_whoever_is_there(cluster, one, placed, names)
    ):
        return
    ids = one.uid, "default", one.name, "n1"
    cluster.report(one, *observed.containers, init=observed.init)
    missed = payloads.PredictionMissed(*ids, policy, cause, entry.predicted, observed)
    cluster.record(f"pod/{one.uid}", missed)
    for other in data.draw(st.permutations(placed)):
        cluster.delete_pod(other)
    cluster.state.misses.expire(1 << 62)
    assert cluster.state.misses.explained[one.uid].cause == cause
