"""KAI-Scheduler's cases of shares and MIG where something is ending, moved, preempted or reclaimed.

From its tests of the actions consolidation, preempt and reclaim (`consolidationGpuMemory_test.go` and their like, also
in `integration_tests`), of deletions, and of allocation with MIG; `SEVERAL` are ours.
"""

from pathlib import Path

import pytest

from tests.given.logs.simulating import document_of, world_of
from tests.given.work.kai_shares import ON, Case, cases, outcome

ENDING = """
a share waits for the part of one that ends | gpus 1, q 2
    a fraction 0.5 node0 g0 build -> node0 g0
    b fraction 0.5 node0 g0 ending -> node0 g0
    c fraction 0.5 build -> kept node0
GPU memory waits for the node's memory, its GPU not open yet | gpus 1 memory 100 ram 2000, q 1
    a cpu 1 node0 build ending ram=1000 -> node0
    b memory 50 build ram=1500 -> kept node0
GPU memory waits for the node's memory, its GPU shared already | gpus 1 memory 100 ram 2000, q 1
    a memory 25 node0 g0 build ram=1000 -> node0 g0
    b cpu 1 node0 build ending ram=500 -> node0
    c memory 50 build ram=750 -> kept node0
a GPU with a share that ends is a whole GPU later | gpus 2, q 2
    a fraction 0.5 node0 g1 ending -> node0 g1
    x gpus 1 -> node0
    y gpus 1 -> kept node0
two shares of one GPU that end are one GPU later | gpus 2, q 2
    a fraction 0.5 node0 g1 ending -> node0 g1
    b fraction 0.5 node0 g1 ending -> node0 g1
    x gpus 1 -> node0
    y gpus 1 -> kept node0
shares of two GPUs that end are two GPUs later | gpus 2, q 2
    a fraction 0.5 node0 g0 ending -> node0 g0
    b fraction 0.5 node0 g1 ending -> node0 g1
    x gpus 1 -> kept node0
    y gpus 1 -> kept node0
a GPU with another share stays shared | gpus 2, q 2
    a fraction 0.5 node0 g1 ending -> node0 g1
    b fraction 0.5 node0 g1 -> node0 g1
    x gpus 1 -> node0
    y gpus 1 -> InsufficientResource
"""

CONSOLIDATION = """
memory moves to free a GPU | gpus 2 memory 100, q 2
    a memory 30 node0 g0 -> CONSOLIDATED node0 g1
    b memory 40 node0 g1 -> node0 g1
    c memory 80 -> node0 new-0
memory does not fit | gpus 2 memory 100, q 2
    a memory 60 node0 g0 -> node0 g0
    b memory 50 node0 g1 -> node0 g1
    c memory 80 -> NoPartOfGpu
memory moves over quota | gpus 2 memory 100, q 1
    a memory 20 node0 g0 -> CONSOLIDATED node0 g1
    b memory 20 node0 g1 -> node0 g1
    c memory 90 -> node0 new-0
a share moves for a share | gpus 2 memory 100, q 1
    a fraction 0.5 node0 g0 -> CONSOLIDATED node0 g1
    b fraction 0.5 node0 g1 -> node0 g1
    c fraction 0.7 -> node0 new-0
a share moves for a GPU | gpus 2 memory 100, q 1
    a fraction 0.5 node0 g0 -> CONSOLIDATED node0 g1
    b fraction 0.5 node0 g1 -> node0 g1
    c gpus 1 -> node0
shares do not fit for a GPU | gpus 2 memory 100, q 1
    a fraction 0.5 node0 g0 -> node0 g0
    b fraction 0.6 node0 g1 -> node0 g1
    c gpus 1 -> InsufficientResource
shares do not fit for a share | gpus 2 memory 100, q 1
    a fraction 0.5 node0 g0 -> node0 g0
    b fraction 0.6 node0 g1 -> node0 g1
    c fraction 0.8 -> NoPartOfGpu
three shares on one GPU, two tasks on the others | gpus 1+1+1 memory 100, q 3
    a memory 25 node0 g0 -> CONSOLIDATED node2 g2
    b memory 30 node1 g1 -> CONSOLIDATED node2 g2
    c memory 35 node2 g2 -> node2 g2
    x memory 85 -> node0 new-0
    y memory 85 -> node1 new-1
a share moves to another node for a whole GPU | gpus 1+1 memory 100, q 2
    a memory 20 node0 g0 -> CONSOLIDATED node1 g1
    b memory 25 node1 g1 -> node1 g1
    c gpus 1 -> node0
"""

