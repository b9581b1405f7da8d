"""Constraints on nodes and on other pods, from the wire into the model."""

from typing import Any

import msgspec
import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.pod import normalize_pod, read_constraints
from kaicore.kube.wire.resources import PODS
from kaicore.rules.model.pod import (
    ClaimUse,
    HostPort,
    PodRules,
    PodTerm,
    PreferredNodes,
    PreferredPods,
    SpreadConstraint,
)
from kaicore.rules.model.selector import PodSelector, Requirement

from tests.given.cluster import wire
from tests.given.cluster.factory import Cluster, amounts

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
APP = Requirement("app", "In", ("web",))
SELECTOR = {"matchLabels": {"app": "web"}}
ZONE = "topology.kubernetes.io/zone"


def rules(**spec: Any) -> PodRules | None:
    return normalize_pod(PODS.decode(wire.encode(wire.pod(namespace="ml", **spec)))).rules


def affinity_of(term: dict[str, Any], **more: Any) -> PodSelector:
    pod_rules = rules(affinity={"podAffinity": {REQUIRED: [{"topologyKey": ZONE, **term}]}}, **more)
    assert pod_rules is not None
    return pod_rules.affinity[0].selector


def test_pod_without_constraints_has_no_rules() -> None:
    assert rules() is None
    assert rules(affinity={"podAntiAffinity": {REQUIRED: []}, "nodeAffinity": {}}) is None
    assert rules(containers=[{"name": "c", "ports": [{"containerPort": 80}]}]) is None


@pytest.mark.parametrize(
    ("term", "selector"),
    [
        ({"labelSelector": SELECTOR}, PodSelector(("ml",), None, (APP,))),
        ({"labelSelector": SELECTOR, "namespaces": ["b", "a"]}, PodSelector(("a", "b"), None, (APP,))),
        ({"labelSelector": {}, "namespaceSelector": {}}, PodSelector((), (), ())),
        (
            {"labelSelector": {}, "namespaces": ["a"], "namespaceSelector": {"matchLabels": {"t": "x"}}},
            PodSelector(("a",), (Requirement("t", "In", ("x",)),), ()),
        ),
        # No label selector selects no pod, an empty one all.
        ({}, PodSelector(("ml",), None, None)),
        (
            {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["2", "1"]}]}},
            PodSelector(("ml",), None, (Requirement("a", "NotIn", ("1", "2")),)),
        ),
    ],
)
def test_affinity_term_selects_as_in_kubernetes(term: dict[str, Any], selector: PodSelector) -> None:
    assert affinity_of(term) == selector


def test_label_keys_are_merged_as_the_api_server_merges_them_and_only_once() -> None:
    term = {"labelSelector": SELECTOR, "matchLabelKeys": ["hash", "none"], "mismatchLabelKeys": ["tenant"]}
    labels = {"hash": "7", "tenant": "t"}
    merged = affinity_of(term, labels=labels)
    assert merged.labels == (APP, Requirement("hash", "In", ("7",)), Requirement("tenant", "NotIn", ("t",)))
    by_server = [
        {"key": "hash", "operator": "In", "values": ["7"]},
        {"key": "tenant", "operator": "NotIn", "values": ["t"]},
    ]
    again = {**term, "labelSelector": {**SELECTOR, "matchExpressions": by_server}}
    assert affinity_of(again, labels={"hash": "8", "tenant": "u"}) == merged


def test_all_kinds_of_terms_are_read() -> None:
    term = {"topologyKey": ZONE, "labelSelector": SELECTOR}
    named = PodTerm(ZONE, PodSelector(("ml",), None, (APP,)))
    pod_rules = rules(
        affinity={
            "nodeAffinity": {
                PREFERRED: [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}},
                    {"weight": 9, "preference": {}},
                ]
            },
            "podAffinity": {PREFERRED: [{"weight": 10, "podAffinityTerm": term}]},
            "podAntiAffinity": {REQUIRED: [term], PREFERRED: [{"weight": 20, "podAffinityTerm": term}]},
        }
    )
    assert pod_rules == PodRules(
        anti_affinity=(named,),
        preferred_pods=(PreferredPods(10, named), PreferredPods(-20, named)),
        preferred_nodes=(PreferredNodes(5, (Requirement("disk", "Exists"),)),),
    )


