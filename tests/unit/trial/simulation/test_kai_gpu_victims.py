"""KAI-Scheduler's cases of shares and MIG where something is ending, moved, preempted or reclaimed.

From its tests of the actions consolidation, preempt and reclaim (`consolidationGpuMemory_test.go` and their like, also
in `integration_tests`), of deletions, and of allocation with MIG; `SEVERAL` are ours.
"""

from pathlib import Path

import pytest

from tests.given.logs.simulating import document_of, world_of
from tests.given.work.kai_shares import BUILD, ON, TRAIN, Work, half, mig_node, nodes, outcome, queue

M = 100
MIG = "mig-1g.10gb"


def share(name: str, part: str, on: str, group: str, priority: int = TRAIN, *, queue: str = "q") -> Work:
    return Work(name, part, on, (group,), priority, queue)


def waits(name: str, ask: str, priority: int = TRAIN, *, queue: str = "q") -> Work:
    return Work(name, ask, priority=priority, queue=queue)


def ends(name: str, group: str, part: str = "fraction 0.5") -> Work:
    return Work(name, part, "node0", (group,), TRAIN, leaving=True)


def two(p: float = 1, q: float = 1) -> str:
    return queue(p, "p") + queue(q)


STAYS, MOVED = "node0 g0", "CONSOLIDATED node0 g1"

ENDING = [
    (
        "a share waits for the part of one that ends",
        nodes(1) + queue(2),
        [half("a", "g0"), ends("b", "g0"), waits("c", "fraction 0.5", BUILD)],
        {"a": "node0 g0", "b": "node0 g0", "c": "kept node0"},
    ),
    (
        "GPU memory waits for the node's memory, its GPU not open yet",
        nodes(1, memory=M, ram="2000") + queue(1),
        [Work("a", "cpu 1", "node0", leaving=True, memory=1000), Work("b", "memory 50", memory=1500)],
        {"a": "node0", "b": "kept node0"},
    ),
    (
        "GPU memory waits for the node's memory, its GPU shared already",
        nodes(1, memory=M, ram="2000") + queue(1),
        [
            Work("a", "memory 25", "node0", ("g0",), memory=1000),
            Work("b", "cpu 1", "node0", leaving=True, memory=500),
            Work("c", "memory 50", memory=750),
        ],
        {"a": "node0 g0", "b": "node0", "c": "kept node0"},
    ),
    (
        "a GPU with a share that ends is a whole GPU later",
        nodes(2) + queue(2),
        [ends("a", "g1"), waits("x", "gpus 1"), waits("y", "gpus 1")],
        {"a": "node0 g1", "x": "node0", "y": "kept node0"},
    ),
    (
        "two shares of one GPU that end are one GPU later",
        nodes(2) + queue(2),
        [ends("a", "g1"), ends("b", "g1"), waits("x", "gpus 1"), waits("y", "gpus 1")],
        {"a": "node0 g1", "b": "node0 g1", "x": "node0", "y": "kept node0"},
    ),
    (
        "shares of two GPUs that end are two GPUs later",
        nodes(2) + queue(2),
        [ends("a", "g0"), ends("b", "g1"), waits("x", "gpus 1"), waits("y", "gpus 1")],
        {"a": "node0 g0", "b": "node0 g1", "x": "kept node0", "y": "kept node0"},
    ),
    (
        "a GPU with another share stays shared",
        nodes(2) + queue(2),
        [ends("a", "g1"), share("b", "fraction 0.5", "node0", "g1"), waits("x", "gpus 1"), waits("y", "gpus 1")],
        {"a": "node0 g1", "b": "node0 g1", "x": "node0", "y": "InsufficientResource"},
    ),
]