PREEMPTION = """
memory preempts memory beside a whole GPU | gpus 2 memory 100, q 2
    a gpus 1 node0 -> node0
    b memory 50 node0 g1 -> PREEMPTED
    c memory 60 build -> node0 new-0
a whole GPU preempts a share, not a whole GPU | gpus 2, q 2
    a gpus 1 node0 -> node0
    b fraction 0.5 node0 g1 -> PREEMPTED
    c gpus 1 build -> node0
a share preempts a share, not a whole GPU | gpus 2, q 2
    a gpus 1 node0 -> node0
    b fraction 0.5 node0 g1 -> PREEMPTED
    c fraction 0.6 build -> node0 new-0
a whole GPU preempts a whole one rather than two shares | gpus 2, q 2
    a fraction 0.5 node0 g0 -> node0 g0
    b gpus 1 node0 -> PREEMPTED
    c fraction 0.5 node0 g0 -> node0 g0
    d gpus 1 build -> node0
memory preempts memory | gpus 1 memory 100, q 1
    a memory 60 node0 g0 -> PREEMPTED
    c memory 55 build -> node0 new-0
of two shares the lower priority is enough | gpus 1 memory 100, q 1
    a memory 30 node0 g0 -> node0 g0
    b memory 50 node0 g0 49 -> PREEMPTED
    c memory 55 build -> node0 g0
memory preempts all of a GPU's memory | gpus 1 memory 100, q 1
    a memory 100 node0 g0 -> PREEMPTED
    c memory 50 build -> node0 new-0
two tasks preempt on two GPUs | gpus 2 memory 100, q 2
    a memory 70 node0 g0 -> PREEMPTED
    b memory 80 node0 g1 -> PREEMPTED
    x memory 80 build -> node0 new-0
    y memory 80 build -> node0 new-1
the same priority preempts nothing | gpus 1 memory 100, q 1
    a memory 60 node0 g0 -> node0 g0
    c memory 50 -> NoPartOfGpu
"""

