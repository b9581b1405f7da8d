"""The plan of a run: arrivals of work, and faults, with their times. A plan is data, and can be shrunk."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec

#: Nodes of the simulated cluster; the first two are in one rack, the third is in another.
NODES = ("single-0", "single-1", "restricted-0")

#: Processes that are killed, paused and misled.
ROLES = ("scheduler-0", "scheduler-1", "binder-0", "watcher-0", "relay-0", "ingest-0")

#: Topologies that groups name which the webhook judges; the first is always there.
TOPOLOGIES = ("dc", "late")

#: GPUs of each queue at most. Any single workload fits.
LIMITS = {"alpha": 8, "beta": 4}

_SERVERS = ("log", "bus", "api")

#: Links that are used.
_LINKS = (
    *((role, server) for role in ROLES for server in ("log", "bus") if (role, server) != ("watcher-0", "bus")),
    ("watcher-0", "api"),
    ("binder-0", "api"),
    ("binder-0", "api"),
)

#: Those who only read, and their links and those of who asks them; one plan in so many has them.
READING_ROLES = ("projector-0", "webhook-0", "api-0")
_READING_LINKS = (*((role, "log") for role in READING_ROLES), ("reader-0", "kai-api"), ("api", "webhook"))
_HUB_LINKS = (("author-0", "hub-0"), ("author-0", "hub-1"))
_READERS_EACH = 8
#: One plan in so many has shares of GPUs, and the work that asks for them.
SHARES_EACH = 2
_SHARING = frozenset({"pod", "gang", "dispatch"})

GANG_GRACE_S = 6.0


class Arrival(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that users or the control plane do.

    Attributes:
        at: seconds since the beginning.
        kind: `pod`, `job`, `gang` come; `delete`, `evict` a pod, `delete-job`; `cordon`, `uncordon` a node; `lose` a
            reservation pod, which somebody deletes;
            `dispatch` is submitted to the hub; `drain`, `resume` a cluster; `topology`, `no-topology` and `judged`,
            a group, are written by an author with objects that a webhook judges.
        name: of what comes or goes.
        pods: how many.
        cpu: cores of each.
        gpu: GPUs of each.
        run_s: how long each runs.
        queue: the queue.
        priority: name of the priority class; empty for none.
        rack: whether the gang wants one rack.
        staged: whether pods have an init container and a sidecar.
        topology: that a judged group names.
        milli: thousandths of a GPU that each pod asks for, instead of whole ones.
        mib: MiB of a GPU's memory, likewise.
        devices: of how many GPUs.
    """

    at: float
    kind: str
    name: str
    pods: int = 1
    cpu: int = 1
    gpu: int = 0
    run_s: float = 1.0
    queue: str = "alpha"
    priority: str = ""
    rack: bool = False
    staged: bool = False
    topology: str = ""
    milli: int = 0
    mib: int = 0
    devices: int = 1


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that goes wrong; `docs/explanation/simulation.md` has all kinds.

    Attributes:
        at: seconds since the beginning.
        kind: what.
        target: the process, node or server that it happens to.
        server: the other end of the link.
        seconds: for how long.
        amount: a probability, or seconds.
        count: at which step, or which call.
    """

    at: float
    kind: str
    target: str = ""
    server: str = ""
    seconds: float = 0.0
    amount: float = 0.0
    count: int = 0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run.

    Attributes:
        seed: of everything that the plan does not say.
        seconds: how long things come and fail; then everything is healed.
        lag: whether kubelets are ahead of the API, as real ones are.
        binders: how many binders run at a time.
        shared: whether the two schedulers share the groups; otherwise one decides and the other one stands by.
        side_writes: whether binders write annotations and conditions.
        skew_s: how far the processes' clocks are apart at most.
        clusters: how many clusters there are; more than one have a hub.
        readers: whether projector, webhook and API run, and clients that ask them.
        shares: whether GPUs are shared.
        plant: a fault of the code that is planted, for tests of the simulation.
    """

    seed: int
    seconds: float
    arrivals: tuple[Arrival, ...] = ()
    faults: tuple[Fault, ...] = ()
    lag: bool = False
    binders: int = 1
    shared: bool = False
    side_writes: bool = False
    skew_s: float = 0.0
    plant: str = ""
    clusters: int = 1
    readers: bool = False
    shares: bool = False


