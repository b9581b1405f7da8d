"""Our allocation beside that of Kubernetes' own allocator, case by case."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from kaicore.kube.normalize.device import read_allocation
from kaicore.rules.devices.allocation import ClaimToServe, allocate
from kaicore.rules.devices.pools import Holdings, PoolId, PoolSlice, pool_slice, pools_of_node
from kaicore.rules.model.device import Allocation, DeviceClass, DeviceRequest
from kaicore.rules.objects.mappings import Fields

from tests.given.cluster.devices import read_claim, read_class_document, read_slice

Document = dict[str, Any]


def allocations(case: Mapping[str, Any], node: Document) -> tuple[Allocation, ...] | str:
    """Return what the claims of a case get on a node, by our rules."""
    slices = [pool_slice(read_slice(one)) for one in case["slices"]]
    classes = {one.name: one for one in map(read_class_document, case["classes"])}
    held = Holdings()
    for one in case["allocated"]:
        claim = read_claim(one)
        held.change(claim.allocation.devices if claim.allocation is not None else ())

    def all_of_pool(pool: PoolId) -> list[PoolSlice]:
        return [one for one in slices if (one.slice.driver, one.slice.pool) == pool]

    name, labels = node["metadata"]["name"], node["metadata"]["labels"]
    mine = [one for one in slices if one.slice.nodes is None or one.slice.nodes.node in ("", name)]
    claims = [read_claim(one) for one in case["claims"]]
    specs = [
        ClaimToServe(tuple(_with_class(each, classes) for each in one.requests), one.constraints) for one in claims
    ]
    return allocate(specs, pools_of_node(name, labels, mine, all_of_pool), held, node=name)


def differences(case: Mapping[str, Any], answers: list[Document]) -> Iterator[str]:
    """Yield in what we differ from the answers of Kubernetes' allocator to a case."""
    for node, answer in zip(case["nodes"], answers, strict=True):
        name = node["metadata"]["name"]
        ours = allocations(case, node)
        theirs = answer.get("allocations")
        if isinstance(ours, str) or not theirs:
            if isinstance(ours, str) != (not theirs) and not _fails_elsewhere(case, node, answer.get("error", "")):
                yield f"{name}: ours {ours}, theirs {theirs or answer.get('error') or 'nothing'}"
            continue
        expected = tuple(read_allocation(Fields("the oracle", one, "status.allocation")) for one in theirs)
        if without_zones(ours) != expected:
            yield f"{name}: ours {ours}, theirs {expected}"


def _fails_elsewhere(case: Mapping[str, Any], node: Document, error: str) -> bool:
    """Tell whether theirs failed on a device that the node cannot use: they evaluate expressions for those, too."""
    failed = re.search(r"on device ([^/]+)/([^/]+)/([^:]+): CEL runtime error", error)
    return failed is not None and any(
        device["name"] == failed[3] and device.get("nodeName", node["metadata"]["name"]) != node["metadata"]["name"]
        for one in case["slices"]
        if (one["spec"]["driver"], one["spec"]["pool"]["name"]) == (failed[1], failed[2])
        for device in one["spec"]["devices"]
    )


def without_zones(allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """Return allocations as the API server tells of them."""
    replace = msgspec.structs.replace
    return tuple(replace(one, devices=tuple(replace(device, numa=()) for device in one.devices)) for one in allocations)


def _with_class(request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> DeviceRequest:
    if request.alternatives:
        alternatives = tuple(_with_class(one, classes) for one in request.alternatives)
        return msgspec.structs.replace(request, alternatives=alternatives)
    selectors = (*classes[request.device_class].selectors, *request.selectors)
    return msgspec.structs.replace(request, selectors=selectors)
