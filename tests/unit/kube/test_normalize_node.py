"""Nodes and priority classes from the wire into the model."""

from typing import Any

import pytest
from kaicore.kube.normalize.fields import changed_at
from kaicore.kube.normalize.node import normalize_node, normalize_priority_class
from kaicore.kube.wire.resources import NODES, PRIORITY_CLASSES
from kaicore.rules.model.node import Node, Taint
from kaicore.rules.model.pod import PriorityClass

from tests.given.cluster import wire


def normalized(document: wire.Wire) -> Node:
    return normalize_node(NODES.decode(wire.encode(document)))


def test_node_in_full_is_normalized() -> None:
    document = wire.node(
        "n1",
        version="9",
        labels={"zone": "a"},
        allocatable={"cpu": "7500m", "memory": "30Gi", "nvidia.com/gpu": "8"},
        spec={
            "unschedulable": True,
            "taints": [
                {"key": "b", "effect": "NoSchedule", "value": "x", "timeAdded": "2026-01-01T00:00:00Z"},
                {"key": "a", "effect": "NoExecute"},
            ],
        },
        nodeInfo={"kubeletVersion": "v1.36.1"},
    )
    assert normalized(document) == Node(
        uid="uid-n1",
        name="n1",
        resource_version="9",
        allocatable={"cpu": 7500, "memory": 30 * 2**30, "nvidia.com/gpu": 8},
        capacity={"cpu": 7500, "memory": 30 * 2**30, "nvidia.com/gpu": 8},
        labels={"zone": "a"},
        taints=(Taint(key="a", effect="NoExecute"), Taint(key="b", effect="NoSchedule", value="x")),
        unschedulable=True,
        ready=True,
        kubelet_version="v1.36.1",
    )


@pytest.mark.parametrize(("annotations", "repeated"), [({}, False), ({"hami.io/node-nvidia-register": "[{}]"}, True)])
def test_node_of_hamis_device_plugin_offers_each_gpu_several_times(annotations: dict[str, str], repeated: bool) -> None:
    document = wire.node()
    document["metadata"]["annotations"] = annotations
    assert normalized(document).gpus_repeated is repeated


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_only_true_is_ready(status: str) -> None:
    document = wire.node()
    document["status"]["conditions"][0]["status"] = status
    assert not normalized(document).ready
    document["status"]["conditions"] = None
    assert not normalized(document).ready


def test_priority_class_is_normalized() -> None:
    document = {"metadata": wire.metadata("high"), "value": 1000, "globalDefault": True, "preemptionPolicy": "Never"}
    assert normalize_priority_class(PRIORITY_CLASSES.decode(wire.encode(document))) == PriorityClass(
        uid="uid-high",
        name="high",
        resource_version="1",
        value=1000,
        global_default=True,
        preemption_policy="Never",
    )


@pytest.mark.parametrize(
    ("more", "at"),
    [
        ({}, 0),
        ({"creationTimestamp": "1970-01-01T00:00:05Z"}, 5_000_000),
        ({"creationTimestamp": "1970-01-01T00:00:05Z", "managedFields": []}, 5_000_000),
        ({"managedFields": [{"time": "1970-01-01T00:00:09Z"}, {"time": "1970-01-01T00:00:07Z"}, {}]}, 9_000_000),
        ({"managedFields": [{"time": "yesterday"}], "creationTimestamp": "1970-01-01T00:00:05Z"}, 5_000_000),
        ({"managedFields": [{"time": "1970-01-01T00:00:09"}]}, 0),
    ],
)
def test_managed_fields_tell_the_api_servers_clock(more: dict[str, Any], at: int) -> None:
    document = {"metadata": wire.metadata("n1", **more)}
    assert changed_at(NODES.decode(wire.encode(document)).metadata) == at