CONSOLIDATION = [
    (
        title,
        nodes(2, memory=M) + queue(quota),
        [share("a", left, "node0", "g0"), share("b", right, "node0", "g1"), waits("c", ask)],
        {"a": a, "b": "node0 g1", "c": c},
    )
    for title, quota, left, right, ask, a, c in (
        ("memory moves to free a GPU", 2, "memory 30", "memory 40", "memory 80", MOVED, "node0 new-0"),
        ("memory does not fit", 2, "memory 60", "memory 50", "memory 80", STAYS, "NoPartOfGpu"),
        ("memory moves over quota", 1, "memory 20", "memory 20", "memory 90", MOVED, "node0 new-0"),
        ("a share moves for a share", 1, "fraction 0.5", "fraction 0.5", "fraction 0.7", MOVED, "node0 new-0"),
        ("a share moves for a GPU", 1, "fraction 0.5", "fraction 0.5", "gpus 1", MOVED, "node0"),
        ("shares do not fit for a GPU", 1, "fraction 0.5", "fraction 0.6", "gpus 1", STAYS, "InsufficientResource"),
        ("shares do not fit for a share", 1, "fraction 0.5", "fraction 0.6", "fraction 0.8", STAYS, "NoPartOfGpu"),
    )
] + [
    (
        "three shares on one GPU, two tasks on the others",
        nodes(1, 1, 1, memory=M) + queue(3),
        [
            share("a", "memory 25", "node0", "g0"),
            share("b", "memory 30", "node1", "g1"),
            share("c", "memory 35", "node2", "g2"),
            waits("x", "memory 85"),
            waits("y", "memory 85"),
        ],
        {
            "a": "CONSOLIDATED node2 g2",
            "b": "CONSOLIDATED node2 g2",
            "c": "node2 g2",
            "x": "node0 new-0",
            "y": "node1 new-1",
        },
    ),
    (
        "a share moves to another node for a whole GPU",
        nodes(1, 1, memory=M) + queue(2),
        [share("a", "memory 20", "node0", "g0"), share("b", "memory 25", "node1", "g1"), waits("c", "gpus 1")],
        {"a": "CONSOLIDATED node1 g1", "b": "node1 g1", "c": "node0"},
    ),
]

PREEMPTION = [
    (
        "memory preempts memory beside a whole GPU",
        nodes(2, memory=M) + queue(2),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN),
            share("b", "memory 50", "node0", "g1"),
            waits("c", "memory 60", BUILD),
        ],
        {"a": "node0", "b": "PREEMPTED", "c": "node0 new-0"},
    ),
    (
        "a whole GPU preempts a share, not a whole GPU",
        nodes(2) + queue(2),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN),
            share("b", "fraction 0.5", "node0", "g1"),
            waits("c", "gpus 1", BUILD),
        ],
        {"a": "node0", "b": "PREEMPTED", "c": "node0"},
    ),
    (
        "a share preempts a share, not a whole GPU",
        nodes(2) + queue(2),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN),
            share("b", "fraction 0.5", "node0", "g1"),
            waits("c", "fraction 0.6", BUILD),
        ],
        {"a": "node0", "b": "PREEMPTED", "c": "node0 new-0"},
    ),
    (
        "a whole GPU preempts a whole one rather than two shares",
        nodes(2) + queue(2),
        [
            share("a", "fraction 0.5", "node0", "g0"),
            Work("b", "gpus 1", "node0", priority=TRAIN),
            share("c", "fraction 0.5", "node0", "g0"),
            waits("d", "gpus 1", BUILD),
        ],
        {"a": "node0 g0", "b": "PREEMPTED", "c": "node0 g0", "d": "node0"},
    ),
    (
        "memory preempts memory",
        nodes(1, memory=M) + queue(1),
        [share("a", "memory 60", "node0", "g0"), waits("c", "memory 55", BUILD)],
        {"a": "PREEMPTED", "c": "node0 new-0"},
    ),
    (
        "of two shares the lower priority is enough",
        nodes(1, memory=M) + queue(1),
        [
            share("a", "memory 30", "node0", "g0"),
            share("b", "memory 50", "node0", "g0", TRAIN - 1),
            waits("c", "memory 55", BUILD),
        ],
        {"a": "node0 g0", "b": "PREEMPTED", "c": "node0 g0"},
    ),
    (
        "memory preempts all of a GPU's memory",
        nodes(1, memory=M) + queue(1),
        [share("a", "memory 100", "node0", "g0"), waits("c", "memory 50", BUILD)],
        {"a": "PREEMPTED", "c": "node0 new-0"},
    ),
    (
        "two tasks preempt on two GPUs",
        nodes(2, memory=M) + queue(2),
        [
            share("a", "memory 70", "node0", "g0"),
            share("b", "memory 80", "node0", "g1"),
            waits("x", "memory 80", BUILD),
            waits("y", "memory 80", BUILD),
        ],
        {"a": "PREEMPTED", "b": "PREEMPTED", "x": "node0 new-0", "y": "node0 new-1"},
    ),
    (
        "the same priority preempts nothing",
        nodes(1, memory=M) + queue(1),
        [share("a", "memory 60", "node0", "g0"), waits("c", "memory 50")],
        {"a": "node0 g0", "c": "NoPartOfGpu"},
    ),
]