def plan_of(seed: int, *, seconds: float = 8.0, plant: str = "") -> Plan:
    chance = random.Random(f"plan/{seed}")
    arrivals = _arrivals(chance, seconds)
    faults = sorted(
        (drawn_fault(chance, seconds) for _ in range(_number_of_faults(chance, seconds))), key=lambda one: one.at
    )
    plan = Plan(
        seed,
        seconds,
        tuple(arrivals),
        tuple(faults),
        lag=chance.random() < 0.3,
        binders=chance.choice((1, 1, 2)),
        shared=chance.random() < 0.4,
        side_writes=chance.random() < 0.25,
        skew_s=chance.choice((0.0, 0.0, 0.5, 30.0)),
        plant=plant,
    )
    if seed % SHARES_EACH == 1:
        plan = with_shares(plan)
    return with_readers(plan) if seed % _READERS_EACH == 0 else plan


def with_shares(plan: Plan) -> Plan:
    """Have half of the pods, gangs and dispatches ask for shares of GPUs, and reservation pods deleted.

    All else stays as it is.
    """
    chance = random.Random(f"shares/{plan.seed}")
    arrivals = [_shared(chance, one) if one.kind in _SHARING and not one.staged else one for one in plan.arrivals]
    while chance.random() < 0.3:
        arrivals.append(Arrival(round(chance.uniform(1.0, plan.seconds), 3), "lose", chance.choice(NODES)))
    arrivals.sort(key=lambda one: one.at)
    return msgspec.structs.replace(plan, arrivals=tuple(arrivals), shares=True)


def _shared(chance: random.Random, one: Arrival) -> Arrival:
    drawn, milli, mib = chance.random(), chance.choice((100, 250, 333, 500, 700)), chance.choice((5_000, 20_000))
    devices = 1 + (chance.random() < 0.15)
    if drawn > 0.6:
        return one
    share = {"milli": milli} if drawn < 0.45 else {"mib": mib}
    # The hub counts memory of a GPU as the whole one, and no dispatch may be beyond its queue's limit.
    if one.kind == "dispatch" and one.pods * devices > min(LIMITS.values()):
        devices = 1
    return msgspec.structs.replace(one, gpu=0, cpu=min(one.cpu, 3), devices=devices, **share)


def with_readers(plan: Plan) -> Plan:
    """Have readers run as well, asked and failing; everything else stays as it is."""
    chance = random.Random(f"readers/{plan.seed}")
    arrivals = [
        Arrival(round(chance.uniform(0.3, plan.seconds), 3), "judged", f"judged{number}", topology=topology)
        for number, topology in enumerate(TOPOLOGIES * 3)
    ]
    begin = chance.uniform(0.3, plan.seconds)
    arrivals.append(Arrival(round(begin, 3), "topology", TOPOLOGIES[-1]))
    if chance.random() < 0.5:
        arrivals.append(Arrival(round(begin + chance.uniform(0.1, 4.0), 3), "no-topology", TOPOLOGIES[-1]))
    links = _READING_LINKS + (_HUB_LINKS if plan.clusters > 1 else ())
    faults = [
        _reading_fault(chance, plan.seconds, links) for _ in range(chance.randint(1, round(plan.seconds / 2) + 2))
    ]
    return msgspec.structs.replace(
        plan,
        arrivals=tuple(sorted((*plan.arrivals, *arrivals), key=lambda one: one.at)),
        faults=tuple(sorted((*plan.faults, *faults), key=lambda one: one.at)),
        readers=True,
    )


def _reading_fault(chance: random.Random, seconds: float, links: Sequence[tuple[str, str]]) -> Fault:
    at = round(chance.uniform(0.05, seconds), 3)
    lasting = round(chance.choice((0.3, 1.0, 3.0)) * chance.uniform(0.5, 1.0), 3)
    role, (target, server) = chance.choice(READING_ROLES), chance.choice(links)
    match chance.choice(("crash", "crash", "crash", "pause", "double", "cut", "cut", "twice", "slow", "partition")):
        case "crash":
            return Fault(at, "crash", role, seconds=lasting / 3, count=chance.randint(1, 120))
        case "pause":
            return Fault(at, "pause", role, seconds=lasting)
        case "double":
            return Fault(at, "double", READING_ROLES[0], seconds=lasting)
        case "partition":
            return Fault(at, "partition", target, server, seconds=lasting)
        case kind:
            most = chance.choice((0.1, 0.5, 1.0)) if kind != "slow" else chance.choice((0.05, 0.5))
            return Fault(at, kind, target, server, seconds=lasting, amount=most)


def _number_of_faults(chance: random.Random, seconds: float) -> int:
    """None in some runs, so that it also shows what goes wrong without any."""
    return 0 if chance.random() < 0.05 else chance.randint(2, max(4, round(seconds * 1.2)))


