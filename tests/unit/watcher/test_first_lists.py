"""Pods that wait come last."""

from typing import Any

from kai_watcher.watcher import FirstLists
from kaicore.kube.api.reflector_core import ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.facts import Facts
from kaicore.kube.kinds.table import NODE, POD
from kaicore.kube.wire.resources import NODES, PODS
from kaicore.rules.events.envelope import Unit

from tests.given.cluster import wire

KEY = ObjectKey("default", "p")


def pod(facts: Facts, **kwargs: Any) -> Unit:
    unit = facts.translate(POD, ObjectSeen(PODS.decode(wire.encode(wire.pod(**kwargs)))), now=0)
    assert unit is not None
    return unit


def test_units_pass_but_for_pods_without_a_node() -> None:
    facts, lists = Facts("c"), FirstLists(["Node", "Pod"])
    node = facts.translate(NODE, ObjectSeen(NODES.decode(wire.encode(wire.node()))), now=0)
    assert node is not None
    waits = pod(facts, name="waits")
    bound = pod(facts, name="bound", nodeName="n1")
    finished = pod(facts, name="finished", status={"phase": "Failed"})
    assert lists.admit([waits, node, bound, finished]) == [node, bound, finished]
    assert list(lists.listed("Pod")) == []
    assert lists.outstanding == ("Node",)
    assert list(lists.listed("Node")) == [waits]
    assert lists.complete
    assert list(lists.admit([waits])) == [waits]


def test_what_happens_to_a_pod_that_is_held_back_is_held_back_too() -> None:
    facts, lists = Facts("c"), FirstLists(["Node"])
    waits = pod(facts)
    bound = pod(facts, version="2", nodeName="n1")
    gone = facts.translate(POD, ObjectGone(KEY, "uid-p", "3"), now=0)
    assert gone is not None
    assert list(lists.admit([waits])) == []
    assert list(lists.admit([bound, gone])) == []
    assert list(lists.listed("Node")) == [waits, bound, gone]
    assert list(lists.listed("Node")) == []
