"""The page `docs/reference/device-conformance.md`: what of dynamic resource allocation is as in Kubernetes.

Each row names the tests that show it. Rows that the recorded answers of Kubernetes' own allocator show say in how many
of them their part is asked for.
"""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

Document = dict[str, Any]

#: Cases with the answers of Kubernetes' own allocator; `python -m tests.fidelity.device_oracle --record` writes it.
RECORDED = Path(__file__).parents[2] / "tests/given/recorded/devices/answers.jsonl.gz"

_ORACLE = "tests/fidelity/test_device_conformance.py::test_allocations_are_those_of_kubernetes_own_allocator"
_CONTROLLER = "tests/integration/test_resource_claim_controller.py"
_BINDER = "tests/integration/binder/test_resource_claims.py"
_UNIT = "tests/unit/devices"
_KUBE = "tests/unit/kube/test_normalize_device.py"


@dataclass(frozen=True, slots=True)
class Row:
    """A part of dynamic resource allocation.

    Attributes:
        part: what it is called.
        answer: what kai-ledger does.
        tests: those that show it, as pytest names them.
        asks: whether a recorded case asks for it; None where the recorded answers are not what shows it.
    """

    part: str
    answer: str
    tests: tuple[str, ...]
    asks: Callable[[Document], bool] | None = None


def _devices(case: Document) -> Iterator[Document]:
    for one in case["slices"]:
        yield from one["spec"].get("devices") or ()


def _requests(case: Document) -> Iterator[Document]:
    for claim in case["claims"]:
        for request in claim["spec"]["devices"]["requests"]:
            yield from request.get("firstAvailable") or (request["exactly"],)


def _has(part: str) -> Callable[[Document], bool]:
    return lambda case: any(part in device for device in _devices(case))


def _asks(part: str, *values: Any) -> Callable[[Document], bool]:
    return lambda case: any(part in one and (not values or one[part] in values) for one in _requests(case))


def _constrains(kind: str) -> Callable[[Document], bool]:
    return lambda case: any(
        kind in one for claim in case["claims"] for one in claim["spec"]["devices"].get("constraints") or ()
    )


def _lists(case: Document) -> bool:
    return any("ints" in one for device in _devices(case) for one in device["attributes"].values())


def _prioritized(case: Document) -> bool:
    return any("firstAvailable" in one for claim in case["claims"] for one in claim["spec"]["devices"]["requests"])