def _arrivals(chance: random.Random, seconds: float) -> list[Arrival]:
    arrivals: list[Arrival] = []
    comes, number, at = [], 0, 0.5
    while at < seconds:
        number += 1
        one = _work(chance, round(at, 3), number)
        arrivals.append(one)
        comes.append(one)
        at += chance.uniform(0.05, 1.3)
    arrivals += [
        _interference(chance, one, round(one.at + chance.uniform(0.05, 4.0), 3))
        for one in comes
        if chance.random() < 0.2
    ]
    if chance.random() < 0.2:
        node, begin = chance.choice(NODES), chance.uniform(1, seconds)
        arrivals.append(Arrival(round(begin, 3), "cordon", node))
        arrivals.append(Arrival(round(begin + chance.uniform(0.5, 4), 3), "uncordon", node))
    return sorted(arrivals, key=lambda one: one.at)


def _work(chance: random.Random, at: float, number: int) -> Arrival:
    kind = chance.choice(("pod", "pod", "pod", "job", "gang", "gang"))
    queue = chance.choice(tuple(LIMITS))
    rack = kind == "gang" and chance.random() < 0.4
    return Arrival(
        at,
        kind,
        f"{kind}{number}",
        pods=1 if kind == "pod" else chance.randint(2, 3),
        cpu=chance.choice((1, 2, 3, 5, 6)),
        gpu=chance.choice((0, 1, 1, 2)) if queue == "alpha" else chance.choice((0, 1)),
        run_s=round(chance.uniform(0.3, 4.0), 2),
        queue=queue,
        priority=chance.choice(("", "", "low", "high")),
        rack=rack,
        # Not both: see what is known and open (tests/simulation/open).
        staged=chance.random() < 0.15 and not rack,
    )


def _interference(chance: random.Random, one: Arrival, at: float) -> Arrival:
    if one.kind == "job" and chance.random() < 0.5:
        return Arrival(at, "delete-job", one.name)
    return Arrival(at, chance.choice(("delete", "evict")), one.name)


def drawn_fault(chance: random.Random, seconds: float) -> Fault:
    """Draw a fault of a cluster."""
    at = round(chance.uniform(0.05, seconds), 3)
    lasting = round(chance.choice((0.3, 1.0, 3.0, 6.0)) * chance.uniform(0.5, 1.0), 3)
    role = chance.choice(ROLES)
    target, server = chance.choice(_LINKS)
    kind = chance.choice(_KINDS)
    match kind:
        case "crash" | "crash-kubelet":
            victim = role if kind == "crash" else f"kubelet-{chance.choice(NODES)}"
            return Fault(at, "crash", victim, seconds=lasting / 3, count=chance.randint(1, 120))
        case "pause" | "double":
            return Fault(at, kind, role, seconds=lasting)
        case "clock":
            return Fault(at, kind, role, seconds=lasting, amount=chance.choice((-3600.0, -5.0, -0.4, 0.4, 5.0, 3600.0)))
        case "cut" | "twice" | "slow":
            most = chance.choice((0.1, 0.5, 1.0)) if kind != "slow" else chance.choice((0.05, 0.5))
            return Fault(at, kind, chance.choice((target, target, "*")), server, seconds=lasting, amount=most)
        case "partition":
            return Fault(at, kind, chance.choice((target, "*")), server, seconds=lasting)
        case "bus-loss":
            role = chance.choice(("scheduler-0", "binder-0", "ingest-0"))
            return Fault(at, kind, role, "bus", seconds=lasting, amount=chance.choice((0.1, 0.5)))
        case "log-restart":
            return Fault(at, kind, seconds=lasting / 3, count=chance.randint(1, 8))
        case "bus-restart" | "api-restart":
            return Fault(at, kind, seconds=lasting / 3)
        case "node-loss":
            return Fault(at, kind, chance.choice(NODES), seconds=lasting)
        case _:
            return Fault(at, kind)


#: How often each kind is drawn.
_KINDS = (
    *("crash",) * 8,
    *("crash-kubelet",) * 2,
    *("pause",) * 3,
    *("double",) * 2,
    "clock",
    *("cut",) * 6,
    *("twice",) * 2,
    "slow",
    *("partition",) * 3,
    *("bus-loss",) * 2,
    *("log-restart",) * 2,
    "bus-restart",
    "bus-wipe",
    "api-restart",
    *("compact",) * 2,
    "node-loss",
)


def encode(plan: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def decode(text: bytes) -> Plan:
    return msgspec.json.decode(text, type=Plan)


def described(item: Arrival | Fault) -> str:
    values: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(item).items() if name not in ("at", "kind") and value
    }
    return f"{item.at:7.3f} s  {item.kind} " + " ".join(f"{name}={value}" for name, value in values.items())