RECLAIM = """
a share within the fair share by weights | gpus 4, q 1 weight 3, p 2
    a gpus 1 node0 -> node0
    b fraction 0.5 node0 g0 -> node0 g0
    c fraction 0.5 -> node0 g0
    d gpus 2 node0 p -> node0
    e fraction 0.5 node0 g0 p -> RECLAIMED
a whole GPU reclaims a share, not a whole GPU | gpus 2, p 1, q 1
    a gpus 1 node0 p -> node0
    b fraction 0.5 node0 g0 p -> RECLAIMED
    c gpus 1 -> node0
one share of a GPU is enough | gpus 2, p 1, q 1
    a gpus 1 node0 p -> node0
    b fraction 0.5 node0 g0 p -> RECLAIMED
    c fraction 0.5 node0 g0 p -> node0 g0
    d fraction 0.4 -> node0 g0
all shares of one GPU | gpus 2, p 1, q 1
    a gpus 1 node0 p -> RECLAIMED
    b fraction 0.5 node0 g1 p -> node0 g1
    c fraction 0.5 node0 g1 p -> node0 g1
    d fraction 0.8 -> node0 new-0
nothing is reclaimed beyond the quota | gpus 2, p 1, q 1
    a gpus 1 node0 p -> node0
    b fraction 0.5 node0 g0 p -> node0 g0
    c fraction 0.5 node0 g0 -> node0 g0
    d fraction 0.8 -> NoPartOfGpu
a GPU that is promised as a whole gets no share | gpus 3, p 2, q 1
    a gpus 2 node0 p -> node0
    b fraction 0.5 node0 g0 p ending -> node0 g0
    c fraction 0.5 p -> NoPartOfGpu
    d gpus 1 -> kept node0
memory within the fair share | gpus 1 memory 100, p 0.5, q 0.5
    a memory 90 node0 g0 p -> RECLAIMED
    c memory 40 -> node0 new-0
the lower priority is enough, though on another node | gpus 1+1 memory 100, p 1, q 1
    a memory 60 node0 g0 p -> node0 g0
    b memory 80 node1 g1 49 p -> RECLAIMED
    c memory 30 node0 g0 -> node0 g0
    d memory 50 -> node1 new-0
two of three by priority | gpus 1 memory 100, p 0.2, q 0.8
    a memory 20 node0 g0 p -> node0 g0
    b memory 30 node0 g0 49 p -> RECLAIMED
    c memory 40 node0 g0 48 p -> RECLAIMED
    d memory 80 -> node0 g0
nothing of a queue at its quota | gpus 1 memory 100, p 0.5, q 0.5
    a memory 50 node0 g0 p -> node0 g0
    c memory 60 -> NoPartOfGpu
all of a GPU's memory for half of it | gpus 1 memory 100, p 0.5, q 0.5
    a memory 100 node0 g0 p -> RECLAIMED
    c memory 50 -> node0 new-0
a share moves to where it fits, and one is reclaimed of none | gpus 1+1, p 0, r 0, q 2
    a fraction 0.5 node0 g0 p -> CONSOLIDATED node1 g1
    b fraction 0.5 node1 g1 r -> node1 g1
    c gpus 1 -> node0
one of two shares that fit nowhere else | gpus 1+1, p 0, r 0, q 2
    a fraction 0.7 node0 g0 p -> RECLAIMED
    b fraction 0.7 node1 g1 r -> node1 g1
    c gpus 1 -> node0
two tasks on an idle and a reclaimed GPU | gpus 1+1, p 0, q 2
    a fraction 0.7 node0 g0 p -> RECLAIMED
    x gpus 1 -> node1
    y gpus 1 -> node0
two shares beside one and in place of one | gpus 1+1, p 0, q 2
    a fraction 0.7 node0 g0 p -> RECLAIMED
    b fraction 0.3 node1 g1 -> node1 g1
    x fraction 0.7 -> node1 g1
    y fraction 0.7 -> node0 new-0
"""

MIG = """
a profile that the node does not have | mig-1g.5gb 1, q 1
    a mig-1g.10gb 1 -> NodeTooSmall
a device is free | mig-1g.10gb 1, q 1
    a mig-1g.10gb 1 -> node0
there is none | mig-1g.10gb 0, q 1
    a mig-1g.10gb 1 -> NodeTooSmall
work of several profiles | mig-1g.5gb 2 mig-1g.10gb 3, q 5
    a mig-1g.10gb 2 build -> node0
    b mig-1g.10gb 1 build -> node0
    c mig-1g.5gb 1 build -> node0
    d mig-1g.10gb 1 -> InsufficientResource
    e mig-1g.5gb 1 -> node0
MIG by annotation waits | mig-1g.10gb 2, q 1
    a legacy 1 -> Unsupported
MIG beside a pod that has it by annotation | mig-1g.10gb 2, q 1
    a legacy 1 node0 -> node0
    c mig-1g.10gb 1 -> node0
build preempts | mig-1g.10gb 1, q 1
    a mig-1g.10gb 1 node0 -> PREEMPTED
    c mig-1g.10gb 1 build -> node0
inference preempts | mig-1g.10gb 1, q 1
    a mig-1g.10gb 1 node0 -> PREEMPTED
    c mig-1g.10gb 1 125 -> node0
the one that may be preempted | mig-1g.10gb 3, q 3
    a mig-1g.10gb 1 node0 build -> node0
    b mig-1g.10gb 1 node0 -> PREEMPTED
    c mig-1g.10gb 1 node0 build -> node0
    d mig-1g.10gb 1 build -> node0
MIG of the same priority preempts nothing | mig-1g.10gb 1, q 1
    a mig-1g.10gb 1 node0 build -> node0
    c mig-1g.10gb 1 build -> NonPreemptibleOverQuota
no preemption in another queue | mig-1g.10gb 1, p 1, q 1
    a mig-1g.10gb 1 node0 p -> node0
    c mig-1g.10gb 1 build -> InsufficientResource
a device is reclaimed | mig-1g.10gb 2, p 0, q 2
    a mig-1g.10gb 1 node0 p -> RECLAIMED
    c mig-1g.10gb 2 -> node0
nothing is reclaimed beyond the fair share | mig-1g.10gb 4, p 1, q 1
    a mig-1g.10gb 2 node0 p -> node0
    c mig-1g.10gb 3 -> InsufficientResource
"""

