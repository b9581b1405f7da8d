"""Kubernetes' own groups: PodGroup and Workload of 1.35 (v1alpha1), 1.36 (v1alpha2), 1.37 (v1beta1) and 1.38 (v1).

Sources: KEP-4671; `staging/src/k8s.io/api/scheduling/{v1alpha2,v1beta1}`; for 1.36 also the models of
kubernetes-asyncio 36, against which the manifests here are checked.
"""

from typing import Any

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.kinds.table import GROUP_KINDS
from kaicore.rules.groups.labels import NATIVE_POD_GROUP, WORKLOAD
from kaicore.rules.groups.status import Disruption, census, initially_scheduled, native_conditions, status_document
from kaicore.rules.model.group import Group, PodSet
from kaicore.yaml_text import load_yaml

from tests.given.work.groups import World, shape, source
from tests.given.work.workloads import Workloads

OF_1_36 = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: g}
spec:
  podGroupTemplateRef: {workload: {workloadName: train, podGroupTemplateName: workers}}
  schedulingPolicy: {gang: {minCount: 4}}
  schedulingConstraints: {topology: [{key: topology.kubernetes.io/zone}]}
  disruptionMode: PodGroup
  priorityClassName: high
  priority: 1000
"""
OF_1_37 = """
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: g}
spec:
  workloadRef: {workloadName: train, templateName: workers}
  schedulingPolicy: {gang: {minCount: 4}}
  schedulingConstraints: {topology: [{key: topology.kubernetes.io/zone}]}
  disruptionMode: {all: {}}
  priorityClassName: high
  priority: 1000
  preemptionPolicy: Never
"""


@pytest.mark.parametrize(
    "text", [OF_1_36, OF_1_37, *(OF_1_37.replace("v1beta1", other) for other in ("v1alpha3", "v1"))]
)
def test_a_pod_group_says_the_same_in_every_version(text: str) -> None:
    parsed = source(text)
    (root,) = parsed.templates[0].sets
    assert (parsed.kind, root.min_pods, parsed.ends_whole) == (NATIVE_POD_GROUP, 4, True)
    assert (parsed.priority_class, parsed.priority) == ("high", 1000)
    assert parsed.preemption_policy == ("Never" if "preemptionPolicy" in text else "")
    assert root.topology is not None
    assert (root.topology.required, root.topology.field) == (
        "topology.kubernetes.io/zone",
        "spec.schedulingConstraints.topology",
    )


WORKLOAD_OF_1_35 = """
apiVersion: scheduling.k8s.io/v1alpha1
kind: Workload
metadata: {name: train}
spec: {podGroups: [{name: workers, policy: {gang: {minCount: 4}}}, {name: driver, policy: {basic: {}}}]}
"""
WORKLOAD_OF_1_36 = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: Workload
metadata: {name: train}
spec:
  podGroupTemplates:
    - {name: workers, schedulingPolicy: {gang: {minCount: 4}}}
    - {name: driver, schedulingPolicy: {basic: {}}}
"""


@pytest.mark.parametrize("text", [WORKLOAD_OF_1_35, WORKLOAD_OF_1_36, WORKLOAD_OF_1_36.replace("v1alpha2", "v1beta1")])
def test_a_workload_has_its_groups_or_the_templates_of_them(text: str) -> None:
    parsed = source(text)
    assert parsed.kind == WORKLOAD
    assert {one.name: shape(one.sets) for one in parsed.templates} == {"workers": ">=4", "driver": ""}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            OF_1_36.replace("minCount: 4", "minCount: -1"),
            "spec.schedulingPolicy.gang.minCount: must be a whole number of 0 or more: -1",
        ),
        (WORKLOAD_OF_1_36.replace("driver", "workers"), r"spec.podGroupTemplates\[1\].name: is there twice or empty"),
        (WORKLOAD_OF_1_35.replace("minCount: 4", "minCount: -1"), r"spec.podGroups\[0\].policy.gang.minCount: must be"),
    ],
)
def test_what_cannot_be_is_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        source(text)


