"""The changes that are facts, their records, and the ids of these."""

from dataclasses import replace
from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import ObjectGone, ObjectKey, ObjectRefused, ObjectSeen
from kaicore.kube.kinds.facts import Facts, restated
from kaicore.kube.kinds.table import NODE, POD, RESERVATION, TOPOLOGY
from kaicore.kube.normalize import reservation
from kaicore.kube.wire.objects import NodeObject, PodObject, TopologyObject
from kaicore.kube.wire.resources import NODES, PODS, RESERVATIONS, TOPOLOGIES
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.observation import charging
from kaicore.rules.events.payloads import (
    NodeCharged,
    NodeDeleted,
    NodeObserved,
    PodDeleted,
    PodObserved,
    PodRejected,
    TopologyDeleted,
)
from kaicore.rules.model.reservation import ZoneOffset

from tests.given.cluster import wire

NOW = 1_800_000_000_000_000


def pod(**kwargs: Any) -> ObjectSeen[PodObject]:
    return ObjectSeen(PODS.decode(wire.encode(wire.pod(**kwargs))))


def node(**kwargs: Any) -> ObjectSeen[NodeObject]:
    return ObjectSeen(NODES.decode(wire.encode(wire.node(**kwargs))))


def topology(**kwargs: Any) -> ObjectSeen[TopologyObject]:
    return ObjectSeen(TOPOLOGIES.at("v1alpha2").decode(wire.encode(wire.topology(**kwargs))))


def rejected(version: str = "2", **kwargs: Any) -> ObjectSeen[PodObject]:
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: Node didn't have enough resource"}
    return pod(version=version, nodeName="n1", status=status, **kwargs)


def facts_after(*units: Unit | None) -> Facts:
    """A watcher's memory when the log has these units."""
    recalled = Facts("c")
    for unit in units:
        for event in unit.events if unit is not None else ():
            recalled.recall(event.payload)
    return recalled


def test_a_first_sight_is_a_fact() -> None:
    unit = Facts("c").translate(POD, pod(name="p", namespace="ml"), now=NOW)
    assert unit is not None
    (event,) = unit.events
    assert isinstance(event.payload, PodObserved)
    assert (event.stream, event.subject, event.actor, event.occurred_at) == ("pod/uid-p", "ml/p", "watcher", NOW)


def test_new_version_alone_is_no_fact() -> None:
    facts = Facts("c")
    assert facts.translate(NODE, node(version="1"), now=NOW)
    assert facts.translate(NODE, node(version="2"), now=NOW) is None
    changed = facts.translate(NODE, node(version="3", ready=False), now=NOW)
    assert changed is not None
    assert isinstance(changed.events[0].payload, NodeObserved)
    assert changed.events[0].payload.node.resource_version == "3"


def test_ids_tell_facts_apart_and_find_the_same_fact_again() -> None:
    def ids(cluster: str, change: ObjectSeen[NodeObject]) -> list[object]:
        unit = Facts(cluster).translate(NODE, change, now=NOW)
        assert unit is not None
        return [event.id for event in unit.events]

    one = ids("c", node(version="1"))
    assert ids("c", node(version="1")) == one
    others = [
        ids("d", node(version="1")),
        ids("c", node(version="2")),
        ids("c", node(version="1", uid="other")),
        # A newer program that sees more in the same version.
        ids("c", node(version="1", ready=False)),
    ]
    assert all(other != one for other in others)


def test_deletion_is_a_fact_if_the_object_was_one() -> None:
    facts = Facts("c")
    gone = ObjectGone(ObjectKey("default", "p"), "uid-p", "9")
    assert facts.translate(POD, gone, now=NOW) is None
    facts.translate(POD, pod(), now=NOW)
    assert facts.translate(POD, ObjectGone(ObjectKey("default", "p"), "another", "9"), now=NOW) is None
    unit = facts.translate(POD, gone, now=NOW)
    assert unit is not None
    assert unit.events[0].payload == PodDeleted("uid-p", "default", "p")
    assert facts.translate(POD, gone, now=NOW) is None


def test_deleted_objects_of_all_kinds_are_facts() -> None:
    facts = Facts("c")
    facts.translate(NODE, node(), now=NOW)
    facts.translate(TOPOLOGY, topology(), now=NOW)
    key = ObjectKey("", "n1")
    ended = facts.translate(NODE, ObjectGone(key, "uid-n1", "9"), now=NOW)
    assert ended is not None
    assert ended.events[0].payload == NodeDeleted("uid-n1", "n1")
    ended = facts.translate(TOPOLOGY, ObjectGone(key, "uid-n1", "9"), now=NOW)
    assert ended is not None
    assert (ended.events[0].payload, ended.events[0].stream) == (TopologyDeleted("n1"), "nrt/n1")


