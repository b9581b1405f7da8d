"""The observations that change a node's account."""

import pytest
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import Amounts, ContainerKind
from kaicore.rules.state.pods.agreement import observation_charges

from tests.given.cluster.factory import GI, Cluster, amounts, container, pod, topology

NODE = topology("n1", amounts(cpu=8, memory=32), amounts(cpu=8, memory=32))
POD = pod("p", cpu=4, memory=8)
WITH_INIT = pod("p", container("init", ContainerKind.INIT, cpu=2), container(cpu=4, memory=8))


def placement(*zones: tuple[str, Amounts], name: str = "main", **more: object) -> Placement:
    held = tuple(ZoneAmount(zone, amount) for zone, amount in zones)
    return Placement(Provenance.OBSERVED, (ContainerPlacement(name, zones=held, **more),))  # type: ignore[arg-type]


HERE = placement(("node-0", {"cpu": 4000, "memory": 8 * GI}))
THERE = placement(("node-1", {"cpu": 4000, "memory": 8 * GI}))
WIDE = placement(
    mask=("node-0", "node-1"), blocks=(SpanAmount(("node-0", "node-1"), {"memory": 40 * GI}),), name="main"
)
WIDE_SEEN = placement(spans=(SpanAmount(("node-0", "node-1"), {"memory": 40 * GI}),))
UNCERTAIN = placement(("node-0", {"cpu": 4000}), uncertain=("cpu",), mask=("node-0", "node-1"))
SPLIT = placement(("node-0", {"cpu": 2000}), ("node-1", {"cpu": 2000}))


@pytest.mark.parametrize(
    ("predicted", "before", "observed", "charges"),
    [
        pytest.param(HERE, None, HERE, False, id="as predicted"),
        pytest.param(HERE, None, THERE, True, id="elsewhere"),
        pytest.param(HERE, THERE, THERE, False, id="as observed before"),
        pytest.param(HERE, THERE, HERE, True, id="back where it was predicted"),
        pytest.param(HERE, None, placement(("node-0", {"cpu": 2000, "memory": 8 * GI})), True, id="less"),
        pytest.param(None, None, HERE, True, id="nothing was known"),
        pytest.param(None, HERE, HERE, False, id="nothing new of what was not predicted"),
        pytest.param(WIDE, None, WIDE_SEEN, False, id="a block of two zones is the same block in any form"),
        pytest.param(UNCERTAIN, None, placement(("node-0", {"cpu": 4000})), False, id="certain now, and as charged"),
        pytest.param(UNCERTAIN, None, SPLIT, True, id="what was left open is settled otherwise than charged"),
        pytest.param(HERE, None, placement(("node-9", {"cpu": 4000})), False, id="of zones that the node has not"),
    ],
)
def test_an_observation_charges_the_node_when_the_account_changes(
    predicted: Placement | None, before: Placement | None, observed: Placement, *, charges: bool
) -> None:
    charged = observation_charges(NODE, POD, predicted=predicted, before=before, observed=observed)
    assert charged is charges


def test_what_init_containers_keep_is_foreseen_anew_from_all_that_the_node_holds_so_it_counts_as_changed() -> None:
    assert observation_charges(NODE, WITH_INIT, predicted=HERE, before=THERE, observed=HERE)
    assert not observation_charges(NODE, WITH_INIT, predicted=HERE, before=None, observed=HERE)
    assert observation_charges(NODE, WITH_INIT, predicted=None, before=HERE, observed=HERE)


def test_a_node_without_zones_has_no_account_of_them() -> None:
    assert not observation_charges(None, POD, predicted=HERE, before=None, observed=THERE)


@pytest.mark.parametrize("observed", [HERE, THERE, SPLIT])
def test_next_retry_is_the_time_of_the_next_change_of_the_state(observed: Placement) -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8, memory=32), amounts(cpu=8, memory=32))
    cluster.add_pod(pod("p", cpu=4, memory=8))
    cluster.cycle()
    entry = cluster.state.pods["uid-p"]
    zones = cluster.state.columns.zones
    before = zones.used.copy()
    charges = observation_charges(NODE, entry.pod, predicted=entry.predicted, before=None, observed=observed)
    cluster.report(entry.pod, *observed.containers, init=observed.init)
    assert charges == bool((zones.used != before).any())