@pytest.mark.parametrize("text", [OF_1_36, WORKLOAD_OF_1_36])
def test_the_manifests_of_1_36_are_of_its_types(text: str) -> None:
    """The generated models have the API's fields; no field here is made up."""
    # Its 860 modules are for one worker of the tests only.
    from kubernetes_asyncio.client import models

    document = load_yaml(text)

    def check(value: Any, name: str) -> None:
        if name.startswith("list["):
            for item in value:
                check(item, name[5:-1])
        elif hasattr(models, name):
            model = getattr(models, name)
            fields = {json: attribute for attribute, json in model.attribute_map.items()}
            assert value.keys() <= fields.keys(), (name, value)
            for key, inner in value.items():
                check(inner, model.openapi_types[fields[key]])

    check(document["spec"], f"V1alpha2{document['kind']}Spec")


def test_the_highest_version_that_is_served_is_preferred() -> None:
    versions = {kind.name: kind.resource.versions for kind in GROUP_KINDS}
    assert versions[NATIVE_POD_GROUP] == ("v1", "v1beta1", "v1alpha3", "v1alpha2")
    assert versions[WORKLOAD] == ("v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1")


# While it runs.


def pods(*numbers: int) -> str:
    return "---\n".join(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number}}}\n"
        "spec: {schedulingGroup: {podGroupName: g},"
        " containers: [{name: c, resources: {limits: {cpu: 4, memory: 1Mi}}}]}\n"
        for number in numbers
    )


def gang(least: int) -> str:
    return (
        "apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup\nmetadata: {name: g}\n"
        f"spec: {{schedulingPolicy: {{gang: {{minCount: {least}}}}}}}\n"
    )


class Running(World, Workloads):
    """Objects as text, and what cycles decide of them."""


def test_a_minimum_that_is_lowered_lets_start_what_fits() -> None:
    world = Running()
    world.add_node("n1", cpu=8, memory=8)
    world.apply(gang(4) + "---\n" + pods(0, 1, 2, 3))
    assert world.placed(world.cycle()) == {}
    world.apply(gang(2))
    assert len(world.placed(world.cycle())) == 2


def test_a_raised_minimum_ends_no_pod_and_counts_for_new_ones() -> None:
    world = Running()
    world.add_node("n1", cpu=64, memory=8)
    world.apply(gang(2) + "---\n" + pods(0, 1))
    assert len(world.placed(world.cycle())) == 2
    world.apply(gang(4))
    world.apply(pods(2))
    # A day below its minimum, far longer than any grace.
    world.now += 86_400_000_000
    result = world.cycle()
    assert (world.placed(result), world.evicted(result)) == ({}, {})
    world.apply(pods(3))
    assert sorted(world.placed(world.cycle())) == ["p2", "p3"]


# Conditions.


def group() -> Group:
    return Group(
        key=f"{NATIVE_POD_GROUP}/default/g",
        namespace="default",
        name="g",
        origin=NATIVE_POD_GROUP,
        sets=(PodSet(min_pods=2),),
    )


@pytest.mark.parametrize(
    ("version", "type_"),
    [
        ("v1alpha2", "PodGroupScheduled"),
        ("v1alpha3", "PodGroupInitiallyScheduled"),
        ("v1beta1", "PodGroupInitiallyScheduled"),
    ],
)
def test_the_condition_is_called_as_each_version_calls_it(version: str, type_: str) -> None:
    disruption = Disruption("Preempted to make room for other", "2026-01-01T00:00:00Z")
    status = status_document(
        group(), census(()), initially_scheduled(), since="2026-01-01T00:00:00Z", disruption=disruption
    )
    conditions = native_conditions(status, version)["conditions"]
    assert [(one["type"], one["status"], one["reason"]) for one in conditions] == [
        (type_, "True", "Scheduled"),
        ("DisruptionTarget", "True", "PreemptionByScheduler"),
    ]
    # All that `metav1.Condition` requires.
    assert all(one.keys() >= {"type", "status", "reason", "message", "lastTransitionTime"} for one in conditions)
