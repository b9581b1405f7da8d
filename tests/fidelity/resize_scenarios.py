"""A pod with exclusive CPUs that is resized in place, twice, on a kubelet that is restarted after it."""

from tests.fidelity.vectors import Record

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
_GIB = 2**30
_ZONE_CPU, _ZONE_MEMORY = 16_000, 32 * _GIB


def resize_scenarios() -> list[Record]:
    """Return a scenario a policy: 4 CPUs, then 6, then 8, and after that a restart."""
    return [_scenario(policy) for policy in POLICIES]


def _scenario(policy: str) -> Record:
    allocatable = {"cpu": [_ZONE_CPU - 2000, _ZONE_CPU], "memory": [_ZONE_MEMORY - _GIB, _ZONE_MEMORY]}
    events = [
        {"op": "admit", "pod": "p", "qos": "Guaranteed", "containers": _containers(4)},
        {"op": "resize", "pod": "p", "qos": "Guaranteed", "containers": _containers(6)},
        {"op": "resize", "pod": "p", "qos": "Guaranteed", "containers": _containers(8)},
        {"op": "restart", "pod": "p", "qos": "Guaranteed"},
    ]
    node = {
        "zones": 2,
        "sockets": 2,
        "threads_per_core": 2,
        "reserved_cpu_ids": "0-1",
        "reserved_memory": [_GIB, 0],
        "topology_policy": policy,
        "topology_scope": "container",
        "cpu_manager_options": {},
        "feature_gates": {"InPlacePodVerticalScalingExclusiveCPUs": True},
        "capacity": {"cpu": [_ZONE_CPU] * 2, "memory": [_ZONE_MEMORY] * 2},
        "allocatable": allocatable,
        "node_allocatable": {name: sum(amounts) for name, amounts in allocatable.items()},
        "devices": {},
    }
    return {
        "id": f"resize-{policy}",
        "tags": [],
        "node": node,
        "initial_available": allocatable,
        "events": events,
    }


def _containers(cpus: int) -> list[Record]:
    return [{"name": "c", "kind": "app", "req": {"cpu": cpus * 1000, "memory": 4 * _GIB}}]
