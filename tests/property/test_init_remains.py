"""The remains of init containers, worked out from observations of the others, equal those of the kubelet's walk."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.init_remains import init_remains
from kaicore.rules.numa.kubelet.admission import admit
from kaicore.rules.numa.kubelet.requests import aligned_request
from kaicore.rules.numa.kubelet.verdict import Admitted, predicted_placement

from tests.given.cluster.factory import Cluster, amounts, container, pod
from tests.given.examples import examples

ZONES = st.builds(amounts, cpu=st.integers(2, 8), memory=st.integers(4, 8), gpu=st.integers(0, 3))
REQUEST = st.fixed_dictionaries(
    {"cpu": st.sampled_from([1, 1, 2, 2, 3, 0.5]), "memory": st.integers(1, 2)}, optional={"gpu": st.integers(1, 2)}
)
POD = st.lists(REQUEST, min_size=2, max_size=4)
STRICT, LOOSE = ["single-numa-node", "restricted"], ["best-effort", "none"]

#: By zone and resource.
Kept = dict[tuple[str, str], int]


def _pod(name: str, requests: Any, inits: int) -> Any:
    kinds = [ContainerKind.INIT] * inits + [ContainerKind.APP] * (len(requests) - inits)
    every = zip(kinds, requests, strict=True)
    return pod(name, *(container(f"c{place}", kind, **request) for place, (kind, request) in enumerate(every)))


def _as_shown(item: ContainerPlacement) -> ContainerPlacement:
    """As podresources shows a container: no mask, and of memory of several zones only which they are."""
    zones = tuple(
        ZoneAmount(
            zone.zone, {name: part for name, part in zone.amount.items() if not (item.blocks and is_memory(name))}
        )
        for zone in item.zones
    )
    return ContainerPlacement(
        item.container, zones=zones, spans=tuple(SpanAmount(b.zones, b.amount) for b in item.blocks)
    )


def _kept(containers: tuple[ContainerPlacement, ...]) -> Kept:
    kept: Kept = {}
    for item in containers:
        for zone in item.zones:
            for name, part in zone.amount.items():
                if not is_memory(name):
                    kept[zone.zone, name] = kept.get((zone.zone, name), 0) + part
    return kept


def _play(
    layout: Any, before: Any, asked: Any, policy: str, scope: str
) -> tuple[Kept, tuple[ContainerPlacement, ...]] | None:
    """Have a pod come to a node with others; return what its init containers keep, and what is worked out."""
    cluster = Cluster().add_node("n1", *layout, policy=policy, scope=scope)
    for index, requests in enumerate(before):
        cluster.add_pod(_pod(f"p{index}", requests, 1))
        cluster.cycle()
    columns = cluster.state.columns
    row = columns.row("n1")
    names = tuple(f"node-{index}" for index in range(len(layout)))
    request = aligned_request(_pod("asked", asked, 1 + (len(asked) > 3)))
    admitted = admit(columns.node_zones(row), request)
    if not isinstance(admitted, Admitted) or (truth := predicted_placement(admitted, names)) is None:
        return None
    inits = {item.name for item in request.containers if item.kind is ContainerKind.INIT}
    containers = truth.placement.containers
    observed = Placement(
        Provenance.OBSERVED, tuple(_as_shown(item) for item in containers if item.container not in inits)
    )
    worked_out = init_remains([lambda: columns.node_zones(row)], request, observed, names)
    return _kept(tuple(item for item in containers if item.container in inits)), worked_out


LAYOUT = st.lists(ZONES, min_size=1, max_size=4)
BEFORE = st.lists(POD, max_size=4)
SCOPE = st.sampled_from(["container", "pod"])


@settings(max_examples=examples(300), deadline=None)
@given(LAYOUT, BEFORE, POD, st.sampled_from([*STRICT, *LOOSE]), SCOPE)
def test_remains_are_where_a_strict_kubelet_left_them_and_of_a_loose_one_within_what_counts_as_possible(
    layout: Any, before: Any, asked: Any, policy: str, scope: str
) -> None:
    played = _play(layout, before, asked, policy, scope)
    if played is None:
        return
    truth, worked_out = played
    if policy in STRICT:
        assert _kept(worked_out) == truth
        assert not any(item.spans for item in worked_out)
        return
    possible = _kept(worked_out)
    for item in worked_out:
        for span in item.spans:
            for zone in span.zones:
                for name, part in span.amount.items():
                    possible[zone, name] = possible.get((zone, name), 0) + part
    assert all(possible.get(key, 0) >= part for key, part in truth.items())


def test_what_an_init_container_lent_is_most_likely_what_the_container_after_it_was_seen_with() -> None:
    cluster = Cluster().add_node("n1", amounts(cpu=8, gpu=2), amounts(cpu=8, gpu=2), policy="none")
    columns = cluster.state.columns
    request = aligned_request(_pod("asked", [{"cpu": 2, "gpu": 1}, {"cpu": 2, "gpu": 1}], 1))
    shown = ContainerPlacement("c1", zones=(ZoneAmount("node-1", amounts(cpu=2, gpu=1)),))
    observed = Placement(Provenance.OBSERVED, (shown,))
    nodes = [lambda: columns.node_zones(columns.row("n1"))]
    assert _kept(init_remains(nodes, request, observed, ("node-0", "node-1"))) == {}
