"""Pods that make way for others' devices: whoever has them is evicted, and nobody takes them in between."""

import pytest
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.events import payloads
from kaicore.rules.model.pod import Pod

from tests.given.cluster.devices import DRIVER, add_claim, devices, exactly, from_template, using
from tests.given.work.workloads import OWNER, Workloads


def scene(**gpus: int) -> Workloads:
    cluster = Workloads()
    devices(cluster, **gpus)
    return cluster


def running(cluster: Workloads, *pods: Pod) -> None:
    """Pods have the devices that were decided, and run."""
    cluster.full(*pods)
    for one in pods:
        for name, allocation in cluster.state.pods[one.uid].devices.items():
            results = [
                {"request": device.request, "driver": DRIVER, "pool": device.pool, "device": device.device}
                for device in allocation.devices
            ]
            status = {"allocation": {"devices": {"results": results}}}
            claim = cluster.state.constraints.devices.claims[f"default/{name}"]
            add_claim(cluster, name, owner=one if claim.owner else None, status=status)


def claims_go(cluster: Workloads, *names: str) -> None:
    for name in names:
        cluster.record(f"resourceclaim/{name}", payloads.ResourceClaimDeleted(f"uid-{name}", "default", name))


def test_device_of_a_lower_priority_is_freed_and_kept_until_its_claim_is_gone() -> None:
    cluster = scene(a1=1)
    running(cluster, from_template(cluster, name="low", priority=1, owner=OWNER))
    from_template(cluster, name="high", priority=2, owner=OWNER)
    result = cluster.cycle()
    assert cluster.evicted(result) == {"low": EvictionReason.PREEMPTED}
    assert cluster.nominated(result) == {"high": "a1"}
    from_template(cluster, name="thief", priority=1, owner=OWNER)
    cluster.go(result)
    assert not cluster.cycle().placements, "the claim of the evicted pod still has the device"
    claims_go(cluster, "low-gpu")
    assert cluster.placed(cluster.cycle()) == {"high": "a1"}


def test_as_many_are_evicted_as_devices_are_asked_for() -> None:
    cluster = scene(a1=4)
    low = [from_template(cluster, name=f"low-{number}", priority=1, owner=OWNER) for number in range(4)]
    running(cluster, *low)
    from_template(cluster, exactly(count=2), name="high", priority=2, owner=OWNER)
    result = cluster.cycle()
    assert len(cluster.evicted(result)) == 2
    cluster.go(result)
    claims_go(cluster, *(f"{eviction.name}-gpu" for eviction in result.evictions))
    assert cluster.placed(cluster.cycle()) == {"high": "a1"}


@pytest.mark.parametrize("shared", [False, True])
def test_nobody_is_evicted_whose_end_frees_no_device(shared: bool) -> None:
    cluster = scene(a1=1)
    if shared:
        add_claim(cluster, "shared")
        users = [using(cluster, "shared", name=f"low-{number}", priority=1, owner=OWNER) for number in range(2)]
        running(cluster, *users)
    else:
        result = {"request": "gpu", "driver": DRIVER, "pool": "a1", "device": "gpu-0"}
        add_claim(cluster, "foreign", status={"allocation": {"devices": {"results": [result]}}})
        cpu_only = [using(cluster, name="low", priority=1, owner=OWNER)]
        running(cluster, *cpu_only)
    from_template(cluster, name="high", priority=2, owner=OWNER)
    assert not cluster.cycle().evictions
