"""Replay recorded decisions of the real kubelet (shared/data/kubelet) through the model, and compare everything.

    .venv/bin/python -m tests.tools.fleet.vectors ../shared/data/kubelet/*.jsonl.gz

prints agreement per aspect and the first disagreements, and ends with 1 if the agreement of any aspect is below 99.95
%.
"""

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kai_fleet.kubelet import Container, Device, Kubelet, KubeletConfig, Machine, Pod
from kai_fleet.kubelet.hints import Hints
from kai_fleet.kubelet.kubelet import ZoneMap, allocatable, available, held_by
from kai_fleet.kubelet.machine import bits, from_cpulist, members, to_cpulist

from tests.given.shared_data import shared_path

Json = dict[str, Any]


def scenarios(file: Path) -> Iterator[Json]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def build(node: Json) -> Kubelet:
    zones = range(node["zones"])
    kinds = [name for name in node["capacity"] if name == "memory" or name.startswith("hugepages-")]
    totals = dict(node["node_allocatable"])
    options = node.get("cpu_manager_options", {})
    policy_options = node.get("topology_policy_options", {})
    machine = Machine(
        zone_cpus=tuple(from_cpulist(text) for text in node["cpu_ids"]),
        zone_memory=tuple({kind: node["capacity"][kind][zone] for kind in kinds} for zone in zones),
        sockets=node["sockets"],
        threads_per_core=node["threads_per_core"],
        devices={
            resource: tuple(Device(d["id"], bits(d["numa"]), not d.get("unhealthy")) for d in devices)
            for resource, devices in node.get("devices", {}).items()
        },
        distances=tuple(tuple(row) for row in node.get("distances", [])),
    )
    config = KubeletConfig(
        topology_policy=node["topology_policy"],
        topology_scope=node["topology_scope"] or "container",
        prefer_closest=policy_options.get("prefer-closest-numa-nodes") == "true",
        static_cpus=node["cpu_manager_policy"] == "static",
        cpu_options=frozenset(name for name, value in options.items() if value == "true"),
        static_memory=node["memory_manager_policy"] == "Static",
        reserved_cpus=from_cpulist(node["reserved_cpu_ids"]),
        reserved_memory=tuple({"memory": node["reserved_memory"][zone]} for zone in zones),
        preferred_allocation=frozenset(node.get("preferred_allocation", [])),
        allocatable={**totals, "pods": 110},
    )
    return Kubelet(machine, config)


def pod_of(event: Json) -> Pod:
    pod = _pod(event, without_limits=False)
    # An empty `lim` was left out of the files as one equal to `req` was; the recorded class says which of the two it
    # is.
    return pod if pod.qos == event["qos"] else _pod(event, without_limits=True)


def _pod(event: Json, *, without_limits: bool) -> Pod:
    return Pod(
        uid=event["pod"],
        namespace="default",
        name=event["pod"],
        containers=tuple(
            Container(
                c["name"],
                c["kind"],
                c.get("req", {}),
                c.get("lim", {} if without_limits and not _has_devices(c) else c.get("req", {})),
            )
            for c in event["containers"]
        ),
        overhead=event.get("overhead", {}),
        pod_requests=event.get("pod_req", {}),
        pod_limits=event.get("pod_req", {}),
    )


def _has_devices(container: Json) -> bool:
    return any("/" in resource for resource in container.get("req", {}))


@dataclass
class Report:
    checked: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def compare(self, aspect: str, where: str, *, got: object, expected: object) -> None:
        self.checked[aspect] += 1
        if got != expected:
            self.wrong[aspect] += 1
            if len(self.examples) < 40:
                self.examples.append(f"{where}: {aspect}: got {got!r}, the kubelet had {expected!r}")

    def agreement(self, aspect: str) -> float:
        return 1 - self.wrong[aspect] / self.checked[aspect]


