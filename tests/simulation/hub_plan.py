"""Plans of two clusters under one hub: dispatches come, clusters are drained and lost, and all else fails too."""

import random

import msgspec

from tests.simulation.plan import (
    LIMITS,
    ROLES,
    SHARES_EACH,
    Arrival,
    Fault,
    Plan,
    drawn_fault,
    with_readers,
    with_shares,
)
from tests.simulation.services import CLUSTER

#: The clusters, and what their processes' names end in.
_CLUSTERS = ((CLUSTER, ""), ("c2", "-c2"))


#: One plan in so many has readers, and dispatches that come over HTTP.
_READERS_EACH = 2


def hub_plan_of(seed: int, *, seconds: float = 8.0, plant: str = "") -> Plan:
    chance = random.Random(f"hub/{seed}")
    faults = [_fault(chance, seconds) for _ in range(chance.randint(1, max(4, round(seconds))))]
    plan = Plan(
        seed,
        seconds,
        tuple(sorted(_arrivals(chance, seconds), key=lambda one: one.at)),
        tuple(sorted(faults, key=lambda one: one.at)),
        lag=chance.random() < 0.2,
        binders=chance.choice((1, 1, 2)),
        skew_s=chance.choice((0.0, 0.5, 30.0)),
        plant=plant,
        clusters=len(_CLUSTERS),
    )
    if seed // _READERS_EACH % SHARES_EACH == 0:
        plan = with_shares(plan)
    return with_readers(plan) if seed % _READERS_EACH == 0 else plan


def _arrivals(chance: random.Random, seconds: float) -> list[Arrival]:
    arrivals, at, number = [], 0.5, 0
    while at < seconds:
        number += 1
        queue = chance.choice(tuple(LIMITS))
        kind = chance.choice(("dispatch", "dispatch", "dispatch", "pod"))
        one = Arrival(
            round(at, 3),
            kind,
            f"{kind}{number}",
            pods=1 if kind == "pod" else chance.randint(1, 3),
            cpu=chance.choice((1, 2, 3, 5)),
            gpu=chance.choice((0, 0, 1)),
            run_s=round(chance.uniform(0.3, 4.0), 2),
            queue=queue,
        )
        arrivals.append(one)
        at += chance.uniform(0.2, 1.5)
    if chance.random() < 0.3:
        cluster, begin = chance.choice(_CLUSTERS)[0], chance.uniform(0.5, seconds)
        arrivals.append(Arrival(round(begin, 3), "drain", cluster))
        arrivals.append(Arrival(round(begin + chance.uniform(0.5, 5), 3), "resume", cluster))
    return arrivals


def _fault(chance: random.Random, seconds: float) -> Fault:
    """A fault of the hub, of a cluster as a whole, or of anything in one."""
    cluster, suffix = chance.choice(_CLUSTERS)
    at = round(chance.uniform(0.05, seconds), 3)
    draw = chance.random()
    if draw < 0.25:
        return Fault(at, "cluster-lost", cluster, seconds=round(chance.uniform(0.5, 7.0), 3))
    if draw < 0.45:
        kind, target = chance.choice(("crash", "pause", "double")), f"hub-{chance.randint(0, 1)}"
        return Fault(at, kind, target, seconds=round(chance.uniform(0.2, 5.0), 3), count=chance.randint(1, 120))
    fault = drawn_fault(chance, seconds)
    if fault.target in ROLES and not fault.target.startswith("relay"):
        server = f"api{suffix}" if fault.server == "api" else fault.server
        fault = msgspec.structs.replace(fault, target=f"{fault.target}{suffix}", server=server)
    return fault