def test_spread_constraint_is_read_with_its_defaults() -> None:
    given = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
    other = {
        **given,
        "whenUnsatisfiable": "ScheduleAnyway",
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["hash"],
    }
    pod_rules = rules(topologySpreadConstraints=[given, other], labels={"hash": "7"})
    assert pod_rules is not None
    assert pod_rules.spread == (
        SpreadConstraint(1, ZONE, PodSelector(("ml",), None, (APP,), living=True)),
        SpreadConstraint(
            1,
            ZONE,
            PodSelector(("ml",), None, (APP, Requirement("hash", "In", ("7",))), living=True),
            required=False,
            min_domains=3,
            honor_affinity=False,
            honor_taints=True,
        ),
    )


def test_host_ports_of_containers_and_sidecars_are_read() -> None:
    pod_rules = rules(
        initContainers=[
            {"name": "i", "ports": [{"hostPort": 1}]},
            {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 2, "protocol": "UDP"}]},
        ],
        containers=[{"name": "c", "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}, {"containerPort": 9}]}],
    )
    assert pod_rules is not None
    assert pod_rules.host_ports == (HostPort(2, "UDP"), HostPort(80, "TCP", "10.0.0.1"))


def test_claims_of_a_pod_include_those_of_ephemeral_volumes() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "none", "emptyDir": {}},
    ]
    pod = normalize_pod(PODS.decode(wire.encode(wire.pod("p", volumes=volumes))))
    assert pod.claims == (ClaimUse("p-scratch", owned=True), ClaimUse("shared"))


_SPREAD = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}


def on_nodes(operator: str, *values: str, kind: str = "matchExpressions", preferred: bool = False) -> dict[str, Any]:
    term = {kind: [{"key": "metadata.name" if kind == "matchFields" else "a", "operator": operator, "values": values}]}
    asked = {PREFERRED: [{"weight": 1, "preference": term}]} if preferred else {REQUIRED: {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": asked}}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"topologySpreadConstraints": [{**_SPREAD, "maxSkew": 0}]}, "maxSkew: not from 1 to 2147483647: 0"),
        ({"topologySpreadConstraints": [{**_SPREAD, "minDomains": 0}]}, "minDomains: not from 1 to 2147483647: 0"),
        ({"topologySpreadConstraints": [{**_SPREAD, "whenUnsatisfiable": "Maybe"}]}, "whenUnsatisfiable: neither"),
        ({"topologySpreadConstraints": [{**_SPREAD, "nodeTaintsPolicy": "Maybe"}]}, "nodeTaintsPolicy: neither"),
        ({"affinity": {"podAffinity": {REQUIRED: [{}]}}}, "topologyKey: is empty"),
        ({"affinity": {"podAffinity": {PREFERRED: [{"weight": 101}]}}}, "weight: not from 1 to 100: 101"),
        (
            {
                "affinity": {
                    "podAntiAffinity": {
                        REQUIRED: [
                            {
                                "topologyKey": ZONE,
                                "labelSelector": {
                                    "matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]
                                },
                            }
                        ]
                    }
                }
            },
            "operator: not a label selector operator",
        ),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 70000}]}]}, "hostPort: not a port"),
        (on_nodes("Almost", "b"), "matchExpressions[0].operator: is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
        (on_nodes("Gt", "b"), "matchExpressions[0].values: not values of Gt"),
        (on_nodes("Lt", "1", "2"), "matchExpressions[0].values: not values of Lt"),
        (on_nodes("In"), "matchExpressions[0].values: not values of In"),
        (on_nodes("Exists", "b"), "matchExpressions[0].values: not values of Exists"),
        (on_nodes("Exists", kind="matchFields"), "matchFields[0].operator: is none of In, NotIn: 'Exists'"),
        (on_nodes("Almost", "b", preferred=True), "[0].preference.matchExpressions[0].operator: is none of"),
    ],
)
def test_a_pod_whose_constraints_are_impossible_is_told_of_and_waits(spec: dict[str, Any], problem: str) -> None:
    wire_pod = PODS.decode(wire.encode(wire.pod(namespace="ml", **spec)))
    with pytest.raises(InvalidObject) as caught:
        read_constraints(wire_pod)
    assert problem in str(caught.value)
    pod = normalize_pod(wire_pod)
    assert problem in pod.malformed
    cluster = Cluster().add_node("n1", amounts(cpu=8))
    cluster.add_pod(msgspec.structs.replace(pod, scheduler_name="kai-ledger"))
    (pending,) = cluster.cycle().pending
    (reason,) = pending.reasons
    assert reason.code == "Malformed"
    assert problem in str(reason)
