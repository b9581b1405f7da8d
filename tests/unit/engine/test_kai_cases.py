"""Cases of KAI-Scheduler's own tests of preemption and reclaim, restated; `test_kai_gpu_victims` has those of shares.

Source: KAI-Scheduler, pkg/scheduler/actions/{preempt,reclaim,integration_tests}, after v0.17.0.

A case is texts: what it is about; GPUs by node; queues as `name:quota` and, where it is none, `:weight` of what is
beyond; jobs that run and one that waits, as `name queue size*pods/least priority`, on the second node with `@`; and the
jobs of the pods that KAI evicts. A job that runs in part is on both sides. Of equal pods of a job KAI takes the last.
"""

from typing import NamedTuple

import pytest
from kaicore.rules.engine.config import Action, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.groups.membership import SIGS_GROUP_LABEL

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads

#: KAI's priority classes; those of 100 and more are not preemptible.
PRIORITIES = {"train": 50, "interactive": 75, "build": 100, "inference": 125}


class Case(NamedTuple):
    """One case; `ours` is who goes here instead: of equal costs the first by name."""

    about: str
    nodes: str
    queues: str
    running: str
    waits: str
    goes: str = ""
    ours: str | None = None


PREEMPT = [
    Case("lower priority", "1", "q:1", "a q 1*1/1 train", "b q 1*1/1 build", "a"),
    Case("the same priority", "1", "q:1", "a q 1*1/1 train", "b q 1*1/1 train"),
    Case("another queue", "1", "q:1 w:1", "a q 1*1/1 train", "b w 1*1/1 build"),
    Case("both of two", "2", "q:2", "a q 1*1/1 train, b q 1*1/1 train", "c q 2*1/1 build", "a b"),
    Case("its own queue's", "4", "q:2 w:2", "a q 2*1/1 train, b w 2*1/1 train", "c q 2*1/1 build", "a"),
    Case("some room is free", "4", "q:2 w:2", "a q 1*1/1 train, b w 2*1/1 train", "c q 2*1/1 build", "a"),
    Case("the lowest", "2", "q:2", "a q 1*1/1 train, b q 1*1/1 interactive", "c q 1*1/1 build", "a"),
    Case("either", "2", "q:2", "a q 1*1/1 interactive, b q 1*1/1 interactive", "c q 1*1/1 build", "b", "a"),
    Case("for a preemptible job", "1", "q:1", "a q 1*1/1 train", "b q 1*1/1 interactive", "a"),
    Case("not what is not preemptible", "1", "q:10", "a q 1*1/1 build", "b q 1*1/1 inference"),
    Case("nor what is of higher priority", "1", "q:10", "a q 1*1/1 inference", "b q 1*1/1 build"),
    Case("for inference", "1", "q:10", "a q 1*1/1 train", "b q 1*1/1 inference", "a"),
    Case("a pod of an elastic job", "2", "q:2", "a q 1*2/1 train", "b q 1*1/1 inference", "a"),
    Case("several of its pods", "4", "q:4", "a q 1*4/1 train", "b q 2*1/1 inference", "a a"),
    Case("all of its pods", "2", "q:4", "a q 1*2/1 train", "b q 2*1/1 inference", "a a"),
    Case(
        "a job and a pod of an elastic one",
        "3",
        "q:3",
        "a q 1*2/1 train, b q 1*1/1 train",
        "c q 2*1/1 inference",
        "a b",
        "a a",
    ),
    Case(
        "a pod of each of two elastic jobs",
        "4",
        "q:4",
        "a q 1*2/1 train, b q 1*2/1 train",
        "c q 2*1/1 inference",
        "a b",
    ),
    Case(
        "all, one of them elastic",
        "4",
        "q:4",
        "a q 1*1/1 train, b q 1*2/1 train, c q 1*1/1 train",
        "d q 4*1/1 inference",
        "a b b c",
    ),
    Case("for the least of an elastic job", "2", "q:2", "a q 2*1/1 train", "b q 1*2/1 inference", "a"),
    Case("for one pod more", "3", "q:3", "a q 1*2/1 train, b q 1*1/1 inference", "b q 1*1/1 inference", "a"),
    Case("not for a gang that would not fit", "1", "q:2", "a q 1*1/1 train", "b q 1*2/2 build"),
    Case("for a gang", "2", "q:2", "a q 1*1/1 train", "b q 1*2/2 build", "a"),
    Case("not beyond the quota", "4", "q:3", "a q 1*1/1 train", "b q 2*2/2 build"),
    Case("a gang", "4", "q:3", "a q 2*2/2 train", "b q 2*1/1 build", "a a"),
    Case("more than is asked for", "2", "q:1", "a q 2*1/1 train", "b q 1*1/1 build", "a"),
    Case("all of three", "4", "q:4", "a q 1*1/1 train, b q 2*1/1 train, c q 1*1/1 train", "d q 4*1/1 build", "a b c"),
    Case(
        "no node is large enough",
        "2 2",
        "q:4",
        "a q 1*1/1 train, b q 2*1/1 train @, c q 1*1/1 train",
        "d q 4*1/1 build",
    ),
    Case("more than the quota", "4", "q:3", "a q 1*1/1 train, b q 2*1/1 train, c q 1*1/1 train", "d q 4*1/1 build"),
    Case("for two pods of a gang", "2", "q:2", "a q 2*1/1 train", "b q 1*2/2 build", "a"),
    Case(
        "for the rest of a gang",
        "3",
        "q:2",
        "a q 1*1/1 train, b q 1*1/1 train, c q 1*1/2 build",
        "c q 1*1/2 build",
        "b",
        "a",
    ),
    Case("a gang for one pod", "2", "q:1", "a q 1*2/2 train", "b q 1*1/1 build", "a a"),
]
RECLAIM = [
    Case("a pod of an elastic job", "2", "q:1 w:1", "a q 1*2/1 train", "b w 1*1/1 train", "a"),
    Case("several of its pods", "4", "q:1 w:1", "a q 1*4/1 train", "b w 2*1/1 train", "a a"),
    Case("only what is beyond the quota", "2", "q:1:0 w:1:0", "a q 1*2/1 train", "b w 1*3/1 train", "a"),
    Case("all of its pods", "2", "q:0:0 w:2", "a q 1*2/1 train", "b w 2*1/1 train", "a a"),
    Case(
        "a job and a pod of an elastic one",
        "3",
        "q:0:0 w:3",
        "a q 1*2/1 train, b q 1*1/1 train",
        "c w 2*1/1 train",
        "a b",
        "a a",
    ),
    Case(
        "a pod of each of two elastic jobs",
        "4",
        "q:0:0 w:2",
        "a q 1*2/1 train, b q 1*2/1 train",
        "c w 2*1/1 train",
        "a b",
    ),
    Case("all, one of them elastic", "3", "q:0:0 w:3", "a q 1*2/1 train, b q 1*1/1 train", "c w 3*1/1 train", "a a b"),
    Case("for the least of an elastic job", "2", "q:0:0 w:1", "a q 2*1/1 train", "b w 1*2/1 train", "a"),
    Case(
        "from one elastic job for another", "3", "q:0:0 w:1", "a q 1*2/1 train, b w 1*1/1 train", "b w 1*1/1 train", "a"
    ),
    Case("not what is within the quota", "3", "q:2 w:2", "a q 1*3/1 train", "b w 2*1/1 train"),
    Case("for a gang", "2", "q:0:0 w:2", "a q 1*1/1 train", "b w 1*2/2 build", "a"),
    Case("not for a gang that would not fit", "1", "q:0:0 w:2", "a q 1*1/1 train", "b w 1*2/2 build"),
    Case("not beyond the quota", "10", "q:0:0 w:2", "a q 10*1/1 train", "b w 2*2/2 build"),
    Case("a gang", "2", "q:0:0 w:2", "a q 1*2/2 train", "b w 2*1/1 build", "a a"),
    Case("a gang on two nodes", "1 1", "q:1 w:1", "a q 1*1/2 train, a q 1*1/2 train @", "b w 1*1/1 train", "a a"),
]


