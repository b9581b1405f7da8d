"""Placements and events made of reports."""

from uuid import UUID

import msgspec
import pytest
from kai_ingest.known_pod import is_empty, reported_placement
from kai_ingest.reports import read_pod
from kaicore.errors import InvalidObject
from kaicore.rules.events.envelope import NewEvent
from kaicore.rules.events.observation import annotated_placement, observation, zones_of
from kaicore.rules.events.payloads import PlacementObserved
from kaicore.rules.model.placement import (
    MEMORY_GROUPS_OBSERVED,
    MEMORY_GROUPS_PREDICTED,
    OBSERVED_ANNOTATION,
    PREDICTED_ANNOTATION,
    ContainerPlacement,
    Placement,
    Provenance,
    SpanAmount,
    ZoneAmount,
    decode_annotation,
    encode_annotation,
    encode_memory_groups,
)

from tests.given.work.reports import GPU, pod_report


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


WIDE = ("node-0", "node-1")


def record(*containers: ContainerPlacement) -> tuple[str, ContainerPlacement]:
    """A placement as its annotation has it, and as that is read back."""
    text = encode_annotation(Placement(Provenance.OBSERVED, containers))
    return text, decode_annotation(text, subject="Pod default/p", annotation="a")


def test_memory_of_several_zones_is_read_back_as_one_block() -> None:
    main = ContainerPlacement(
        "main",
        WIDE,
        (ZoneAmount("node-0", {"cpu": 8000, "memory": 40}), ZoneAmount("node-1", {"memory": 8})),
        blocks=(SpanAmount(WIDE, {"memory": 48}),),
    )
    side = ContainerPlacement("side", ("node-1",), (ZoneAmount("node-1", {"memory": 3}),))
    text, read = record(main, side)
    assert text == (
        '[{"zone":"node-0","amount":{"cpu":"8","memory":"40"},"blocks":['
        '{"zones":["node-0","node-1"],"amount":{"memory":"48"}},{"zones":["node-1"],"amount":{"memory":"3"}}]},'
        '{"zone":"node-1","amount":{"memory":"11"}}]'
    )
    assert read.blocks == (SpanAmount(WIDE, {"memory": 48}), SpanAmount(("node-1",), {"memory": 3}))
    groups = encode_memory_groups(Placement(Provenance.PREDICTED, (main, side)))
    assert groups == (
        '[{"memoryNodes":["node-0","node-1"],"amount":{"memory":"48"}},{"memoryNodes":["node-1"],"amount":{"memory":"3"}}]'
    )
    assert encode_memory_groups(Placement(Provenance.PREDICTED)) == ""
    assert [zone.amount for zone in read.zones] == [{"cpu": 8000, "memory": 40}, {"memory": 11}]


def test_an_observed_block_and_a_device_of_several_zones_are_read_back() -> None:
    spans = (SpanAmount(WIDE, {GPU: 1, "memory": 48}),)
    text, read = record(ContainerPlacement("main", spans=spans))
    assert text.startswith('[{"zone":"node-0","amount":{},"blocks":[')
    assert (read.blocks, read.spans) == ((SpanAmount(WIDE, {"memory": 48}),), (SpanAmount(WIDE, {GPU: 1}),))
    assert zones_of(annotated_placement(read)) == set(WIDE)


#: As KAI-Scheduler's exporter writes them: each set of nodes once, `null` where it does not know them.
@pytest.mark.parametrize(
    ("groups", "blocks"),
    [
        (
            '[{"memoryNodes":["node-0","node-1"],"amount":{"memory":"30"}},{"memoryNodes":["node-2"],"amount":{"memory":"0"}}]',
            (SpanAmount(WIDE, {"memory": 30}), SpanAmount(("node-2",), {"memory": 0})),
        ),
        ('[{"memoryNodes":["node-0"],"amount":{"memory":"10"}}]', ()),
        ("[]", ()),
        ("null", ()),
        ("", ()),
    ],
)
def test_memory_groups_of_another_exporter_are_blocks(groups: str, blocks: tuple[SpanAmount, ...]) -> None:
    text = '[{"zone":"node-0","amount":{"cpu":"8"}}]'
    read = decode_annotation(text, subject="Pod default/p", annotation="a", groups=groups)
    assert read == ContainerPlacement("", zones=(ZoneAmount("node-0", {"cpu": 8000}),), blocks=blocks)


def test_memory_groups_without_sense_are_named() -> None:
    for annotation, named in (
        (OBSERVED_ANNOTATION, MEMORY_GROUPS_OBSERVED),
        (PREDICTED_ANNOTATION, MEMORY_GROUPS_PREDICTED),
    ):
        with pytest.raises(InvalidObject, match=named):
            decode_annotation('[{"zone":"z","amount":{}}]', subject="Pod p", annotation=annotation, groups="{}")


def test_memory_of_single_zones_is_written_as_ever() -> None:
    text, read = record(ContainerPlacement("main", zones=(ZoneAmount("node-0", {"cpu": 1000, "memory": 5}),)))
    assert text == '[{"zone":"node-0","amount":{"cpu":"1","memory":"5"}}]'
    assert read.blocks == ()
    assert encode_annotation(Placement(Provenance.OBSERVED, (ContainerPlacement("main"),))) == ""


@pytest.mark.parametrize("zones", [[], [""], ["node-0", "node-0"]])
def test_a_block_without_zones_or_with_one_twice_is_no_record(zones: list[str]) -> None:
    document = [{"zone": "node-0", "amount": {}, "blocks": [{"zones": zones, "amount": {"memory": "1"}}]}]
    with pytest.raises(InvalidObject, match=r"Pod default/p: metadata\.annotations\[a\]\.blocks: a zone is empty"):
        decode_annotation(msgspec.json.encode(document).decode(), subject="Pod default/p", annotation="a")


def made_event(held: Placement, previous: UUID | None = None, **fields: str) -> NewEvent:
    values = {"uid": "u1", "namespace": "default", "name": "p", "node": "n1"} | fields
    return observation("c1", PlacementObserved(**values, placement=held), previous=previous, occurred_at=5)


def test_observation_becomes_an_event_of_its_pods_stream() -> None:
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
