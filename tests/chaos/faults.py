"""All kinds of faults, in one list: what each does, how often it comes, and what it must not break.

Rows of `docs/reliability.md` are made of this list.
"""

import random
from dataclasses import dataclass

from tests.chaos.strikes import (
    Step,
    Strike,
    api,
    black_hole,
    cut,
    delete_caches,
    drain,
    end_sessions,
    fill,
    freeze,
    half_open,
    kill,
    lag,
    lose_topologies,
    pull_cable,
    reserve,
    restart_kubelet,
    set_clock,
    wipe_nats,
)
from tests.chaos.world import READERS

PROCESSES = (
    *("relay-a", "relay-b", "watcher-a", "watcher-b", "scheduler-a", "scheduler-b", "binder-a", "binder-b"),
    *("ingest", "exporter", "fleet", "apiserver"),
)
#: Who can be killed or frozen: those who read are there in `make chaos`, and not in the gate.
VICTIMS = (*PROCESSES, *READERS)
NODES = tuple(f"{name}-{number}" for name in ("single", "restricted") for number in range(3))

#: What no fault may break, in the words of the record.
KEPT, ONCE, REPLAYED, GOES_ON, SUSPECT, PLANNED = (
    "what was acknowledged is in the log, once, without gaps",
    "no zone, no queue limit is promised twice; no pod is bound twice",
    "every recorded cycle replays",
    "everything that can run runs in the end",
    "a suspect node gets no such work before its probe",
    "no other work starts into a reserved time, and a drained node is empty by its time",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: in schedules, summaries and the record.
        text: what happens.
        keeps: what it must not break.
        rate: how often it comes, per minute.
        strike: does it; returns how many faults that was.
        targets: whom it may strike.
        seconds: least and most that it lasts.
        numbers: least and most of `Step.number`.
        needs: what it takes: `disks`, `clocks`, `machines`; empty for nothing.
    """

    name: str
    text: str
    keeps: str
    rate: float
    strike: Strike
    targets: tuple[str, ...]
    seconds: tuple[float, float] = (0.0, 0.0)
    numbers: tuple[int, int] = (1, 1)
    needs: str = ""

    def step(self, at: float, chance: random.Random) -> Step:
        seconds = round(chance.uniform(*self.seconds), 2)
        return Step(round(at, 2), self.name, chance.choice(self.targets), seconds, chance.randint(*self.numbers))


KINDS: tuple[Kind, ...] = (
    Kind("kill", "a process is killed (kill -9)", f"{KEPT}; {ONCE}", 8, kill, VICTIMS),
    Kind(
        "freeze",
        "a process stands still (SIGSTOP, then SIGCONT)",
        f"{ONCE}; {GOES_ON}",
        6,
        freeze,
        VICTIMS,
        (0.5, 8),
    ),
    Kind(
        "split-brain",
        "the leading relay, scheduler and binder stand still until others lead, and wake as leaders",
        ONCE,
        1,
        freeze,
        ("leaders",),
        (4, 12),
    ),
    Kind("postgres-kill", "Postgres is killed", KEPT, 0.7, kill, ("postgres",)),
    Kind("postgres-freeze", "Postgres stands still", GOES_ON, 0.5, freeze, ("postgres",), (1, 6)),
    Kind("nats-kill", "NATS is killed", GOES_ON, 0.7, kill, ("nats",)),
    Kind("nats-freeze", "NATS stands still", GOES_ON, 0.5, freeze, ("nats",), (1, 6)),
    Kind(
        "nats-wipe",
        "NATS' store is deleted under the live server, which is killed then",
        KEPT,
        0.5,
        wipe_nats,
        ("nats",),
        (0.5, 3),
    ),
    Kind(
        "caches-deleted",
        "snapshots and the trail of states are deleted under live services",
        REPLAYED,
        1,
        delete_caches,
        ("postgres",),
    ),
    Kind("session-end", "sessions of Postgres are ended", KEPT, 30, end_sessions, ("postgres",), numbers=(1, 4)),
    Kind(
        "disk-full",
        "a server's disk is full for a while",
        f"{KEPT}; {GOES_ON}",
        0.5,
        fill,
        ("postgres", "nats"),
        (2, 6),
        needs="disks",
    ),
    Kind(
        "clock-forward",
        "the clock of Postgres, or of all processes, is set forward and right again",
        f"{KEPT}; {REPLAYED}",
        0.7,
        set_clock,
        ("postgres", "machine"),
        (3, 10),
        (2, 600),
        needs="clocks",
    ),
    Kind("cut", "a connection is cut (RST)", f"{KEPT}; {ONCE}", 90, cut, ("postgres", "nats", "api")),
    Kind(
        "half-open",
        "a process reaches no server, or hears no answer, and its connections live",
        f"{KEPT}; {ONCE}",
        4,
        half_open,
        (*PROCESSES[:9], "fleet", *READERS),
        (0.5, 8),
        (1, 2),
    ),
    Kind(
        "partition",
        "a machine's cable is pulled: packets vanish",
        f"{ONCE}; {GOES_ON}",
        1,
        pull_cable,
        ("a", "b"),
        (2, 10),
        needs="machines",
    ),
    Kind(
        "api-429",
        "the API server answers 429",
        GOES_ON,
        15,
        api("too-many-requests", seconds=1),
        ("writes", "all"),
        (2, 4),
        (1, 10),
    ),
    Kind(
        "api-500",
        "the API server answers 500",
        GOES_ON,
        20,
        api("internal-error"),
        ("bindings", "writes", "all"),
        (2, 4),
        (1, 10),
    ),
    Kind("api-409", "the API server answers 409", ONCE, 10, api("conflict"), ("bindings", "writes"), (2, 4), (1, 5)),
    Kind(
        "api-reset",
        "the API server cuts a request off, undone",
        GOES_ON,
        15,
        api("reset"),
        ("bindings", "writes", "all"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-lost-answer",
        "a write is done and its answer lost",
        ONCE,
        15,
        api("lost-answer"),
        ("bindings", "writes"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-half-answer",
        "an answer breaks off half way",
        ONCE,
        15,
        api("half-answer"),
        ("bindings", "writes", "lists"),
        (2, 4),
        (1, 5),
    ),
    Kind(
        "api-slow",
        "answers take half a second longer",
        GOES_ON,
        10,
        api("latency", seconds=0.5),
        ("pods", "writes"),
        (2, 4),
        (1, 20),
    ),
    Kind("api-410", "a list or watch is too old", GOES_ON, 4, api("gone"), ("lists", "watches"), (2, 4), (1, 3)),
    Kind("watch-drop", "a watch is cut", GOES_ON, 15, api("drop-watch"), ("pods", "watches"), (2, 4), (1, 4)),
    Kind(
        "watch-half",
        "a watch is cut in the middle of an event",
        GOES_ON,
        15,
        api("half-event"),
        ("pods", "watches"),
        (2, 4),
        (1, 4),
    ),
    Kind(
        "watch-twice",
        "an event of a watch comes twice",
        REPLAYED,
        10,
        api("duplicate-event"),
        ("pods", "watches"),
        (2, 4),
        (1, 8),
    ),
    Kind(
        "watch-late",
        "a watch stands still for a second",
        GOES_ON,
        6,
        api("delay-event", seconds=1.0),
        ("pods", "watches"),
        (2, 4),
        (1, 2),
    ),
    Kind("kubelet-restart", "a kubelet is down for a moment", GOES_ON, 3, restart_kubelet, NODES, (0.2, 1)),
    Kind("topologies-lost", "a node's publications of its zones are lost and late", ONCE, 3, lose_topologies, NODES),
    Kind("kubelet-lag", "a kubelet tells later than it did what it does", ONCE, 3, lag, NODES),
    Kind(
        "black-hole", "a node fails each pod that comes to it", f"{SUSPECT}; {GOES_ON}", 0.5, black_hole, NODES, (5, 20)
    ),
    Kind(
        "reservation",
        "a node is reserved, for a queue or for nobody; its window begins and ends",
        f"{PLANNED}; {GOES_ON}",
        1,
        reserve,
        NODES,
        (4, 12),
        (1, 2),
    ),
    Kind(
        "drain",
        "a node is drained; the drain is stopped half way, or undone after its time",
        f"{PLANNED}; {GOES_ON}",
        1,
        drain,
        NODES,
        (8, 20),
        (1, 3),
    ),
)

#: Kinds of which the nodes are mended at last, and must run pods then.
MENDED = ("black-hole", "reservation", "drain")


def schedule(seed: int, seconds: float, kinds: tuple[Kind, ...], *, scale: float = 1.0) -> list[Step]:
    """Draw the faults of a run; the same arguments give the same."""
    steps = []
    for kind in kinds:
        chance = random.Random(f"{seed}/{kind.name}")
        at = 0.0
        while (at := at + chance.expovariate(kind.rate * scale / 60)) < seconds:
            steps.append(kind.step(at, chance))
    return sorted(steps, key=lambda step: (step.at, step.kind))
