"""Taints of devices, by their drivers and by DeviceTaintRules: none is given, and none that evicts is shared."""

import pytest
from kaicore.errors import InvalidObject
from kaicore.kube.normalize.device import normalize_taint_rule
from kaicore.kube.wire.resources import TAINT_RULES
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.node import NoMatchingDevices, ResourceClaimNotReady
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.devices import (
    DRIVER,
    add_claim,
    add_slice,
    add_taint_rule,
    devices,
    exactly,
    from_template,
    gpu,
    read_taint_rule,
    slice_document,
    using,
)
from tests.given.cluster.factory import Cluster


def placed(cluster: Cluster) -> dict[str, str]:
    return {one.name: one.node for one in cluster.cycle().placements}


def test_devices_of_a_rule_are_given_to_nobody_until_the_rule_is_gone() -> None:
    cluster = devices(a1=1, b1=1)
    add_taint_rule(cluster, deviceSelector={"driver": DRIVER, "pool": "a1"})
    from_template(cluster, name="first")
    from_template(cluster, name="second")
    assert placed(cluster) == {"first": "b1"}
    assert encode_state(decode_state(encode_state(cluster.state))) == encode_state(cluster.state)
    cluster.record("devicetaintrule/broken", payloads.DeviceTaintRuleDeleted("uid-broken", "broken"))
    assert placed(cluster) == {"second": "a1"}


def test_rule_is_for_slices_that_come_later_and_for_no_device_that_tolerates_it() -> None:
    cluster = devices(a1=0)
    add_taint_rule(cluster, deviceSelector={"device": "gpu-0"}, taint={"effect": "NoExecute"})
    add_slice(cluster, slice_document("a1", gpu("gpu-0")))
    from_template(cluster, name="plain")
    tolerant = exactly(tolerations=[{"key": "example.com/broken", "operator": "Exists"}])
    from_template(cluster, tolerant, name="tolerant")
    result = cluster.cycle()
    assert [one.name for one in result.placements] == ["tolerant"]
    (pending,) = result.pending
    (reason,) = pending.reasons
    assert isinstance(reason, NoMatchingDevices)
    assert "tainted: gpu-0 (example.com/broken:NoExecute)" in str(reason)


def test_no_pod_joins_others_on_a_device_that_they_are_evicted_from() -> None:
    cluster = devices(a1=1)
    result = {"request": "gpu", "driver": DRIVER, "pool": "a1", "device": "gpu-0"}
    add_claim(cluster, "shared", status={"allocation": {"devices": {"results": [result]}}})
    add_taint_rule(cluster, deviceSelector={"driver": DRIVER}, taint={"effect": "NoExecute"})
    using(cluster, "shared", name="joining")
    (pending,) = cluster.cycle().pending
    (reason,) = pending.reasons
    assert isinstance(reason, ResourceClaimNotReady)
    assert "has device gpu-0 with taint example.com/broken:NoExecute" in str(reason)
    tolerations = [{"operator": "Exists", "effect": "NoExecute"}]
    add_claim(
        cluster, "shared", status={"allocation": {"devices": {"results": [{**result, "tolerations": tolerations}]}}}
    )
    assert placed(cluster) == {"joining": "a1"}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
def test_rule_is_read_in_every_version_and_without_a_selector_is_for_none(version: str) -> None:
    assert read_taint_rule(version=version).is_for(DRIVER, "a1", "gpu-0")
    assert not read_taint_rule(version=version, deviceSelector=None).is_for(DRIVER, "a1", "gpu-0")


def test_rule_that_selects_by_expression_is_for_all_that_it_may_be_for_and_says_so() -> None:
    old = b"""{"metadata": {"name": "old"}, "spec": {"deviceSelector": {"pool": "a1", "deviceClassName": "gpu"},
        "taint": {"key": "x", "effect": "NoSchedule"}}}"""
    lost: list[InvalidObject] = []
    rule = normalize_taint_rule(TAINT_RULES.at("v1alpha3").decode(old), lost.append)
    assert rule.is_for(DRIVER, "a1", "any")
    assert not rule.is_for(DRIVER, "b1", "any")
    assert "spec.deviceSelector" in str(lost[0])
    with pytest.raises(InvalidObject, match=r"spec\.taint\.key"):
        normalize_taint_rule(TAINT_RULES.at("v1").decode(b'{"metadata": {"name": "keyless"}}'))