RECLAIM = [
    (
        "a share within the fair share by weights",
        nodes(4) + queue(1).replace("overQuotaWeight: 1", "overQuotaWeight: 3") + queue(2, "p"),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN),
            share("b", "fraction 0.5", "node0", "g0"),
            waits("c", "fraction 0.5"),
            Work("d", "gpus 2", "node0", priority=TRAIN, queue="p"),
            share("e", "fraction 0.5", "node0", "g0", queue="p"),
        ],
        {"a": "node0", "b": "node0 g0", "c": "node0 g0", "d": "node0", "e": "RECLAIMED"},
    ),
    (
        "a whole GPU reclaims a share, not a whole GPU",
        nodes(2) + two(),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN, queue="p"),
            share("b", "fraction 0.5", "node0", "g0", queue="p"),
            waits("c", "gpus 1"),
        ],
        {"a": "node0", "b": "RECLAIMED", "c": "node0"},
    ),
    (
        "one share of a GPU is enough",
        nodes(2) + two(),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN, queue="p"),
            share("b", "fraction 0.5", "node0", "g0", queue="p"),
            share("c", "fraction 0.5", "node0", "g0", queue="p"),
            waits("d", "fraction 0.4"),
        ],
        {"a": "node0", "b": "RECLAIMED", "c": "node0 g0", "d": "node0 g0"},
    ),
    (
        "all shares of one GPU",
        nodes(2) + two(),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN, queue="p"),
            share("b", "fraction 0.5", "node0", "g1", queue="p"),
            share("c", "fraction 0.5", "node0", "g1", queue="p"),
            waits("d", "fraction 0.8"),
        ],
        {"a": "RECLAIMED", "b": "node0 g1", "c": "node0 g1", "d": "node0 new-0"},
    ),
    (
        "nothing is reclaimed beyond the quota",
        nodes(2) + two(),
        [
            Work("a", "gpus 1", "node0", priority=TRAIN, queue="p"),
            share("b", "fraction 0.5", "node0", "g0", queue="p"),
            share("c", "fraction 0.5", "node0", "g0"),
            waits("d", "fraction 0.8"),
        ],
        {"a": "node0", "b": "node0 g0", "c": "node0 g0", "d": "NoPartOfGpu"},
    ),
    (
        "a GPU that is promised as a whole gets no share",
        nodes(3) + two(2, 1),
        [
            Work("a", "gpus 2", "node0", priority=TRAIN, queue="p"),
            Work("b", "fraction 0.5", "node0", ("g0",), TRAIN, "p", leaving=True),
            waits("c", "fraction 0.5", queue="p"),
            waits("d", "gpus 1"),
        ],
        {"a": "node0", "b": "node0 g0", "c": "NoPartOfGpu", "d": "kept node0"},
    ),
    (
        "memory within the fair share",
        nodes(1, memory=M) + two(0.5, 0.5),
        [share("a", "memory 90", "node0", "g0", queue="p"), waits("c", "memory 40")],
        {"a": "RECLAIMED", "c": "node0 new-0"},
    ),
    (
        "the lower priority is enough, though on another node",
        nodes(1, 1, memory=M) + two(),
        [
            share("a", "memory 60", "node0", "g0", queue="p"),
            share("b", "memory 80", "node1", "g1", TRAIN - 1, queue="p"),
            share("c", "memory 30", "node0", "g0"),
            waits("d", "memory 50"),
        ],
        {"a": "node0 g0", "b": "RECLAIMED", "c": "node0 g0", "d": "node1 new-0"},
    ),
    (
        "two of three by priority",
        nodes(1, memory=M) + two(0.2, 0.8),
        [
            share("a", "memory 20", "node0", "g0", queue="p"),
            share("b", "memory 30", "node0", "g0", TRAIN - 1, queue="p"),
            share("c", "memory 40", "node0", "g0", TRAIN - 2, queue="p"),
            waits("d", "memory 80"),
        ],
        {"a": "node0 g0", "b": "RECLAIMED", "c": "RECLAIMED", "d": "node0 g0"},
    ),
    (
        "nothing of a queue at its quota",
        nodes(1, memory=M) + two(0.5, 0.5),
        [share("a", "memory 50", "node0", "g0", queue="p"), waits("c", "memory 60")],
        {"a": "node0 g0", "c": "NoPartOfGpu"},
    ),
    (
        "all of a GPU's memory for half of it",
        nodes(1, memory=M) + two(0.5, 0.5),
        [share("a", "memory 100", "node0", "g0", queue="p"), waits("c", "memory 50")],
        {"a": "RECLAIMED", "c": "node0 new-0"},
    ),
    (
        "a share moves to where it fits, and one is reclaimed of none",
        nodes(1, 1) + queue(0, "p") + queue(0, "r") + queue(2),
        [
            share("a", "fraction 0.5", "node0", "g0", queue="p"),
            share("b", "fraction 0.5", "node1", "g1", queue="r"),
            waits("c", "gpus 1"),
        ],
        {"a": "CONSOLIDATED node1 g1", "b": "node1 g1", "c": "node0"},
    ),
    (
        "one of two shares that fit nowhere else",
        nodes(1, 1) + queue(0, "p") + queue(0, "r") + queue(2),
        [
            share("a", "fraction 0.7", "node0", "g0", queue="p"),
            share("b", "fraction 0.7", "node1", "g1", queue="r"),
            waits("c", "gpus 1"),
        ],
        {"a": "RECLAIMED", "b": "node1 g1", "c": "node0"},
    ),
    (
        "two tasks on an idle and a reclaimed GPU",
        nodes(1, 1) + queue(0, "p") + queue(2),
        [share("a", "fraction 0.7", "node0", "g0", queue="p"), waits("x", "gpus 1"), waits("y", "gpus 1")],
        {"a": "RECLAIMED", "x": "node1", "y": "node0"},
    ),
    (
        "two shares beside one and in place of one",
        nodes(1, 1) + queue(0, "p") + queue(2),
        [
            share("a", "fraction 0.7", "node0", "g0", queue="p"),
            share("b", "fraction 0.3", "node1", "g1"),
            waits("x", "fraction 0.7"),
            waits("y", "fraction 0.7"),
        ],
        {"a": "RECLAIMED", "b": "node1 g1", "x": "node1 g1", "y": "node0 new-0"},
    ),
]


