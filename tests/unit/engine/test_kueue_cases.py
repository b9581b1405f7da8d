"""Cases of Kueue's own tests of preemption, restated: one node as large as all quotas together.

Source: Kueue, pkg/scheduler/preemption/preemption_test.go, August 2026 (for 0.20). Those of several flavors and of
`borrowWithinCohort`, which is not known here, are left out.
"""

from typing import NamedTuple

import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.queue import Queue, QueueShare

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads


def cluster_queue(
    name: str, quota: int, cohort: str = "", *, borrows: int | None = None, lends: int | None = None, **policies: bool
) -> Queue:
    """A ClusterQueue with what it borrows and lends at most; None for as much as there is."""
    share = QueueShare(quota=quota, borrowing=borrows, lendable=lends)
    return queue(f"ClusterQueue/{name}", cohort and f"Cohort/{cohort}", share=share, **policies)


#: As in Kueue: `c1` may have lower priorities evicted, also in its cohort, `c2` only what others owe its cohort.
QUEUES = {
    "s": [cluster_queue("s", 6, may_reclaim=False)],
    "c": [
        cluster_queue("c1", 6, "c", borrows=6, reclaims_lower=True),
        cluster_queue("c2", 6, "c", borrows=6, may_preempt=False),
    ],
    "d": [cluster_queue("c1", 6, "d", reclaims_lower=True), cluster_queue("c2", 6, "d", may_preempt=False)],
    "l": [cluster_queue("c1", 6, "l", borrows=12, reclaims_lower=True)],
    "lend": [
        cluster_queue("c1", 6, "lend", lends=4, reclaims_lower=True),
        cluster_queue("c2", 6, "lend", lends=2, reclaims_lower=True),
    ],
    "three": [
        cluster_queue("a", 2, "three"),
        cluster_queue("b", 2, "three", may_preempt=False, may_reclaim=False),
        cluster_queue("c", 2, "three", may_preempt=False, may_reclaim=False),
    ],
}


class Case(NamedTuple):
    """What runs, each as its name, queue, size and priority; what comes, likewise; who goes in Kueue.

    Attributes:
        ours: who goes here, where that is not the same. Work makes room within its own queue or takes back from others,
            not both at once; it takes back up to its fair share, which may be more than its quota.
    """

    about: str
    queues: str
    running: str
    comes: str
    goes: str = ""
    ours: str | None = None


THREE = "b1 b 1 0, b2 b 1 0, b3 b 1 0"
CASES = [
    Case("the lowest priority", "s", "low s 2 -1, mid s 2 0, high s 2 1", "s 2 1", "low"),
    Case("several", "s", "low s 2 -1, mid s 2 0, high s 2 1", "s 3 1", "low mid"),
    Case("none for a low priority", "s", "low s 3 -1, mid s 3 0", "s 1 -1"),
    Case("too few of lower priority", "s", "low s 3 -1, mid s 3 0", "s 4 0"),
    Case("some quota is free", "s", "low s 1 -1, mid s 1 0, high s 3 1", "s 2 1", "low"),
    Case("the fewest, not the lowest", "s", "low s 1 -1, mid s 2 0, high s 3 1", "s 2 1", "mid"),
    Case("from who borrows", "c", "low c1 3 -1, mid c2 3 0, high c2 6 1", "c1 3 1", "mid"),
    Case("nobody borrows", "c", "high c1 4 1, low c2 4 -1", "c1 4 1"),
    Case("too little is borrowed", "c", "high c1 4 1, low1 c2 4 -1, low2 c2 4 -1", "c1 4 1"),
    Case("from its own, and what it borrows stays", "c", "med c1 4 0, low c1 4 -1, other c2 4 -1", "c1 4 1", "low"),
    Case("the same without limits", "d", "med c1 4 0, low c1 4 -1, other c2 4 -1", "c1 4 1", "low"),
    Case("a cohort of one", "l", "med c1 4 0, low c1 2 -1", "c1 4 1", "med"),
    Case("only lower priorities are taken back", "c", "one c1 2 0, two c2 4 0, three c2 4 0", "c1 4 0"),
    Case("any priorities are taken back", "c", "one c1 4 0, two c1 4 1, three c2 2 0", "c2 4 0", "one"),
    Case(
        "from all queues of a cohort",
        "c",
        "low c1 3 -1, mid c1 2 0, low2 c2 3 -1, mid2 c2 4 0",
        "c1 4 0",
        "low low2",
        ours="",
    ),
    Case("none of its own where it may not", "c", "low c2 3 -1", "c2 4 1"),
    Case("from who was lent to", "lend", "low c1 3 -1, mid c2 3 0, high c2 4 1", "c1 3 1", "mid"),
    Case(
        "from both of two lenders",
        "lend",
        "low c1 3 -1, mid c1 2 0, low2 c2 3 -1, mid2 c2 4 0",
        "c1 4 0",
        "low low2",
        ours="",
    ),
    Case("more than may be lent", "lend", "low c2 10 -1", "c1 9 0"),
    Case(
        "its own go where it has all of its quota",
        "three",
        f"a1 a 1 -2, a2 a 1 -2, a3 a 1 -1, {THREE}",
        "a 2 0",
        "a1 a2",
    ),
    Case(
        "others' go where it has not",
        "three",
        f"a1 a 1 -1, {THREE}, b4 b 1 0, b5 b 1 -1",
        "a 2 0",
        "a1 b5",
        ours="b1 b5",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_who_goes_for_a_workload_is_as_in_kueue_or_the_case_says_otherwise(case: Case) -> None:
    cluster = Workloads()
    queues = QUEUES[case.queues]
    cluster.add_node("n0", cpu=64, gpu=sum(one.shares["gpu"].quota for one in queues))
    for one in queues:
        cluster.record(f"queue/{one.name}", payloads.QueueObserved(one))
    for text in filter(None, case.running.split(", ")):
        name, of_queue, size, priority = text.split()
        _add(cluster, name, of_queue, int(size), priority=int(priority), node_name="n0", phase="Running")
    of_queue, size, priority = case.comes.split()
    _add(cluster, "new", of_queue, int(size), priority=int(priority), created_at=9)
    gone = " ".join(sorted(cluster.evicted(cluster.cycle())))
    assert gone == (case.goes if case.ours is None else case.ours)
    assert case.goes != case.ours


def _add(cluster: Workloads, name: str, of_queue: str, size: int, **fields: object) -> None:
    labels = {"kai.scheduler/queue": f"ClusterQueue/{of_queue}", "kai.scheduler/preemptibility": "preemptible"}
    cluster.add_pod(pod(name, cpu=1, gpu=size, labels=labels, **fields))