@pytest.mark.parametrize(
    ("case", "action"),
    [(case, Action.PREEMPT) for case in PREEMPT] + [(case, Action.RECLAIM) for case in RECLAIM],
    ids=lambda value: getattr(value, "about", str(value)),
)
def test_who_goes_is_as_in_kai_or_the_case_says_otherwise(case: Case, action: Action) -> None:
    cluster = Workloads()
    for number, gpus in enumerate(case.nodes.split()):
        cluster.add_node(f"n{number}", cpu=64, gpu=int(gpus))
    for text in case.queues.split():
        name, quota, weight = (*text.split(":"), "1")[:3]
        cluster.record(
            f"queue/{name}", payloads.QueueObserved(queue(name, quota=int(quota), weight=1000 * int(weight)))
        )
    members: dict[str, int] = {}
    for text in case.running.split(", "):
        fields = {"node_name": f"n{int('@' in text)}", "phase": "Running"}
        _add(cluster, members, text.removesuffix(" @"), **fields)
    _add(cluster, members, case.waits, created_at=9)
    result = cluster.cycle(EngineConfig(actions=(Action.ALLOCATE, action)))
    assert " ".join(sorted(name[0] for name in cluster.evicted(result))) == (
        case.goes if case.ours is None else case.ours
    )
    assert case.goes != case.ours


def _add(cluster: Workloads, members: dict[str, int], text: str, **fields: object) -> None:
    name, of_queue, amounts, word = text.split()
    size, _, counts = amounts.partition("*")
    count, least = map(int, counts.split("/"))
    priority = PRIORITIES[word]
    if name not in members:
        cluster.gang(
            name, 0, least=least, group={"priority": priority, "preemptible": priority < 100, "queue": of_queue}
        )
    first = members.get(name, 0)
    members[name] = first + count
    for number in range(first, first + count):
        one = pod(
            f"{name}-{number}", cpu=1, gpu=int(size), priority=priority, labels={SIGS_GROUP_LABEL: name}, **fields
        )
        cluster.add_pod(one)