def test_a_refusal_is_recorded_once_with_the_fact_that_shows_it() -> None:
    facts = Facts("c")
    first = facts.translate(POD, pod(nodeName="n1"), now=NOW)
    unit = facts.translate(POD, rejected(), now=NOW)
    assert unit is not None
    observed, refusal = unit.events
    assert isinstance(refusal.payload, PodRejected)
    assert (refusal.payload.node, refusal.payload.reason) == ("n1", "OutOfcpu")
    assert (refusal.stream, refusal.cause) == (observed.stream, observed.id)
    # Neither a later change nor a watcher that has just started says it again.
    for knows in (facts, facts_after(first, unit)):
        later = knows.translate(POD, rejected(version="3", labels={"a": "b"}), now=NOW)
        assert later is not None
        assert [type(event.payload) for event in later.events] == [PodObserved]


def test_a_refusal_of_a_successor_of_the_same_name_is_another_one() -> None:
    facts = Facts("c")
    facts.translate(POD, rejected(), now=NOW)
    unit = facts.translate(POD, rejected(version="5", uid="successor"), now=NOW)
    assert unit is not None
    assert len(unit.events) == 2


def test_a_topology_moves_its_nodes_stream_when_more_than_what_is_free_has_changed() -> None:
    facts = Facts("c")
    streams = []
    for version, zones in enumerate(
        (
            [wire.zone(0), wire.zone(1)],
            [wire.zone(0, free_cpu="1"), wire.zone(1)],
            [wire.zone(0, cpu="2"), wire.zone(1)],
        )
    ):
        unit = facts.translate(TOPOLOGY, topology(version=str(version), zones=zones), now=NOW)
        assert unit is not None
        streams.append([event.stream for event in unit.events])
    assert streams == [["nrt/n1", "node/n1"], ["nrt/n1"], ["nrt/n1", "node/n1"]]
    gone = facts.translate(TOPOLOGY, ObjectGone(ObjectKey("", "n1"), "uid-n1", ""), now=NOW)
    assert gone is not None
    assert [event.payload for event in gone.events] == [TopologyDeleted("n1"), NodeCharged("n1", "", ())]
    assert gone.events[1].cause == gone.events[0].id


def test_a_pod_arrives_once_on_each_node_where_it_is_seen() -> None:
    facts = Facts("c")
    arrivals = []
    for change in (
        pod(),
        pod(version="2", nodeName="n1"),
        pod(version="3", nodeName="n1", labels={"a": "b"}),
        pod(version="4", nodeName="n1", status={"phase": "Succeeded"}),
        pod(version="5", uid="successor", nodeName="n1"),
        pod(name="finished", nodeName="n1", status={"phase": "Failed"}),
    ):
        facts.translate(POD, change, now=NOW)
        arrivals.append(facts.take_arrivals())
    assert arrivals == [{}, {"uid-p": "n1"}, {}, {}, {"successor": "n1"}, {}]
    after_restart = facts_after(Facts("c").translate(POD, pod(nodeName="n1"), now=NOW))
    after_restart.translate(POD, pod(version="2", nodeName="n1", labels={"a": "b"}), now=NOW)
    assert after_restart.take_arrivals() == {}


def test_a_fact_that_charges_a_node_is_another_event_than_one_that_does_not() -> None:
    unit = Facts("c").translate(POD, rejected(), now=NOW)
    assert unit is not None
    charges = charging(unit, "n1", pods=("uid-p",))
    assert {event.id for event in charges.events}.isdisjoint(event.id for event in unit.events)
    assert charges == charging(unit, "n1", pods=("uid-p",))
    assert charges.events[1].cause == charges.events[0].id
    assert charges.events[2].payload == NodeCharged("n1", "", ("uid-p",))


def test_what_is_refused_changes_nothing() -> None:
    facts = Facts("c")
    facts.translate(TOPOLOGY, topology(), now=NOW)
    before = dict(facts.by_kind["NodeResourceTopology"])
    with pytest.raises(InvalidObject):
        facts.translate(TOPOLOGY, ObjectRefused(InvalidObject("x", "y", "z", "bad")), now=NOW)
    assert facts.by_kind["NodeResourceTopology"] == before
    assert facts.translate(TOPOLOGY, topology(version="3"), now=NOW) is None


