"""Queues: dividing a cluster between 1,000 of them, accounts and order during a cycle, shares from a folded state."""

import time
from collections.abc import Callable, Iterator

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.queues.division import USAGE_SCALE, divide
from kaicore.rules.queues.tree import Demand, QueueTree

from tests.given.cluster.factory import Cluster, pod
from tests.measured.bench.figures import Figure, figure

_RESOURCES = ("cpu", "gpu", "memory")
_TOTALS = {"cpu": 10_000 * 96_000, "gpu": 80_000, "memory": 10_000 * 2**40}


def hierarchy() -> dict[str, Queue]:
    """1,000 queues of three levels: 10 departments, 90 groups, 900 teams."""
    queues = {}

    def add(name: str, parent: str, index: int, part: int) -> None:
        shares = {
            resource: QueueShare(quota=_TOTALS[resource] // part // 2, weight=1000 * (1 + index % 3))
            for resource in _RESOURCES
        }
        queues[name] = Queue(name, uid=name, parent=parent, shares=shares, created_at=index)

    for index in range(10):
        add(f"d{index}", "", index, 10)
    for index in range(90):
        add(f"g{index:02}", f"d{index % 10}", index, 90)
    for index in range(900):
        add(f"t{index:03}", f"g{index % 90:02}", index, 900)
    return queues


def runs(what: Callable[[], object], *, unit: float, count: int = 5) -> list[float]:
    """Durations of a few runs."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        what()
        times.append((time.perf_counter() - began) * unit)
    return times


def figures() -> Iterator[Figure]:
    queues = hierarchy()
    yield figure("queues: hierarchy of 1000 in 3 levels", runs(lambda: QueueTree(queues), unit=1e3), "ms")
    tree = QueueTree(queues)
    totals = [_TOTALS[resource] for resource in tree.resources]
    requested = [[0] * 3 for _ in tree.queues]
    leaves = [number for number, below in enumerate(tree.children) if not below]
    for leaf in leaves:
        for place in range(3):
            requested[leaf][place] = totals[place] * (1 + leaf * 7 % 13) // 5000
    usage = [[USAGE_SCALE * (1 + number % 7) // 3000 for _ in range(3)] for number in range(len(tree))]
    plain = runs(lambda: divide(tree, totals=totals, requested=requested), unit=1e3)
    yield figure("queues: division of 3 resources between 1000 in 3 levels", plain, "ms")
    weighed = runs(lambda: divide(tree, totals=totals, requested=requested, usage=usage), unit=1e3)
    yield figure("queues: the same with past use", weighed, "ms")
    accounts = QueueAccounts(tree, divide(tree, totals=totals, requested=requested))
    demand = Demand((8000, 1, 2**36))

    def charge_and_undo() -> None:
        for leaf in leaves:
            accounts.refusals(leaf, demand, preemptible=False)
            accounts.charge(leaf, demand, preemptible=False)
        for leaf in reversed(leaves):
            accounts.take_back(leaf, demand, preemptible=False)

    per_operation = 1e6 / len(leaves)
    yield figure(
        "queues: question, charge and undo, per piece of work", runs(charge_and_undo, unit=per_operation), "us"
    )

    cluster = Cluster()
    for index in range(500):
        cluster.add_node(f"n{index:03}", cpu=96, memory=1024, gpu=8)
    for name, one in queues.items():
        cluster.record(f"queue/{name}", payloads.QueueObserved(one))
    for index in range(4000):
        labels = {"kai.scheduler/queue": f"t{index % 900:03}"}
        cluster.add_pod(pod(f"p{index}", labels=labels, node_name=f"n{index % 500:03}", phase="Running", cpu=8, gpu=1))
    state, config = cluster.state, EngineConfig()
    shares = runs(lambda: state.queue_accounts(config, now=cluster.now), unit=1e3)
    yield figure("queues: a cycle's shares and accounts of 1000 queues, 900 with work", shares, "ms")