def mig(name: str, priority: int = TRAIN, *, count: int = 1, on: str = "node0", queue: str = "q") -> Work:
    return Work(name, f"{MIG} {count}", on, (), priority, queue)


MIG_CASES = [
    (
        "a profile that the node does not have",
        mig_node("1g.5gb: 1") + queue(1),
        [mig("a", on="")],
        {"a": "NodeTooSmall"},
    ),
    ("a device is free", mig_node("1g.10gb: 1") + queue(1), [mig("a", on="")], {"a": "node0"}),
    ("there is none", mig_node("1g.10gb: 0") + queue(1), [mig("a", on="")], {"a": "NodeTooSmall"}),
    (
        "work of several profiles",
        mig_node("1g.5gb: 2, 1g.10gb: 3") + queue(5),
        [
            mig("a", BUILD, count=2, on=""),
            mig("b", BUILD, on=""),
            Work("c", "mig-1g.5gb 1"),
            mig("d", on=""),
            Work("e", "mig-1g.5gb 1", priority=TRAIN),
        ],
        {"a": "node0", "b": "node0", "c": "node0", "d": "InsufficientResource", "e": "node0"},
    ),
    (
        "MIG by annotation waits",
        mig_node("1g.10gb: 2") + queue(1),
        [Work("a", "legacy 1", priority=TRAIN)],
        {"a": "Unsupported"},
    ),
    (
        "MIG beside a pod that has it by annotation",
        mig_node("1g.10gb: 2") + queue(1),
        [Work("a", "legacy 1", "node0", priority=TRAIN), mig("c", on="")],
        {"a": "node0", "c": "node0"},
    ),
    *(
        (
            f"{title} preempts",
            mig_node("1g.10gb: 1") + queue(1),
            [mig("a"), mig("c", priority, on="")],
            {"a": "PREEMPTED", "c": "node0"},
        )
        for title, priority in (("build", BUILD), ("inference", 125))
    ),
    (
        "the one that may be preempted",
        mig_node("1g.10gb: 3") + queue(3),
        [mig("a", BUILD), mig("b"), mig("c", BUILD), mig("d", BUILD, on="")],
        {"a": "node0", "b": "PREEMPTED", "c": "node0", "d": "node0"},
    ),
    (
        "MIG of the same priority preempts nothing",
        mig_node("1g.10gb: 1") + queue(1),
        [mig("a", BUILD), mig("c", BUILD, on="")],
        {"a": "node0", "c": "NonPreemptibleOverQuota"},
    ),
    (
        "no preemption in another queue",
        mig_node("1g.10gb: 1") + two(),
        [mig("a", queue="p"), mig("c", BUILD, on="")],
        {"a": "node0", "c": "InsufficientResource"},
    ),
    (
        "a device is reclaimed",
        mig_node("1g.10gb: 2") + two(0, 2),
        [mig("a", queue="p"), mig("c", count=2, on="")],
        {"a": "RECLAIMED", "c": "node0"},
    ),
    (
        "nothing is reclaimed beyond the fair share",
        mig_node("1g.10gb: 4") + two(),
        [mig("a", count=2, queue="p"), mig("c", count=3, on="")],
        {"a": "node0", "c": "InsufficientResource"},
    ),
]