def _of_several_nodes(case: Document) -> bool:
    specs = [one["spec"] for one in case["slices"]]
    return any(spec.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection"} for spec in specs)


def _generations(case: Document) -> bool:
    pools = {(one["spec"]["driver"], one["spec"]["pool"]["name"]) for one in case["slices"]}
    return len({(one["spec"]["driver"], *one["spec"]["pool"].values()) for one in case["slices"]}) > len(pools)


AS_KUBERNETES = "as Kubernetes"

ROWS = (
    Row("CEL selectors of classes and requests", AS_KUBERNETES, (_ORACLE,), _asks("selectors")),
    Row(
        "quantities, semantic versions, optional values, `cel.bind`, sets, regular expressions in them",
        AS_KUBERNETES,
        (f"{_UNIT}/test_selectors.py::test_selector_holds_for_a_gpu",),
    ),
    Row(
        "CEL functions for URLs, addresses, formats",
        "the pod waits; the reason has the expression",
        (f"{_UNIT}/test_selectors.py::test_expression_that_does_not_compile_is_told_as_such",),
    ),
    Row(
        "an expression that fails on a device which the node cannot use",
        "the device is left out; Kubernetes' allocator fails",
        (_ORACLE,),
    ),
    Row("`ExactCount`", AS_KUBERNETES, (_ORACLE,), _asks("allocationMode", "ExactCount")),
    Row("`All`", AS_KUBERNETES, (_ORACLE,), _asks("allocationMode", "All")),
    Row("`firstAvailable`", AS_KUBERNETES, (_ORACLE,), _prioritized),
    Row(
        "`firstAvailable` between nodes",
        "as Kubernetes, before all that nodes are ranked by from zones on",
        (
            f"{_UNIT}/test_comparing_nodes.py"
            "::test_node_with_an_earlier_alternative_gets_the_pod_though_another_one_is_fuller",
        ),
    ),
    Row(
        "devices close to the CPUs that the kubelet gives, partitions that are kept whole",
        "nodes are compared by it ([how](devices.md#devices-and-the-cpus-that-the-kubelet-gives)); Kubernetes does not",
        (
            f"{_UNIT}/test_comparing_nodes.py"
            "::test_node_whose_device_is_on_the_zone_of_the_cpus_gets_the_pod_and_why_says_so",
            f"{_UNIT}/test_comparing_nodes.py"
            "::test_pod_whose_own_policy_is_binding_waits_for_a_device_on_the_zone_of_its_cpus",
            f"{_UNIT}/test_comparing_nodes.py::test_partition_of_a_card_that_is_broken_up_is_taken_before_a_whole_card",
        ),
    ),
    Row("`adminAccess`", AS_KUBERNETES, (_ORACLE,), _asks("adminAccess")),
    Row("`matchAttribute`", AS_KUBERNETES, (_ORACLE,), _constrains("matchAttribute")),
    Row("`distinctAttribute`", AS_KUBERNETES, (_ORACLE,), _constrains("distinctAttribute")),
    Row("attributes that are lists", AS_KUBERNETES, (_ORACLE,), _lists),
    Row("counters of partitionable devices", AS_KUBERNETES, (_ORACLE,), _has("consumesCounters")),
    Row("consumable capacity, request policies", AS_KUBERNETES, (_ORACLE,), _has("allowMultipleAllocations")),
    Row("device taints in slices, tolerations", AS_KUBERNETES, (_ORACLE,), _has("taints")),
    Row(
        "DeviceTaintRules",
        "as Kubernetes; [who evicts](devices.md#tainted-devices)",
        (
            f"{_UNIT}/test_tainted_devices.py::test_devices_of_a_rule_are_given_to_nobody_until_the_rule_is_gone",
            f"{_UNIT}/test_tainted_devices.py::test_rule_is_read_in_every_version_and_without_a_selector_is_for_none",
            f"{_UNIT}/test_tainted_devices.py::test_no_pod_joins_others_on_a_device_that_they_are_evicted_from",
            f"{_CONTROLLER}::test_pods_with_a_device_that_a_rule_taints_are_evicted_unless_their_claim_tolerates_it",
        ),
    ),
    Row(
        "`allNodes`, `nodeSelector`, `perDeviceNodeSelection`",
        AS_KUBERNETES,
        (_ORACLE,),
        _of_several_nodes,
    ),
    Row("generations of pools", AS_KUBERNETES, (_ORACLE,), _generations),
    Row("binding conditions: the order of pools", AS_KUBERNETES, (_ORACLE,), _has("bindingConditions")),
    Row(
        "binding conditions: waiting for them",
        "the binder waits, and gives the pod back when one fails",
        (f"{_BINDER}::test_pod_waits_for_devices_to_be_ready_and_is_given_back_when_they_fail",),
    ),
    Row("`bindsToNode`", AS_KUBERNETES, (_ORACLE,), _has("bindsToNode")),
    Row(
        "claims that several pods share",
        AS_KUBERNETES,
        (f"{_UNIT}/test_allocating.py::test_pods_that_share_a_claim_share_its_devices_and_its_node",),
    ),
    Row(
        "claims from templates",
        "as Kubernetes; kube-controller-manager makes them",
        (
            f"{_UNIT}/test_allocating.py::test_pods_with_like_claims_of_their_own_are_one_class",
            f"{_CONTROLLER}::test_claim_of_a_template_is_named_in_its_pod_and_goes_with_it",
        ),
    ),
    Row(
        "extended resources (`extendedResourceName`, `deviceclass.resource.kubernetes.io/…`)",
        "as Kubernetes ([how](devices.md#extended-resources))",
        (
            f"{_UNIT}/test_extended_resources.py::test_pod_gets_devices_by_a_claim_of_its_own_or_the_plugins_resource",
            f"{_UNIT}/test_extended_resources.py::test_requests_are_those_of_kube_scheduler",
            f"{_BINDER}::test_claim_for_extended_resources_is_made_and_named_in_the_pod_before_it_is_bound",
        ),
    ),
    Row(
        "devices that several nodes can use, claims that several pods use, under several replicas and shards",
        "given once ([0460](../decisions/0460-devices-by-our-own-search.md))",
        (
            "tests/property/test_devices_once.py"
            "::test_replicas_that_decide_at_once_give_no_device_of_a_pool_of_all_nodes_twice",
        ),
    ),
    Row(
        "preemption for devices",
        "pods of lower priority make way if their claims are their own",
        (
            f"{_UNIT}/test_preempting.py::test_device_of_a_lower_priority_is_freed_and_kept_until_its_claim_is_gone",
            f"{_UNIT}/test_preempting.py::test_nobody_is_evicted_whose_end_frees_no_device",
        ),
    ),
    Row(
        "claims that are made for PodGroups from templates (`DRAWorkloadResourceClaims`, off by default up to 1.37)",
        "shared by the pods of the group, and reserved for each of them; Kubernetes reserves it for the PodGroup "
        "([0460](../decisions/0460-devices-by-our-own-search.md))",
        (
            f"{_UNIT}/test_allocating.py::test_pods_of_a_pod_group_share_the_claim_that_was_made_for_it_and_its_node",
            f"{_UNIT}/test_allocating.py::test_pod_gets_no_claim_of_a_template_that_is_another_pod_groups",
            "tests/integration/test_resource_claim_controller.py::"
            "test_claim_of_a_pod_groups_template_is_made_once_and_named_in_the_group_and_its_pods",
        ),
    ),
    Row(
        "derived attributes",
        "not read: the pod waits, and its reason names the field",
        (f"{_KUBE}::test_what_a_later_kubernetes_asks_for_is_named_by_its_field",),
    ),
    Row(
        "compatibility groups, `skipNodeOperations`",
        "the device is not used: the watcher names the field, its pool's pods wait for devices that cannot be read",
        (
            f"{_KUBE}::test_device_that_makes_no_sense_costs_only_itself",
            f"{_KUBE}::test_devices_of_a_slice_that_skips_node_operations_are_not_used_and_the_field_is_named",
        ),
    ),
)


@cache
def recorded_cases() -> tuple[Document, ...]:
    """The cases of which the answers are recorded."""
    with gzip.open(RECORDED) as lines:
        return tuple(msgspec.json.decode(line)["case"] for line in lines)


def devices() -> str:
    """The parts of dynamic resource allocation, compared with Kubernetes."""
    cases = recorded_cases()
    lines = ["| part | kai-ledger | shown by | recorded cases |", "|---|---|---|---|"]
    for row in ROWS:
        tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in row.tests)
        count = "" if row.asks is None else str(sum(map(row.asks, cases)))
        lines.append(f"| {row.part} | {row.answer} | {tests} | {count} |")
    return "\n".join(
        [
            "# Conformance of device allocation",
            "",
            "This table says which parts of dynamic resource allocation ([devices](devices.md)) are as in Kubernetes,",
            "with a test of each.",
            f"The answers of Kubernetes 1.37's allocator to {len(cases)} cases are recorded",
            "(`k8s.io/dynamic-resource-allocation/structured`): whether a node can serve the claims, and with which",
            "devices. The last column says in how many of them a part is asked for.",
            "`make devices SEEDS=20000` compares anew where Go is.",
            "",
            *lines,
            "",
        ]
    )