def replay(scenario: Json, report: Report) -> None:
    node = scenario["node"]
    kubelet = build(node)
    report.compare("allocatable", scenario["id"], got=allocatable(kubelet), expected=node["allocatable"])
    memory_of: dict[str, ZoneMap] = {}
    for index, event in enumerate(scenario["events"]):
        where = f"{scenario['id']}[{index}] {event['op']} {event['pod']}"
        kubelet.sweep()
        before = _reserved_memory(kubelet)
        if event["op"] == "admit":
            _admit(kubelet, event, report, where)
        elif event["op"] == "start":
            kubelet.containers_started(event["pod"])
        else:
            kubelet.terminated(event["pod"])
        kubelet.sweep()
        after = _reserved_memory(kubelet)
        held = memory_of.setdefault(event["pod"], {})
        for kind, row in after.items():
            kept = held.get(kind, [0] * len(row))
            held[kind] = [k + a - b for k, a, b in zip(kept, row, before[kind], strict=True)]
        if event["pod"] not in kubelet.pods:
            held.clear()
        placed = {**_placement(kubelet, event["pod"]), **held}
        report.compare("placement", where, got=_nonzero(placed), expected=_nonzero(event.get("placement", {})))
        observed = _observed(kubelet, event["pod"])
        expected = event.get("observed", event.get("placement", {}))
        report.compare("observed", where, got=_without_memory(observed), expected=_without_memory(_nonzero(expected)))
        report.compare("available", where, got=available(kubelet), expected=event["available"])
        free = {**event["available"], **event.get("free", {})}
        report.compare("free", where, got=_free(kubelet, free), expected=free)
        if "mem_state" in event:
            zones = kubelet.managers.memory.zones
            report.compare(
                "memory groups",
                where,
                got={"assignments": [z.assignments for z in zones], "cells": [list(members(z.cells)) for z in zones]},
                expected=event["mem_state"],
            )


def _admit(kubelet: Kubelet, event: Json, report: Report, where: str) -> None:
    pod = pod_of(event)
    report.compare("qos", where, got=pod.qos, expected=event["qos"])
    _check_first_hints(kubelet, pod, event, report, where)
    rejection = kubelet.admit(pod)
    report.compare("verdict", where, got=rejection is None, expected=event["admit"])
    if rejection is not None or not event["admit"]:
        reason, message = (rejection.reason, rejection.message) if rejection else (None, None)
        report.compare("reason", where, got=reason, expected=event.get("reason"))
        report.compare("message", where, got=message, expected=event.get("message"))
        return
    affinities = kubelet.affinities[pod.uid]
    for alloc in event.get("alloc", []):
        name = alloc["name"]
        affinity = affinities[name]
        mask = None if affinity.mask is None else list(members(affinity.mask))
        report.compare("affinity", f"{where}/{name}", got=mask, expected=alloc["affinity"])
        report.compare("preferred", f"{where}/{name}", got=affinity.preferred, expected=alloc.get("preferred", False))
        cpus = kubelet.managers.cpus.assigned.get(pod.uid, {}).get(name, 0)
        report.compare("cpu ids", f"{where}/{name}", got=to_cpulist(cpus), expected=alloc.get("cpu_ids", ""))
        devices = kubelet.managers.devices.assigned.get(pod.uid, {}).get(name, {})
        pools = kubelet.managers.devices.pools
        ids = {resource: ",".join(pools[resource].ids(held)) for resource, held in devices.items()}
        report.compare("device ids", f"{where}/{name}", got=ids, expected=alloc.get("devices", {}))
        blocks = kubelet.managers.memory.assigned.get(pod.uid, {}).get(name, [])
        got = [{"type": b.type, "size": b.size, "numa": list(members(b.zones))} for b in blocks]
        report.compare("memory blocks", f"{where}/{name}", got=got, expected=alloc.get("memory", []))


def _check_first_hints(kubelet: Kubelet, pod: Pod, event: Json, report: Report, where: str) -> None:
    """Hints of the whole pod, or of its first container: those that need no allocation before."""
    recorded = event.get("hints")
    if not recorded or kubelet.config.topology_policy == "none":
        return
    managers = kubelet.managers
    if kubelet.config.topology_scope == "pod":
        devices, cpu, memory = (
            managers.devices.pod_hints(pod),
            managers.cpus.pod_hints(pod),
            managers.memory.pod_hints(pod),
        )
        limits = pod.total(lambda c: c.limits)
        requests = pod.total(lambda c: c.requests)
    else:
        first = pod.containers[0]
        devices = managers.devices.container_hints(pod, first)
        cpu, memory = managers.cpus.container_hints(pod, first), managers.memory.container_hints(pod, first)
        limits, requests = dict(first.limits), dict(first.requests)
    named = dict(zip(sorted(r for r in limits if r in managers.devices.pools), devices, strict=True))
    got: dict[str, list[int] | None] = {resource: _masks(hints) for resource, hints in named.items()}
    if cpu is not None:
        got["cpu"] = _masks(cpu)
    if memory is not None:
        got.update({r: _masks(memory) for r in requests if r == "memory" or r.startswith("hugepages-")})
    expected = {r: None if m is None else sorted(m, key=abs) for r, m in recorded[0]["hints"].items()}
    report.compare("hints", where, got=got, expected=expected)