#: Several groups share a GPU of which more is wanted than one of them has.
SEVERAL = """
a whole GPU preempts all three groups on it | gpus 1, q 1
    a fraction 0.3 node0 g0 -> PREEMPTED
    b fraction 0.3 node0 g0 -> PREEMPTED
    c fraction 0.4 node0 g0 -> PREEMPTED
    d gpus 1 build -> node0
a part preempts two of three groups | gpus 1, q 1
    a fraction 0.3 node0 g0 -> PREEMPTED
    b fraction 0.3 node0 g0 -> PREEMPTED
    c fraction 0.4 node0 g0 -> node0 g0
    d fraction 0.6 build -> node0 g0
of two GPUs the one that holds less, though it has two groups | gpus 2, q 2
    a fraction 0.3 node0 g0 -> PREEMPTED
    b fraction 0.3 node0 g0 -> PREEMPTED
    c fraction 0.9 node0 g1 -> node0 g1
    d gpus 1 build -> node0
parts of two GPUs preempt the groups on both | gpus 2, q 2
    a fraction 0.5 node0 g0 -> PREEMPTED
    b fraction 0.5 node0 g0 -> PREEMPTED
    c fraction 0.5 node0 g1 -> PREEMPTED
    e fraction 0.5 node0 g1 -> PREEMPTED
    d fraction 0.6 x2 build -> node0 new-0+new-1
a whole GPU is reclaimed of two queues | gpus 1, p 0, r 0, q 1
    a fraction 0.5 node0 g0 p -> RECLAIMED
    b fraction 0.5 node0 g0 r -> RECLAIMED
    d gpus 1 -> node0
two groups of a GPU move to two others | gpus 1+1+1, q 3
    a fraction 0.3 node0 g0 -> CONSOLIDATED node1 g1
    b fraction 0.3 node0 g0 -> CONSOLIDATED node2 g2
    c fraction 0.6 node1 g1 -> node1 g1
    e fraction 0.6 node2 g2 -> node2 g2
    d gpus 1 -> node0
nothing goes where one of the groups may not | gpus 1, q 2
    a fraction 0.5 node0 g0 -> node0 g0
    b fraction 0.5 node0 g0 build -> node0 g0
    d gpus 1 build -> InsufficientResource
one group is preempted and one reclaimed by none, as there | gpus 1, p 0, q 1
    a fraction 0.5 node0 g0 p -> node0 g0
    b fraction 0.5 node0 g0 -> node0 g0
    d gpus 1 build -> InsufficientResource
"""

CASES = cases(ENDING + CONSOLIDATION + PREEMPTION + RECLAIM + SEVERAL + MIG)

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_manifests_of_kais_cases_come_out_as_there_or_as_deviations_say(tmp_path: Path, case: Case) -> None:
    assert outcome(case, tmp_path) == case.expected


def test_deviations_are_of_cases_that_there_are() -> None:
    titles = [case.title for case in CASES]
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
    pods = "".join(f" {name} fraction {part} node0 g0\n" for name, part in zip("abc", parts, strict=False))
    (case,) = cases(f"some of a GPU end | gpus 1, q 2\n{pods} d {ask}")
    waiting = document_of(world_of(case.manifests, tmp_path, ON), ON)["pods"][-1]
    later = [one["message"] for one in waiting["reasons"] if one["code"] == "FitsAfter"]
    # A reservation pod makes no room by itself.
    assert later == [f"would become schedulable if {ending}"]
