"""Placements and events made of reports."""

from uuid import UUID

from kai_ingest.observation import is_empty, reported_placement
from kai_ingest.reports import read_pod
from kaicore.events.envelope import NewEvent
from kaicore.events.observation import annotated_placement, observation, zones_of
from kaicore.events.payloads import PlacementObserved
from kaicore.model.placement import (
    ContainerPlacement,
    Placement,
    Provenance,
    SpanAmount,
    ZoneAmount,
    decode_annotation,
)

from tests.reports import GPU, pod_report


def placement(*zones: ZoneAmount) -> Placement:
    return Placement(Provenance.OBSERVED, (ContainerPlacement("main", zones=zones),))


def test_zones_spans_and_resources_are_in_order_and_nothing_is_left_out() -> None:
    pod = read_pod(
        {
            "namespace": "default",
            "name": "p",
            "containers": [
                {
                    "name": "b",
                    "zones": [
                        {"zone": "node-10", "amount": {"memory": 5}},
                        {"zone": "node-2", "amount": {GPU: 1, "cpu": 1000}},
                        {"zone": "node-0", "amount": {"cpu": 0}},
                    ],
                    "spans": [{"zones": ["node-10", "node-2"], "amount": {"memory": 7}}],
                },
                {"name": "a"},
            ],
        },
        node="n1",
    )
    made = reported_placement(pod)
    assert made == Placement(
        Provenance.OBSERVED,
        (
            ContainerPlacement(
                "b",
                zones=(ZoneAmount("node-2", {"cpu": 1000, GPU: 1}), ZoneAmount("node-10", {"memory": 5})),
                spans=(SpanAmount(("node-2", "node-10"), {"memory": 7}),),
            ),
            ContainerPlacement("a"),
        ),
    )
    assert zones_of(made) == {"node-2", "node-10"}
    assert not is_empty(made)


def test_a_pod_that_holds_nothing_is_empty() -> None:
    assert is_empty(reported_placement(read_pod(pod_report("p", node_0={"cpu": 0}), node="n1")))


def test_an_annotation_tells_no_containers_apart() -> None:
    text = '[{"zone":"node-1","amount":{"cpu":"8"}},{"zone":"node-0","amount":{"cpu":"0"}}]'
    made = annotated_placement(decode_annotation(text, subject="Pod default/p", annotation="a"))
    assert made.containers == (ContainerPlacement("", zones=(ZoneAmount("node-1", {"cpu": 8000}),)),)


def made_event(held: Placement, previous: UUID | None = None, **fields: str) -> NewEvent:
    values = {"uid": "u1", "namespace": "default", "name": "p", "node": "n1"} | fields
    return observation("c1", PlacementObserved(**values, placement=held), previous=previous, occurred_at=5)


def test_the_event_of_an_observation() -> None:
    event = made_event(placement(ZoneAmount("node-0", {"cpu": 1000})))
    assert (event.stream, event.subject, event.actor, event.occurred_at) == ("pod/u1", "default/p", "ingest", 5)


def test_an_id_stands_for_what_is_said_of_which_pod_after_what() -> None:
    a, b = placement(ZoneAmount("node-0", {"cpu": 1000})), placement(ZoneAmount("node-1", {"cpu": 1000}))
    first = made_event(a)
    assert made_event(a).id == first.id, "said again"
    second = made_event(b, first.id)
    third = made_event(a, second.id)
    others = {made_event(a, uid="u2").id, made_event(a, node="n2").id}
    assert len({first.id, second.id, third.id, *others}) == 5