def several(*parts: str, queues: str = "qqqq") -> list[Work]:
    """Shares of one GPU, each of a group of its own."""
    named = zip("abce", parts, queues, strict=False)
    return [share(name, f"fraction {part}", "node0", "g0", queue=queue) for name, part, queue in named]


#: Several groups share a GPU of which more is wanted than one of them has.
SEVERAL = [
    (
        "a whole GPU preempts all three groups on it",
        nodes(1) + queue(1),
        [*several("0.3", "0.3", "0.4"), waits("d", "gpus 1", BUILD)],
        {"a": "PREEMPTED", "b": "PREEMPTED", "c": "PREEMPTED", "d": "node0"},
    ),
    (
        "a part preempts two of three groups",
        nodes(1) + queue(1),
        [*several("0.3", "0.3", "0.4"), waits("d", "fraction 0.6", BUILD)],
        {"a": "PREEMPTED", "b": "PREEMPTED", "c": "node0 g0", "d": "node0 g0"},
    ),
    (
        "of two GPUs the one with one group, though it holds more",
        nodes(2) + queue(2),
        [*several("0.3", "0.3"), share("c", "fraction 0.9", "node0", "g1"), waits("d", "gpus 1", BUILD)],
        {"a": "node0 g0", "b": "node0 g0", "c": "PREEMPTED", "d": "node0"},
    ),
    (
        "parts of two GPUs preempt the groups on both",
        nodes(2) + queue(2),
        [
            *several("0.5", "0.5"),
            share("c", "fraction 0.5", "node0", "g1"),
            share("e", "fraction 0.5", "node0", "g1"),
            waits("d", "fraction 0.6 x 2", BUILD),
        ],
        {"a": "PREEMPTED", "b": "PREEMPTED", "c": "PREEMPTED", "d": "node0 new-0+new-1", "e": "PREEMPTED"},
    ),
    (
        "a whole GPU is reclaimed of two queues",
        nodes(1) + queue(0, "p") + queue(0, "r") + queue(1),
        [*several("0.5", "0.5", queues="pr"), waits("d", "gpus 1")],
        {"a": "RECLAIMED", "b": "RECLAIMED", "d": "node0"},
    ),
    (
        "two groups of a GPU move to two others",
        nodes(1, 1, 1) + queue(3),
        [
            *several("0.3", "0.3"),
            share("c", "fraction 0.6", "node1", "g1"),
            share("e", "fraction 0.6", "node2", "g2"),
            waits("d", "gpus 1"),
        ],
        {
            "a": "CONSOLIDATED node1 g1",
            "b": "CONSOLIDATED node2 g2",
            "c": "node1 g1",
            "d": "node0",
            "e": "node2 g2",
        },
    ),
    (
        "nothing goes where one of the groups may not",
        nodes(1) + queue(2),
        [*several("0.5"), half("b", "g0"), waits("d", "gpus 1", BUILD)],
        {"a": "node0 g0", "b": "node0 g0", "d": "InsufficientResource"},
    ),
    (
        "one group is preempted and one reclaimed by none, as there",
        nodes(1) + queue(0, "p") + queue(1),
        [*several("0.5", "0.5", queues="pq"), waits("d", "gpus 1", BUILD)],
        {"a": "node0 g0", "b": "node0 g0", "d": "InsufficientResource"},
    ),
]

