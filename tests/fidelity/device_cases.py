"""Cases of dynamic resource allocation, drawn at random: slices, classes, claims that have devices, claims that ask.

Objects are as Kubernetes writes them, so that its own allocator (`tools/dra_oracle`) can read them too.
"""

from random import Random
from typing import Any

Document = dict[str, Any]

DRIVERS = ("gpu.example.com", "nic.example.com")
NODES = ("n1", "n2")
NUMA = "resource.kubernetes.io/numaNode"
MODELS = ("a100", "h100")

SELECTORS = (
    'device.driver == "gpu.example.com"',
    'device.attributes["gpu.example.com"].model == "h100"',
    'device.attributes["gpu.example.com"].?model.orValue("none") != "a100"',
    'has(device.attributes["nic.example.com"].index) && device.attributes["nic.example.com"].index < 2',
    '"model" in device.attributes["gpu.example.com"]',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0',
    'device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.4.9"))',
    'cel.bind(a, device.attributes["gpu.example.com"], a.index in [0, 1, 2])',
    'device.attributes["resource.kubernetes.io"].?numaNode.hasValue()',
    "device.allowMultipleAllocations",
    'device.attributes["gpu.example.com"].missing == 1',
    'device.attributes["gpu.example.com"].model.matches("^[ah]1")',
    'sets.contains(["h100", "b200"], [device.attributes["gpu.example.com"].model])',
)


def case(seed: int) -> Document:
    return _Case(Random(seed)).document()