def _masks(hints: Hints | None) -> list[int] | None:
    if hints is None:
        return None
    return sorted((mask if mask in hints.preferred else -mask for mask in hints.masks), key=abs)


def _reserved_memory(kubelet: Kubelet) -> ZoneMap:
    zones = kubelet.managers.memory.zones
    kinds = {kind for zone in zones for kind in zone.allocatable}
    return {kind: [z.allocatable.get(kind, 0) - z.free.get(kind, 0) for z in zones] for kind in kinds}


def _placement(kubelet: Kubelet, uid: str) -> ZoneMap:
    managers, zones = kubelet.managers, range(kubelet.machine.zones)
    cpus = 0
    for held in managers.cpus.assigned.get(uid, {}).values():
        cpus |= held
    result = {"cpu": [(cpus & zone).bit_count() * 1000 for zone in kubelet.machine.zone_cpus]}
    for resource, pool in managers.devices.pools.items():
        devices = 0
        for container in managers.devices.assigned.get(uid, {}).values():
            devices |= container.get(resource, 0)
        result[resource] = [(devices & pool.of_zone.get(zone, 0)).bit_count() for zone in zones]
    return result


def _observed(kubelet: Kubelet, uid: str) -> ZoneMap:
    zones = kubelet.machine.zones
    result: ZoneMap = {}
    pod = kubelet.pods.get(uid)
    for held in held_by(kubelet, pod) if pod else ():
        for zone, cpus in enumerate(kubelet.machine.zone_cpus):
            result.setdefault("cpu", [0] * zones)[zone] += (held.cpus & cpus).bit_count() * 1000
        for resource, devices in held.devices.items():
            row = result.setdefault(resource, [0] * zones)
            for zone, local in kubelet.managers.devices.pools[resource].of_zone.items():
                row[zone] += (devices & local).bit_count()
    return _nonzero(result)


def _free(kubelet: Kubelet, like: ZoneMap) -> ZoneMap:
    managers, zones = kubelet.managers, range(kubelet.machine.zones)
    result: ZoneMap = {}
    for resource in like:
        if resource == "cpu":
            result[resource] = [(managers.cpus.free & zone).bit_count() * 1000 for zone in kubelet.machine.zone_cpus]
        elif resource in managers.devices.pools:
            pool = managers.devices.pools[resource]
            free = pool.healthy & ~managers.devices.in_use.get(resource, 0)
            result[resource] = [(free & pool.of_zone.get(zone, 0)).bit_count() for zone in zones]
        else:
            result[resource] = [zone.free.get(resource, 0) for zone in managers.memory.zones]
    return result


def _nonzero(amounts: ZoneMap) -> ZoneMap:
    return {resource: row for resource, row in amounts.items() if any(row)}


def _without_memory(amounts: ZoneMap) -> ZoneMap:
    return {r: row for r, row in amounts.items() if r != "memory" and not r.startswith("hugepages-")}


def main(files: list[str]) -> int:
    report = Report()
    for file in files:
        for scenario in scenarios(Path(file)):
            replay(scenario, report)
    for aspect, checked in sorted(report.checked.items()):
        print(f"{aspect:16} {checked - report.wrong[aspect]:7} of {checked:7}  {report.agreement(aspect):.4%}")
    for example in report.examples:
        print(example)
    return 0 if all(report.agreement(aspect) >= 0.9995 for aspect in report.checked) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [str(f) for f in sorted(shared_path("data/kubelet").glob("*.jsonl.gz"))]))
