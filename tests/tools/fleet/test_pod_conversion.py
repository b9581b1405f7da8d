"""Pods from the wire: amounts, kinds of containers, quality of service, selectors; and what is malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kai_fleet.kubelet.quantity import format_amount, parse_amount
from kai_fleet.node.pod_conversion import convert_pod
from kaicore.errors import InvalidObject, InvalidQuantity

from tests.tools.fleet.objects import pod_object


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "2", 2000),
        ("cpu", "1500m", 1500),
        ("cpu", "0.1", 100),
        ("cpu", "100u", 1),
        ("memory", "1Gi", 1024**3),
        ("memory", "1.5Ki", 1536),
        ("memory", "129e6", 129_000_000),
        ("memory", "1E", 10**18),
        ("memory", "128974848000m", 128974848),
        ("nvidia.com/gpu", "8", 8),
        ("nvidia.com/gpu", 8, 8),
        ("memory", ".5Gi", 512 * 1024**2),
        ("memory", "+1k", 1000),
    ],
)
def test_quantity_is_read_in_base_units(resource: str, text: str, amount: int) -> None:
    assert parse_amount(resource, text, subject="pod a/b", field="f") == amount


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1GiB", "-1", "1e999", "10Ei0", "nan", "٣", "1e", "."])
def test_text_that_is_no_quantity_is_named(text: str) -> None:
    with pytest.raises(InvalidQuantity, match=r"pod a/b: spec\.x: ") as caught:
        parse_amount("memory", text, subject="pod a/b", field="spec.x")
    assert repr(text) in str(caught.value)


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi"]), st.integers(0, 2**60))
def test_amounts_are_read_as_they_are_written(resource: str, amount: int) -> None:
    assert parse_amount(resource, format_amount(resource, amount), subject="", field="") == amount


def test_containers_are_in_spec_order_with_their_kinds() -> None:
    pod = convert_pod(
        pod_object(
            "p",
            initContainers=[
                {"name": "i", "resources": {"requests": {"cpu": "1"}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"limits": {"cpu": "2"}}},
            ],
            containers=[{"name": "c", "resources": {"limits": {"cpu": "3", "a.com/x": "1"}, "requests": {"cpu": "1"}}}],
            overhead={"cpu": "250m"},
        )
    )
    assert [(c.name, c.kind) for c in pod.containers] == [("i", "init"), ("s", "sidecar"), ("c", "app")]
    assert pod.containers[1].requests == {"cpu": 2000}
    assert pod.containers[2].requests == {"cpu": 1000, "a.com/x": 1}
    # Sidecar and app together, or the init container alone; the overhead on top.
    assert pod.node_requests() == {"cpu": 3250, "a.com/x": 1}


@pytest.mark.parametrize(
    ("requests", "limits", "qos"),
    [
        ({}, {}, "BestEffort"),
        ({"cpu": "0"}, {}, "BestEffort"),
        ({"cpu": "1"}, {}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}, "Burstable"),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
        ({}, {"cpu": "1", "memory": "1Gi"}, "Guaranteed"),
        ({}, {"nvidia.com/gpu": "1"}, "BestEffort"),
    ],
)
def test_quality_of_service_is_that_of_kubernetes(requests: dict[str, str], limits: dict[str, str], qos: str) -> None:
    pod = convert_pod(
        pod_object("p", containers=[{"name": "c", "resources": {"requests": requests, "limits": limits}}])
    )
    assert pod.qos == qos


def test_pod_level_resources_decide_the_quality_of_service_and_the_sum() -> None:
    pod = convert_pod(pod_object("p", resources={"limits": {"cpu": "4", "memory": "4Gi"}}))
    assert pod.qos == "Guaranteed"
    assert pod.has_pod_level_resources
    assert pod.node_requests() == {"cpu": 4000, "memory": 4 * 1024**3}


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "nope", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
    ],
)
def test_required_node_affinity_is_read(expression: dict[str, object], holds: bool) -> None:
    terms = [{"matchExpressions": [expression]}, {}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    matcher = convert_pod(pod_object("p", affinity=affinity)).node_affinity
    assert matcher is not None
    assert matcher({"zone": "a", "size": "5"}) is holds


def test_node_selector_and_name_are_read() -> None:
    matcher = convert_pod(pod_object("p", nodeSelector={"zone": "a"})).node_affinity
    assert matcher is not None
    assert matcher({"zone": "a"})
    assert not matcher({"zone": "b"})
    fields = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": fields}}}
    matcher = convert_pod(pod_object("p", affinity=affinity)).node_affinity
    assert matcher is not None
    assert matcher({"metadata.name": "n1"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "c"}, {"name": "c"}]}, "twice"),
        ({"containers": [{"name": "c", "resources": {"requests": {"cpu": "two"}}}]}, r"spec.containers\[0\].resources"),
        ({"overhead": {"memory": "x"}}, "spec.overhead"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]
                        }
                    }
                }
            },
            "'Like'",
        ),
    ],
)
def test_a_malformed_pod_is_named(more: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidObject, match=f"pod default/p: .*{words}"):
        convert_pod(pod_object("p", **more))