class _Case:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._devices: list[tuple[str, str, Document]] = []

    def document(self) -> Document:
        random = self._random
        slices: list[Document] = []
        for node in NODES:
            for driver in DRIVERS[: random.choice((1, 1, 2))]:
                slices += self._pool(node, driver)
        if random.random() < 0.25:
            slices += self._network_pool()
        classes = [
            {"metadata": {"name": "any"}, "spec": {}},
            {"metadata": {"name": "gpu"}, "spec": {"selectors": [_cel(SELECTORS[0])]}},
            {"metadata": {"name": "picky"}, "spec": {"selectors": [_cel(random.choice(SELECTORS))]}},
        ]
        nodes = [
            {
                "metadata": {
                    "name": name,
                    "labels": {"rack": "r1" if name == "n1" else "r2", "kubernetes.io/hostname": name},
                }
            }
            for name in NODES
        ]
        return {
            "nodes": nodes,
            "slices": slices,
            "classes": classes,
            "allocated": self._allocated(),
            "claims": [self._claim(f"c{number}") for number in range(random.choice((1, 1, 1, 2)))],
        }

    # Slices.

    def _pool(self, node: str, driver: str) -> list[Document]:
        random = self._random
        count = random.choice((0, 1, 2, 4, 6))
        per_device = random.random() < 0.1
        partitioned = random.random() < 0.3
        devices = [self._device(driver, f"d{number}", partitioned=partitioned) for number in range(count)]
        where: Document = {"nodeName": node}
        if per_device:
            where = {"perDeviceNodeSelection": True}
            for device in devices:
                device.update(random.choice(({"nodeName": node}, {"allNodes": True}, {"nodeName": "n2"})))
        parts = [devices[: count // 2], devices[count // 2 :]] if count > 2 and random.random() < 0.4 else [devices]
        total = len(parts) + partitioned
        generation = random.choice((1, 1, 2))
        slices = [
            _slice(
                f"{node}-{driver}-{number}",
                driver,
                node,
                generation=generation,
                count=total,
                spec={**where, "devices": part},
            )
            for number, part in enumerate(parts)
        ]
        if partitioned:
            counters = {name: {"value": str(amount)} for name, amount in (("memory", 80), ("slots", 7))}
            spec = {
                **({"nodeName": node} if not per_device else where),
                "sharedCounters": [{"name": "card", "counters": counters}],
            }
            if per_device:
                spec = {"allNodes": True, "sharedCounters": spec["sharedCounters"]}
            slices.append(
                _slice(f"{node}-{driver}-counters", driver, node, generation=generation, count=total, spec=spec)
            )
        if random.random() < 0.08 and len(slices) > 1:
            slices.pop()
        if random.random() < 0.1:
            old = [self._device(driver, "old", partitioned=False)]
            slices.append(
                _slice(
                    f"{node}-{driver}-old",
                    driver,
                    node,
                    generation=generation - 1,
                    count=1,
                    spec={**where, "devices": old},
                )
            )
            if per_device:
                old[0]["nodeName"] = node
        self._devices += [(driver, node, device) for device in devices]
        return slices

    def _network_pool(self) -> list[Document]:
        driver, random = DRIVERS[0], self._random
        devices = [self._device(driver, f"far{number}", partitioned=False) for number in range(2)]
        term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}
        where: Document = random.choice(({"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": [term]}}))
        self._devices += [(driver, "far", device) for device in devices]
        return [_slice("far", driver, "far", generation=1, count=1, spec={**where, "devices": devices})]

    def _device(self, driver: str, name: str, *, partitioned: bool) -> Document:
        random = self._random
        attributes: Document = {"index": {"int": int(name[-1]) if name[-1].isdigit() else 9}}
        if driver == DRIVERS[0]:
            attributes["model"] = {"string": random.choice(MODELS)}
            attributes["version"] = {"version": random.choice(("1.4.0", "1.5.0", "2.0.0-rc.1"))}
        if random.random() < 0.7:
            attributes[NUMA] = {"ints": [0, 1]} if random.random() < 0.2 else {"int": random.choice((0, 1))}
        device: Document = {"name": name, "attributes": attributes}
        memory: Document = {"value": random.choice(("40Gi", "80Gi"))}
        if random.random() < 0.25:
            device["allowMultipleAllocations"] = True
            memory["requestPolicy"] = random.choice(
                (
                    {"default": "10Gi", "validValues": ["10Gi", "20Gi", "40Gi"]},
                    {"default": "1Gi", "validRange": {"min": "1Gi", "max": "64Gi", "step": "1Gi"}},
                    {"default": "5Gi", "validRange": {"min": "5Gi"}},
                )
            )
        device["capacity"] = {"memory": memory}
        if partitioned and random.random() < 0.8:
            use = random.choice((10, 20, 40))
            counters = {"memory": {"value": str(use)}, "slots": {"value": str(max(use // 10, 1))}}
            device["consumesCounters"] = [{"counterSet": "card", "counters": counters}]
        if random.random() < 0.15:
            effect = random.choice(("NoSchedule", "NoExecute", "None"))
            device["taints"] = [{"key": "example.com/broken", "value": "yes", "effect": effect}]
        if random.random() < 0.08:
            device |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}
        if random.random() < 0.08:
            device["bindsToNode"] = True
        return device

    # Claims.

    def _allocated(self) -> list[Document]:
        random = self._random
        claims = []
        for number, (driver, pool, device) in enumerate(self._devices):
            if random.random() > 0.25:
                continue
            result: Document = {"request": "r", "driver": driver, "pool": pool, "device": device["name"]}
            if device.get("allowMultipleAllocations"):
                result |= {"shareID": f"00000000-0000-4000-8000-{number:012}", "consumedCapacity": {"memory": "10Gi"}}
            elif random.random() < 0.1:
                result["adminAccess"] = True
            claim = _claim(f"held{number}", [{"name": "r", "exactly": {"deviceClassName": "any"}}])
            claims.append({**claim, "status": {"allocation": {"devices": {"results": [result]}}}})
        return claims

    def _claim(self, name: str) -> Document:
        random = self._random
        requests: list[Document] = []
        for number in range(random.choice((1, 1, 2))):
            if random.random() < 0.2:
                subs = [{"name": f"s{index}", **self._exact(sub=True)} for index in range(random.choice((1, 2, 3)))]
                requests.append({"name": f"r{number}", "firstAvailable": subs})
            else:
                requests.append({"name": f"r{number}", "exactly": self._exact()})
        spec: Document = {"requests": requests}
        if random.random() < 0.3:
            kind = random.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
            attribute = random.choice((NUMA, "gpu.example.com/model", "gpu.example.com/index"))
            about = random.choice(([], [], ["r0"]))
            spec["constraints"] = [{kind: attribute, **({"requests": about} if about else {})}]
        return _claim(name, **spec)

    def _exact(self, *, sub: bool = False) -> Document:
        random = self._random
        exact: Document = {"deviceClassName": random.choice(("any", "gpu", "gpu", "picky"))}
        exact["allocationMode"] = random.choice(("ExactCount",) * 6 + ("All",))
        if exact["allocationMode"] == "ExactCount":
            exact["count"] = random.choice((1, 1, 1, 2, 3, 4))
        if random.random() < 0.4:
            exact["selectors"] = [_cel(random.choice(SELECTORS))]
        if random.random() < 0.15:
            exact["tolerations"] = [
                random.choice(({"operator": "Exists"}, {"key": "example.com/broken", "value": "yes"}))
            ]
        if random.random() < 0.3:
            exact["capacity"] = {"requests": {"memory": random.choice(("5Gi", "15Gi", "30Gi", "70Gi"))}}
        if not sub and random.random() < 0.07:
            exact["adminAccess"] = True
        return exact


def _cel(expression: str) -> Document:
    return {"cel": {"expression": expression}}


def _slice(name: str, driver: str, pool: str, *, generation: int, count: int, spec: Document) -> Document:
    part = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"driver": driver, "pool": part, **spec},
    }


def _claim(name: str, requests: list[Document], **devices: Any) -> Document:
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": requests, **devices}},
    }