def test_a_defect_of_reading_an_object_costs_that_object_and_names_it() -> None:
    def defective(*_: Any) -> Any:
        raise KeyError("unforeseen")

    facts, odd = Facts("c"), replace(NODE, normalize=defective)
    with pytest.raises(InvalidObject, match="Node n1: object: 'unforeseen': 'KeyError'"):
        facts.translate(odd, node(), now=NOW)
    assert facts.translate(NODE, node(), now=NOW) is not None


def test_recalling_the_log_gives_what_was_known() -> None:
    facts = Facts("c")
    units = [
        facts.translate(NODE, node(), now=NOW),
        facts.translate(TOPOLOGY, topology(), now=NOW),
        facts.translate(POD, pod(name="a"), now=NOW),
        facts.translate(POD, rejected(name="b"), now=NOW),
        facts.translate(POD, pod(name="c"), now=NOW),
        facts.translate(POD, ObjectGone(ObjectKey("default", "c"), "uid-c", "9"), now=NOW),
        facts.translate(TOPOLOGY, ObjectGone(ObjectKey("", "n1"), "uid-n1", ""), now=NOW),
        facts.translate(POD, ObjectGone(ObjectKey("default", "a"), "uid-a", ""), now=NOW),
        facts.translate(POD, pod(name="a", uid="successor"), now=NOW),
    ]
    assert facts_after(*units).by_kind == facts.by_kind


def test_a_late_end_of_a_predecessor_does_not_make_a_watcher_forget_the_successor() -> None:
    facts = Facts("c")
    facts.translate(POD, pod(uid="successor"), now=NOW)
    facts.recall(PodDeleted("uid-p", "default", "p"))
    assert facts.uids("Pod") == {ObjectKey("default", "p"): "successor"}


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2027-01-15T07:59:00Z", NOW - 60_000_000),
        ("2027-01-15T07:59:59Z", NOW),
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00:00Z", NOW),
        (None, NOW),
    ],
)
def test_the_api_servers_stamp_tells_when_unless_our_clock_is_more_exact(stamp: str | None, expected: int) -> None:
    document = wire.node()
    document["metadata"]["managedFields"] = [{"time": stamp}]
    unit = Facts("c").translate(NODE, ObjectSeen(NODES.decode(wire.encode(document))), now=NOW)
    assert unit is not None
    assert unit.events[0].occurred_at == expected


def test_what_is_said_again_has_new_ids_and_is_only_said_while_it_is_true() -> None:
    facts = Facts("c")
    unit = facts.translate(POD, rejected(), now=NOW)
    assert unit is not None
    assert facts.is_current(unit)
    again = restated(unit, position=7)
    assert [event.payload for event in again.events] == [event.payload for event in unit.events]
    assert {event.id for event in again.events}.isdisjoint(event.id for event in unit.events)
    assert again.events[1].cause == again.events[0].id
    assert restated(unit, position=7) == again
    assert restated(unit, position=8) != again
    gone = facts.translate(POD, ObjectGone(ObjectKey("default", "p"), "uid-p", "9"), now=NOW)
    assert gone is not None
    assert not facts.is_current(unit)
    assert facts.is_current(gone)


def test_other_laws_of_a_time_zone_are_a_new_fact_once_a_watcher_that_knows_them_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"start": "2026-12-05T18:00:00Z", "end": "2026-12-05T20:00:00Z"}
    spec = {**times, "nodes": ["n1"], "recurrence": "FREQ=WEEKLY", "timeZone": "Europe/Berlin"}
    document = {"metadata": {"name": "r", "uid": "u", "resourceVersion": "1"}, "spec": spec}
    seen = ObjectSeen(RESERVATIONS.at(RESERVATIONS.versions[0]).decode(wire.encode(document)))
    recorded = Facts("c").translate(RESERVATION, seen, now=NOW)
    assert facts_after(recorded).translate(RESERVATION, seen, now=NOW) is None
    monkeypatch.setattr(reservation, "zone_offsets", lambda _, start: (ZoneOffset(start, 7200),))
    said_anew = facts_after(recorded).translate(RESERVATION, seen, now=NOW)
    assert recorded is not None
    assert said_anew is not None
    assert recorded.events[0].id != said_anew.events[0].id
