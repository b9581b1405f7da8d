"""Pods' requests and holdings, worked out from events and objects as plain JSON."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

#: Units of Kubernetes' quantities, for the few that the load uses.
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1000, "M": 10**6, "G": 10**9}


def zones_of(placement: Json | None) -> dict[tuple[str, str], int]:
    amounts: dict[tuple[str, str], int] = defaultdict(int)
    for container in (placement or {}).get("containers", ()):
        for zone in container.get("zones", ()):
            for resource, amount in zone.get("amount", {}).items():
                if resource not in container.get("uncertain", ()):
                    amounts[zone["zone"], resource] += amount
    return dict(amounts)


def requests_of(containers: Sequence[Json]) -> dict[str, int]:
    """A pod's request, by its events: all that run long, or the largest that runs before them."""
    total: dict[str, int] = defaultdict(int)
    most: dict[str, int] = defaultdict(int)
    for container in containers:
        long = container.get("kind") != "init"
        for resource, amount in container.get("requests", {}).items():
            if long:
                total[resource] += amount
            else:
                most[resource] = max(most[resource], amount)
    return {resource: max(total[resource], most[resource]) for resource in {**total, **most}}


def requested(spec: Json) -> dict[str, int]:
    """The same of a pod's spec."""
    total: dict[str, int] = defaultdict(int)
    for container in spec["containers"] + [
        one for one in spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"
    ]:
        for resource, quantity in container.get("resources", {}).get("requests", {}).items():
            total[resource] += amount(resource, quantity)
    for container in spec.get("initContainers", ()):
        for resource, quantity in container.get("resources", {}).get("requests", {}).items():
            total[resource] = max(total[resource], amount(resource, quantity))
    return dict(total)


def amount(resource: str, quantity: str) -> int:
    """Millicores of CPU, bytes of memory, counts of the rest."""
    for unit, factor in _UNITS.items():
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    if resource != "cpu":
        return int(quantity)
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else int(quantity) * 1000