CASES = [*ENDING, *CONSOLIDATION, *PREEMPTION, *RECLAIM, *SEVERAL, *MIG_CASES]

_CHEAPEST = "what loses least goes, of equals the first by name; KAI moves or evicts the other"

#: Cases that come out otherwise than with KAI, and why.
DEVIATIONS = {
    "memory moves to free a GPU": _CHEAPEST,
    "memory moves over quota": _CHEAPEST,
    "a share moves for a share": _CHEAPEST,
    "a share moves for a GPU": _CHEAPEST,
    "three shares on one GPU, two tasks on the others": _CHEAPEST,
    "a share moves to another node for a whole GPU": _CHEAPEST,
    "one share of a GPU is enough": _CHEAPEST,
    "a share moves to where it fits, and one is reclaimed of none": _CHEAPEST,
    "one of two shares that fit nowhere else": _CHEAPEST,
    "MIG beside a pod that has it by annotation": "the kubelet gives MIG devices; KAI keeps others off such a node",
    "all shares of one GPU": "one pod goes rather than two, though it holds a whole GPU",
}


@pytest.mark.parametrize("case", CASES, ids=[title for title, *_ in CASES])
def test_manifests_of_kais_cases_come_out_as_there_or_as_deviations_say(
    tmp_path: Path, case: tuple[str, str, list[Work], dict[str, str]]
) -> None:
    _, cluster, pods, expected = case
    assert outcome(cluster, pods, tmp_path) == expected


def test_deviations_are_of_cases_that_there_are() -> None:
    titles = [title for title, *_ in CASES]
    assert len(set(titles)) == len(titles)
    assert DEVIATIONS.keys() <= set(titles)


@pytest.mark.parametrize(
    ("parts", "ask", "ending"),
    [
        (("0.5",), "gpus 1", "Pod default/a ends (on node0)"),
        (("0.5", "0.5"), "gpus 1", "Pod default/a, Pod default/b end (their 2 pods, such as on node0)"),
        (("0.3", "0.3", "0.4"), "fraction 0.6", "Pod default/a, Pod default/b end (their 2 pods, such as on node0)"),
        (("0.3", "0.3", "0.4"), "fraction 0.4", "Pod default/c ends (on node0)"),
    ],
)
def test_end_of_as_few_groups_on_a_shared_gpu_as_it_takes_is_said(
    tmp_path: Path, parts: tuple[str, ...], ask: str, ending: str
) -> None:
    pods = [*several(*parts), waits("d", ask)]
    world = world_of(nodes(1) + queue(2) + "".join(one.manifest for one in pods), tmp_path, ON)
    waiting = document_of(world, ON)["pods"][-1]
    later = [one["message"] for one in waiting["reasons"] if one["code"] == "FitsAfter"]
    # A reservation pod makes no room by itself.
    assert later == [f"would become schedulable if {ending}"]
