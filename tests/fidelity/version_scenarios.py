"""Nodes and pods that kubelets of several versions are asked about, made up from a seed.

What differs between versions is among them: pods with resources of their own, memory of several zones, CPUs spread over
zones, and devices beside all of these.
"""

import random
from typing import Any

GI = 2**30
GPU = "nvidia.com/gpu"

Document = dict[str, Any]

_FIRST_WITH_EVERY_KIND_OF_POD = 29


def scenario(seed: int, minor: int = 36) -> Document:
    """Return a node with what happens on it; the same for the same seed, as far as the version knows all of it.

    Args:
        seed: of all that is made up.
        minor: of the kubelet that is to be asked. Before 1.36 there is no PodLevelResourceManagers; in its place 1.32
            and 1.33 have PodLevelResources on. Those that do not know it get such pods from newer API servers, but for
            1.28 and before: no API server that knows such pods supports these kubelets. Nor do they have sidecars
            (`SidecarContainers` is off by default before 1.29).
    """
    document = _scenario(seed)
    if minor < 36 and document["node"]["feature_gates"]:
        document["node"]["feature_gates"] = {"PodLevelResources": True} if minor in (32, 33) else {}
    if minor < _FIRST_WITH_EVERY_KIND_OF_POD:
        events = document["events"]
        by_themselves = {event["pod"] for event in events if "pod_req" in event}
        document["events"] = [event for event in events if event["pod"] not in by_themselves]
        for container in (one for event in document["events"] for one in event.get("containers", ())):
            container["kind"] = container["kind"].replace("sidecar", "init")
    return document


def _scenario(seed: int) -> Document:
    rng = random.Random(f"kubelet versions {seed}")
    zones = rng.choice((2, 2, 2, 4))
    cpus, memory = rng.choice((8, 12)) * 1000, 16 * GI
    reserved = rng.choice((1, 2))
    gpus = rng.choice((0, 2, 4))
    capacity = {"cpu": [cpus] * zones, "memory": [memory] * zones}
    allocatable = {
        "cpu": [cpus - reserved * 1000, *[cpus] * (zones - 1)],
        "memory": [memory - GI, *[memory] * (zones - 1)],
    }
    devices = {}
    if gpus:
        devices = {GPU: [{"id": f"g{zone}-{one}", "numa": [zone]} for zone in range(zones) for one in range(gpus)]}
        allocatable[GPU] = [gpus] * zones
    node = {
        "zones": zones,
        "sockets": rng.choice((1, 2)) if zones == 4 else zones,
        "threads_per_core": rng.choice((1, 2)),
        "reserved_cpu_ids": "0" if reserved == 1 else "0-1",
        "reserved_memory": [GI, *[0] * (zones - 1)],
        "topology_policy": rng.choice(("restricted", "restricted", "single-numa-node", "best-effort", "none")),
        "topology_scope": rng.choice(("container", "pod")),
        "cpu_manager_options": _options(rng),
        "feature_gates": {"PodLevelResourceManagers": True} if rng.random() < 0.3 else {},
        "capacity": capacity,
        "allocatable": allocatable,
        "node_allocatable": {name: sum(amounts) for name, amounts in allocatable.items()},
        "devices": devices,
    }
    return {
        "id": f"versions-{seed:04}",
        "tags": [],
        "node": node,
        "initial_available": allocatable,
        "events": _events(rng, zones, cpus // 1000, gpus),
    }


def _options(rng: random.Random) -> dict[str, str]:
    spread = "distribute-cpus-across-numa"
    chosen = rng.choice(((), (), (spread,), (spread, "full-pcpus-only"), ("full-pcpus-only",)))
    return dict.fromkeys(chosen, "true")


def _events(rng: random.Random, zones: int, cpus: int, gpus: int) -> list[Document]:
    events: list[Document] = []
    there: list[str] = []
    for place in range(rng.randint(6, 11)):
        if there and rng.random() < 0.25:
            events.append({"op": "remove", "pod": there.pop(rng.randrange(len(there)))})
            continue
        pod = _pod(rng, f"p{place}", zones, cpus, gpus)
        events.append(pod)
        there.append(pod["pod"])
        if any(item["kind"] == "init" for item in pod["containers"]):
            events.append({"op": "start", "pod": pod["pod"]})
    return events


def _pod(rng: random.Random, name: str, zones: int, cpus: int, gpus: int) -> Document:
    own = rng.random() < 0.3
    kinds = ["app"] * rng.choice((1, 1, 2))
    if not own and rng.random() < 0.2:
        kinds.insert(0, rng.choice(("init", "sidecar")))
    containers: list[Document] = []
    for number, kind in enumerate(kinds):
        asked = {
            "cpu": rng.choice((1, 2, 2, 4, 6, cpus, cpus + 2)) * 1000,
            "memory": rng.choice((1, 2, 4, 10, 20)) * GI,
        }
        if gpus and rng.random() < 0.4:
            asked[GPU] = rng.choice((1, 1, 2, gpus, gpus + 1))
        containers.append({"name": f"c{number}", "kind": kind, "req": asked})
    event: Document = {"op": "admit", "pod": name, "qos": "Guaranteed", "containers": containers}
    if own:
        if rng.random() < 0.5:
            containers.append({"name": "helper", "kind": "app"})
        more = rng.choice((0, 1, 2))
        total = {key: sum(item.get("req", {}).get(key, 0) for item in containers) for key in ("cpu", "memory")}
        event["pod_req"] = {"cpu": total["cpu"] + more * 1000, "memory": total["memory"] + more * GI}
    return event
