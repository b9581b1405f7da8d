"""KAI-Scheduler's cases of fractions and GPU memory where nothing is evicted.

From its tests of the action allocate (`allocateFractionalGpu_test.go`, `allocateGpuMemory_test.go`), and some more.
"""

from pathlib import Path

import pytest

from tests.given.work.kai_shares import SPREAD, Case, cases, outcome

#: The last deviates: KAI gives no whole GPUs of nodes with MIG devices of several profiles; the kubelet does.
CASES = cases("""
a share goes to the GPU that is shared already | gpus 2, q 2
    a fraction 0.5 node0 g1 build -> node0 g1
    b fraction 0.5 build -> node0 g1
a share goes to the node with a shared GPU, not to the first by name | gpus 2+2, q 2
    a fraction 0.5 node1 g1 build -> node1 g1
    b fraction 0.5 build -> node1 g1
a share that does not fit on the shared GPU gets a new one | gpus 2, q 2
    a fraction 0.6 node0 g0 build -> node0 g0
    b fraction 0.5 build -> node0 new-0
non-preemptible shares stay within the quota | gpus 2, q 1
    a fraction 0.6 node0 g0 build -> node0 g0
    b fraction 0.5 build -> NonPreemptibleOverQuota
a share beside a whole GPU | gpus 2, q 2
    a gpus 1 node0 -> node0
    b fraction 0.5 build -> node0 new-0
a whole GPU beside a share | gpus 2, q 2
    a fraction 0.5 node0 g1 build -> node0 g1
    b gpus 1 -> node0
three of four shares fit | gpus 2, q 2
    a fraction 0.5 node0 g0 build -> node0 g0
    p0 fraction 0.6 build -> node0 new-0
    p1 fraction 0.5 build -> node0 g0
    p2 fraction 0.5 build -> NonPreemptibleOverQuota
    p3 fraction 0.3 build -> node0 new-0
preemptible shares go over quota | gpus 2, q 1
    a fraction 0.5 node0 g0 build -> node0 g0
    b fraction 0.5 node0 g0 build -> node0 g0
    c fraction 0.5 -> node0 new-0
a preemptible share goes over quota beside a whole GPU | gpus 2, q 1
    a gpus 1 node0 build -> node0
    c fraction 0.5 -> node0 new-0
shares are packed on the node that is in use | gpus 2+2, q 4
    a fraction 0.5 node0 g0 build -> node0 g0
    b fraction 0.2 build -> node0 g0
shares are packed on the GPU with the least left | gpus 2, q 2
    a fraction 0.5 node0 g1 build -> node0 g1
    b fraction 0.7 node0 g0 build -> node0 g0
    c fraction 0.2 build -> node0 g0
parts of two GPUs | gpus 4, q 4
    a fraction 0.5 node0 g0 build -> node0 g0
    b fraction 0.5 x2 build -> node0 g0+new-0
GPU memory fills one GPU before the next | gpus 2 memory 100, q 2
    a memory 40 build -> node0 new-0
    b memory 40 build -> node0 new-0
    c memory 40 build -> node0 new-1
GPU memory on several GPUs | gpus 2 memory 100, q 2
    a memory 50 x2 build -> node0 new-0+new-1
    b memory 25 build -> node0 new-0
more GPU memory than a GPU has | gpus 2 memory 100, q 2
    a memory 101 build -> NoGpuToShare
a limit counts parts | gpus 4, q 1 limit 1
    a fraction 0.5 -> node0 new-0
    b fraction 0.5 -> node0 new-0
    c fraction 0.5 -> OverLimit
a limit of the department counts parts | gpus 4, d 1 limit 1, q 1 under d
    a fraction 0.5 -> node0 new-0
    b fraction 0.5 -> node0 new-0
    c fraction 0.5 -> OverLimit
a non-preemptible share preempts a part of its queue | gpus 1, q 1
    a fraction 0.5 node0 g0 -> PREEMPTED
    b fraction 0.5 node0 g0 build -> node0 g0
    c fraction 0.5 build -> node0 g0
a whole GPU is reclaimed from parts | gpus 1, p 0, q 1
    a fraction 0.5 node0 g0 p -> RECLAIMED
    b fraction 0.5 node0 g0 p -> RECLAIMED
    c gpus 1 -> node0
a whole GPU that may not be preempted beside a share | gpus 2, q 2
    a fraction 0.5 node0 g1 build -> node0 g1
    b gpus 1 build -> node0
non-preemptible GPU memory stays within the quota | gpus 2 memory 100, q 1
    a memory 40 build -> node0 new-0
    b memory 40 build -> node0 new-0
    c memory 40 build -> NonPreemptibleOverQuota
preemptible GPU memory stays within the limit | gpus 2 memory 100, q 1 limit 1
    a memory 40 -> node0 new-0
    b memory 40 -> node0 new-0
    c memory 40 -> OverLimit
GPU memory on an empty cluster | gpus 1 memory 100, q 1
    a memory 50 build -> node0 new-0
a share goes to the node with a shared GPU, its queue with room for more | gpus 2+2, q 3
    a fraction 0.5 node1 g1 build -> node1 g1
    b fraction 0.5 build -> node1 g1
no share of MIG devices that stand for GPUs | gpus 2 product A100-MIG-1g.5gb, q 1
    a fraction 0.1 -> NoGpuToShare
a whole GPU beside MIG devices is given | gpus 1 mig-1g.10gb 2, q 1
    a gpus 1 build -> node0
""")

#: Where pods are spread. KAI opens a GPU of the other node in the last, and holds two for what one has room for.
SPREAD_CASES = cases("""
to the GPU with the most left, there is no other | gpus 2, q 2
    a fraction 0.5 node0 g1 build -> node0 g1
    b fraction 0.7 node0 g0 build -> node0 g0
    c fraction 0.2 build -> node0 g1
to the GPU with the most left, beside free ones | gpus 8, q 8
    a fraction 0.5 node0 g1 build -> node0 g1
    b fraction 0.7 node0 g0 build -> node0 g0
    c fraction 0.2 build -> node0 g1
to a GPU that is open before an empty node, unlike KAI | gpus 2+2, q 2
    a fraction 0.5 node0 g0 build -> node0 g0
    b fraction 0.2 build -> node0 g0
""")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_manifests_of_kais_cases_come_out_as_there(tmp_path: Path, case: Case) -> None:
    assert outcome(case, tmp_path) == case.expected


@pytest.mark.parametrize("case", SPREAD_CASES, ids=lambda case: case.title)
def test_shares_are_spread(tmp_path: Path, case: Case) -> None:
    assert outcome(case, tmp_path, SPREAD) == case.expected
