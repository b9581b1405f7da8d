"""Cases of Kueue's and KAI-Scheduler's own tests of topology assignments, restated.

Sources: Kueue, pkg/cache/scheduler, August 2026 (for 0.20); KAI-Scheduler, pkg/scheduler/actions (allocate and
integration_tests), after v0.17.0.

A case is texts: what it is about; the domains, with how many pods each of their nodes has room for; what is asked; how
many pods each node gets, or each domain where the topology ends above the nodes. `-` is a refusal.

Asked are a number of pods, of what size, and where: `r0` is required in one of the widest domains, `p1` preferred one
level below, `any` anywhere; `2@1` are slices of two. `&` is between a leader and its workers, `;` between sets by
themselves; what is before `>` is asked of several sets together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from kaicore.rules.topology.placing import request as asking
from kaicore.rules.topology.placing.search import search

from tests.given.cluster.rooms import MemoryRoom, tree_of


class Case(NamedTuple):
    """One case.

    Attributes:
        expected: what the peer decides.
        ours: what is decided here; empty where it is the same.
        likes: how much each node is preferred.
        held: how many pods of the set each node has already; they have been taken off the room.
    """

    about: str
    rooms: str
    asked: str
    expected: str
    ours: str = ""
    likes: str = ""
    held: str = ""


SMALL = "b1.r1:1 b1.r2:1,1,1 b2.r1:1 b2.r2:2"
LARGE = "b1.r1:10 b1.r2:10,10,10 b2.r1:10 b2.r2:20"
SCATTERED = "b1.r1:1,4,1 b2.r1:1,2"
SUB_BLOCKS = "b1.sb1.r1:18 b1.sb1.r2:8 b1.sb2.r3:15 b1.sb2.r4:9,7"

AS_THERE = [
    Case("one rack with four nodes before two racks with two", "b1.r1:2 b1.r2:2 b1.r3:1,1,1,1", "4 r0", "0 0 1,1,1,1"),
    Case("one node that takes both", "b1.r1:1,2,1", "2 r0", "0,2,0"),
    Case("anywhere: gaps before the node with room for four", SCATTERED, "6 any", "1,1,1 1,2"),
    Case("anywhere: the first of the smallest gaps", SMALL, "1 any", "1 0,0,0 0 0"),
    Case("a block of four nodes", "b1.r1:1,1 b1.r2:1,1 b2.r1:1,1 b2.r2:1,1", "4 r0", "1,1 1,1 0,0 0,0"),
    Case("the only rack for three", SMALL, "3 r1", "0 3 0 0"),
    Case("the rest in the smallest block", "b1:2 b2:1 b3:4", "5 p0", "0 1 4"),
    Case("the tightest rack for two", SMALL, "2 r1", "0 0 0 2"),
    Case("too many for any rack", SMALL, "4 r1", "-"),
    Case("the tighter block", SMALL, "1 r0", "0 0 1 0"),
    Case("all of a block", SMALL, "4 r0", "1 3 0 0"),
    Case("a pod larger than any node", SMALL, "1*4 r0", "-"),
    Case("too many for any block", SMALL, "5 r0", "-"),
    Case("the tightest rack where all take more", "b1.r1:9 b1.r2:9,9,9 b2.r1:9 b2.r2:36", "4 r1", "4 0 0 0"),
    Case("no rack takes all, a block does", SMALL, "4 p1", "1 3 0 0"),
    Case("no block takes all: racks", SMALL, "6 p1", "1 3 0 2"),
    Case("no block takes all: blocks", SMALL, "6 p0", "1 3 0 2"),
    Case("the whole topology is too small", SMALL, "10 p0", "-"),
    Case("two sets in turn for a node with room for one", ":1", "1 r0 ; 1 r0", "1 ; -"),
    Case("slices on nodes", "b1.r1:3,3,3", "6 r0 2@2", "2,2,2"),
    Case("slices: largest first, then the tightest", "b1.r1:4,6,5,2", "12 r0 2@2", "4,6,0,2"),
    Case("slices: nodes of just their size", "b1.r1:2,3,2", "4 r0 2@2", "2,0,2"),
    Case(
        "slices in racks: the block with less room beside",
        "b1.r1:1,1 b1.r2:1,1,1 b2.r1:1,1",
        "4 r0 2@1",
        "1,1 1,1,0 0,0",
    ),
    Case("slices in racks of several blocks", SMALL, "4 p0 2@1", "0 1,1,0 0 2"),
    Case("slices: the last node is the tightest", "b1.r1:2,4,3", "6 r0 2@2", "2,4,0"),
    Case("slices over two blocks", "b1.r1:3,3,3 b2.r1:6", "12 p0 3@2", "3,3,0 6"),
    Case("too many slices for the racks", "b1.r1:2 b1.r2:2 b1.r3:2", "6 r0 3@1", "-"),
    Case("room for one of two slices", "b1.r1:3 b1.r2:1 b1.r3:1 b1.r4:1", "6 r0 3@1", "-"),
    Case("racks of a block must take whole slices", "b1.r1:2 b1.r2:2 b1.r3:2 b2.r4:3 b2.r5:3", "6 r0 3@1", "0 0 0 3 3"),
    Case("slices anywhere", "b1.r1:3,3,3", "6 any 2@2", "2,2,2"),
    Case("slices anywhere, in two blocks", SCATTERED, "6 any 2@2", "0,4,0 0,2"),
    Case("slices in any racks", SMALL, "4 any 2@1", "0 1,1,0 0 2"),
    Case("sets in turn over the same domains", "b1:2 b2:2 b3:2", "3 p0 ; 3 p0", "2 1 0 ; 0 1 2"),
    Case("one in a block, one anywhere", LARGE, "8 r0 ; 2 any", "0 0,0,0 8 0 ; 0 0,0,0 2 0"),
    Case("two layers that the small nodes cannot fill", "b1.r1:3,3,0", "6 r0 6@1 2@2", "-"),
    Case("two layers: a small node spoils a rack", "b1.r1:7,4 b1.r2:7,3", "16 r0 8@1 4@2", "-"),
    Case("two layers: nodes would do, racks do not", "b1.r1:4 b1.r2:4 b1.r3:4", "12 r0 6@1 2@2", "-"),
    Case("the first of equal nodes", "b1.r1:1,1", "1 r2", "1,0"),
    Case("leader: the one block for both", "b1:2/2 b2:5/4 b3:2/2", "1*1/0 r0 & 4*1/1 r0", "0 1 0 & 0 4 0"),
    Case("leader: takes the room that no worker needs", "r1:2,4,3", "1 r0 & 4*2 r0", "0,0,1 & 1,2,1"),
    Case("leader: the same with slices", "r1:2,4,3", "1 r0 & 8 r0 2@1", "0,0,1 & 2,4,2"),
    Case("leader: workers over two domains", ":8,3", "1 p0 & 5*2 p0", "0,1 & 4,1"),
    Case("leader: nodes that suit only one of the two", ":1/0,0/1", "1*1/0 any & 1*0/1 any", "1,0 & 0,1"),
    Case("leader: nodes of one slice's rack", "r1:1/0,0/1", "1*1/0 r0 1@0 & 1*0/1 r0 1@0", "1,0 & 0,1"),
    Case("leader: a block that both fill", "b1:2/2 b2:8/8 b3:2/2", "1*1/0 r0 & 4*1/2 r0", "0 1 0 & 0 4 0"),
    Case("leader: no block for both", "b1:1/0 b2:4/4", "1*1/1 r0 & 4*1/1 r0", "- & -"),
    Case("leader: the tight block is too small by one", "b1:11/8 b2:4/4", "1*1/0 r0 & 4*1/1 r0", "1 0 & 4 0"),
    Case("leader: fits nowhere", "b1:4/4 b2:4/4", "1*10/0 r0 & 4*1/1 r0", "- & -"),
    Case(
        "leader: fills a node", "b1.r1:2/1,2/1,2/1 b2.r4:1/1 b2.r5:2/1", "1*2/0 r0 & 2*1/1 r0", "1,0,0 0 0 & 0,1,1 0 0"
    ),
    Case("leader: alike, beside a worker", "b1.r1:1,1 b1.r2:1,1 b2.r3:1,1", "1 r0 & 2 r0", "1,0 0,0 0,0 & 0,1 1,0 0,0"),
    Case("leader: slices on the fewest nodes", "r1:9/4,9/2,9/2,9/2", "1*1/0 p0 & 6*1/1 p0 2@1", "1,0,0,0 & 4,2,0,0"),
    Case("leader: the tighter of two zones", "z1.r1:10 z2.r2:6", "1 r0 1@1 & 5 r0 1@1", "0 1 & 0 5"),
]
BALANCED = [
    Case("two racks of a block", "b1.r1:15 b1.r2:15", "25 p1", "13 12"),
    Case("the two largest nodes", "b1.r1:15,13,10", "23 p1", "12,11,0"),
    Case("slices: the nodes that are filled best", "b1.r1:20,15,10", "25 p1 5@2", "0,15,10"),
    Case("the block with like racks", "b1.r1:20,10 b2.r2:15,15", "22 p1", "0,0 11,11"),
    Case("not over two blocks", "b1.r1:14,11 b2.r2:15,10", "25 p1", "14,11 0,0"),
    Case("one rack before several", "b1.r1:15 b1.r2:15 b1.r3:15,15", "25 p1 5@2", "0 0 15,10"),
    Case("slices two levels below", SUB_BLOCKS, "20 p1 2@3", "0 0 10 8,2"),
    Case(
        "slices in racks, the widest level",
        "b1.sb1.r1:18 b1.sb1.r2:8 b1.sb2.r3:15 b1.sb2.r4:15",
        "20 p1 2@2",
        "0 0 10 10",
    ),
    Case("slices at the level itself", "b1.r1:15,13,10 b1.r2:20,8", "22 p2 2@2", "0,12,10 0,0"),
    Case("nodes", "b1.r1:20,8 b1.r2:15,13,10", "22 p2", "0,0 11,11,0"),
    Case("three like nodes before two", "b1.r1:10,5 b1.r2:5,5,5", "15 p1", "0,0 5,5,5"),
    Case("three like nodes before two others", "b1.r1:8,8,8 b1.r2:16,8", "24 p1", "8,8,8 0,0"),
    Case("over the widest level", "r1:21,9 r2:11,10,10", "23 p0", "12,0 11,0,0"),
    Case(
        "domains below the share do not count",
        "b1.r1:5,5 b1.r2:5,5 b2.r3:10,4,4,4 b2.r4:5",
        "20 p1",
        "5,5 5,5 0,0,0,0 0",
    ),
    Case("leader: no balance, the fewest", "b1.r1:3 b1.r2:3 b1.r3:8 b2.r1:11", "1*5 p0 & 7 p0", "0 0 1 0 & 3 1 3 0"),
    Case("the first of equal nodes", "b1.r1:1,1", "1 r2", "1,0"),
    Case("KEP-2724: one rack that takes all", "b1.r1:20,10 b2.r2:15,15", "20 p1", "20,0 0,0"),
    Case("KEP-2724: slices are counted whole", "b1.r1:20 b1.r2:18", "25 p0 5@1", "15 10"),
    Case("a required level is filled as by BestFit", "b1.r1:15 b1.r2:13 b1.r3:10", "23 r0", "15 0 8"),
    Case("no balance: as by BestFit", "b1.r1:3 b2.r2:3", "5 p1", "3 2"),
]
#: What Kueue decides and what is decided here, with why.
OTHERWISE = [
    Case("the fuller block comes before the first of equal nodes", SMALL, "1 r2", "1 0,0,0 0 0", "0 0,0,0 1 0"),
    Case("the fuller block comes before the first of equal racks", SMALL, "1 r1", "1 0 0 0", "0 0 1 0"),
    Case("two sets, each in the fuller block", LARGE, "2 r1 ; 1 r1", "2 0 0 0 ; 1 0 0 0", "0 0 2 0 ; 0 0 1 0"),
    Case("a slice is on the fewest nodes", "b1.r1:1,4 b1.r2:3,4", "8 r0 4@1", "1,3 3,1", "0,4 0,4"),
    Case("the fewest nodes, with two layers", "b1.r1:1,4 b1.r2:3,4", "8 r0 4@1 2@2", "0,4 2,2", "0,4 0,4"),
]
OTHERWISE_BALANCED = [
    Case(
        "a leader, and slices beside it on the largest first",
        "b1.r1:20,15,12",
        "1 p1 & 25 p1 5@2",
        "0,0,1 & 0,15,10",
        "0,0,1 & 20,0,5",
    ),
    Case("a rack's part is on the fewest nodes", SUB_BLOCKS, "20 p1 2@2", "0 0 10 3,7", "0 0 10 9,1"),
    Case("a leader is one of the pods in balance", "b1.r1:6,5", "1 p1 & 10 p1", "1,0 & 5,5", "0,1 & 6,4"),
    Case("the same with more room", "b1.r1:7,5", "1 p1 & 10 p1", "1,0 & 5,5", "0,1 & 6,4"),
]
#: With how much each node is preferred, and what is left of nodes that have pods of the set already.
PREFERRING = [
    Case("the preferred rack", "r1:1 r2:1", "1 p0", "0 1", likes="0,9"),
    Case("the sum of two preferences", "b1.r1:1 b1.r2:1 b2.r1:1", "1 p1", "1 0 0", likes="9,5,0"),
    Case("the preferred node, and the tighter one", ":8,2", "1 p0", "0,1", likes="0,9"),
    Case("a preferred rack that is too small", "r1:2 r2:4,4", "4 r0", "0 4,0", likes="9,0,0"),
    Case("both racks of a block, the preferred one filled", "r1.s1:2 r1.s2:4", "4 p1", "0 4", likes="9,0"),
    Case("preferred nodes first, then the largest", ":2,1,2,1", "5 p0", "2,1,2,0", likes="9,9,0,0"),
    Case("the rest on one node before gaps", ":2,1,2,1,1", "5 any", "2,1,0,1,1", "2,1,2,0,0", likes="9,9,0,0,0"),
    Case("slices on preferred nodes first", ":2,1,2,2,1", "4 p0 2@0", "2,0,2,0,0", likes="9,9,0,0,0"),
]
GROWING = [
    Case("two more beside two", ":0,2,2", "2 any", "0,2,0", held="2,0,0"),
    Case("beside those that run before on one other node", ":1,1,2", "2 any", "0,0,2", "1,1,0", held="1,1,0"),
    Case("workers beside a leader that stays", ":0,0,2", "2 any", "0,0,2", held="2,1,0"),
]
KAI = [
    Case("a rack for both", "r1:0,1 r2:1,1", "2 r0", "0,0 1,1"),
    Case("the other part of a rack", "r1.s1:1 r1.s2:2", "2 r1", "0 2"),
    Case("the rack that takes all", "r1.s1:1 r1.s2:2 r2.s1:2 r2.s2:2", "4 r0", "0 0 2 2"),
    Case("pods are together before a node is filled up", "r1.s1:1 r1.s2:2", "2 r0", "1 1", "0 2"),
    Case("no rack for all", "r1.s1:1 r1.s2:2 r2.s1:1 r2.s2:2", "4 r0", "-"),
    Case("a preferred rack", "r1:1 r2:2", "2 p0", "0 2"),
    Case("no preferred rack for all", "r1:1 r2:1", "2 p0", "1 1"),
    Case("a required rack, no preferred part of it", "r1.s1:0 r1.s2:1 r2.s1:1 r2.s2:1", "2 r0 p1", "0 0 1 1"),
    Case("a required rack, as many of a part as can be", "r1.s1:1,1 r1.s2:1,1", "3 r0 p1", "1,0 1,1", "1,1 1,0"),
    Case("the fuller rack", "r1:10 r2:9", "2 r0", "0 2"),
    Case(
        "the part that is nearly full", "z1.s1.r1:0,0 z1.s1.r2:0,1 z1.s2.r3:1,1 z1.s2.r4:1,1", "1 p1", "0,0 0,1 0,0 0,0"
    ),
    Case(
        "the fullest rack before the fullest spine",
        "s1.r1:1 s1.r2:1 s1.r3:1 s2.r4:1,1",
        "1 p1",
        "0 0 0 1,0",
        "1 0 0 0,0",
    ),
    Case("a zone, and as few racks as can be", "z1.r1:2 z1.r2:2 z2.r3:2", "3 r0 p1", "2 1 0"),
    Case("the rack where others run", "r1:2 r2:3", "2 r0", "2 0"),
    Case("pods too large for the nodes of a rack", "r1:1,1 r2:2", "2*2 r0", "-"),
    Case("a region of three levels", "w.a.r1:2 w.a.r2:2 w.b.r3:2 e.a.r4:2", "4 r0 p2", "0 2 2 0", "2 2 0 0"),
    Case("a rack is full", "r1:0,0 r2:2", "2 r0", "0,0 2"),
    Case("CPUs as well as GPUs", "r1:4000/2 r2:2000/2", "2*2000/1 r0", "2 0"),
    Case("room enough, in pieces", "r1:2 r2:2 r3:2 r4:2", "4 r0", "-"),
    Case(
        "a rack for each part, a zone for both",
        "z1.r1:0 z1.r2:1 z2.r3:1 z2.r4:1",
        "r0 > 1 r1 & 1 r1",
        "0 0 1 0 & 0 0 0 1",
    ),
    Case("both preferred", "z1.r1:1 z1.r2:2 z2.r3:2 z2.r4:2", "p0 > 2 p1 & 2 p1", "0 0 2 0 & 0 0 0 2"),
    Case("required in a preferred zone", "z1.r1:1 z1.r2:2 z2.r3:2 z2.r4:2", "p0 > 2 r1 & 2 r1", "0 0 2 0 & 0 0 0 2"),
    Case("elastic parts, each on one node", "r1:2 r2:2", "any > 2 p0 & 2 p0", "1 1 & 1 1", "2 0 & 0 2"),
]


def placed(case: Case, strategy: asking.TopologyStrategy) -> str:
    """Place the sets of a case; returns the pods on each node as the case has them."""
    domains, free = _rooms(case.rooms)
    tree = tree_of([(*domain, f"n{number:03}") for number, domain in enumerate(domains)])
    sets, sizes = _asked(case.asked)
    classes = [number for number, (pods, _) in enumerate(sets) for _ in pods]
    preferences = {0: [int(one) for one in case.likes.split(",")]} if case.likes else None
    room = MemoryRoom(np.array(free), np.array(sizes), classes, preferences=preferences)
    there = np.array([int(one) for one in case.held.split(",")]) if case.held else None
    if together := "&" in case.asked:
        before, _, _ = case.asked.rpartition(">")
        around = _constraint(before.split() or case.asked.split()[1:2])
        children = tuple(
            asking.SetRequest(f"s{number}", pods, constraint=one if one.slices or before else None)
            for number, (pods, one) in enumerate(sets)
        )
        found = [search(asking.SetRequest("group", children=children, constraint=around), tree, room, strategy)] * len(
            sets
        )
    else:
        found = [
            search(asking.SetRequest("set", pods, constraint=one, held=there), tree, room, strategy)
            for pods, one in sets
        ]
    texts = [shown(one, pods, domains) for (pods, _), one in zip(sets, found, strict=True)]
    return (" & " if together else " ; ").join(texts)


def shown(found: asking.Placed | asking.Refused, pods: Iterable[int], domains: Sequence[tuple[str, ...]]) -> str:
    """Return how many of the pods each node has, the nodes of a domain together; `-` where they found no place."""
    if isinstance(found, asking.Refused):
        return "-"
    on = Counter(found.rows[pod] for pod in pods)
    by_domain: dict[tuple[str, ...], list[str]] = {}
    for row, domain in enumerate(domains):
        by_domain.setdefault(domain, []).append(str(on[row]))
    return " ".join(",".join(counts) for counts in by_domain.values())


def _rooms(text: str) -> tuple[list[tuple[str, ...]], list[list[int]]]:
    domains, free = [], []
    for domain in text.split():
        name, _, nodes = domain.rpartition(":")
        for node in nodes.split(","):
            domains.append(tuple(name.split(".")) if name else ())
            free.append([int(amount) for amount in node.split("/")])
    return domains, free


def _asked(text: str) -> tuple[list[tuple[tuple[int, ...], asking.LevelConstraint]], list[list[int]]]:
    sets: list[tuple[tuple[int, ...], asking.LevelConstraint]] = []
    sizes, first = [], 0
    for one in text.rpartition(">")[2].replace("&", ";").split(";"):
        count, *constraint = one.split()
        pods, _, size = count.partition("*")
        sets.append((tuple(range(first, first + int(pods))), _constraint(constraint)))
        sizes.append([int(amount) for amount in (size or "1").split("/")])
        first += int(pods)
    return sets, sizes


def _constraint(words: Sequence[str]) -> asking.LevelConstraint:
    levels = {word[0]: int(word[1:]) for word in words if word[0] in "rp"}
    slices = tuple(
        asking.Slices(int(of), required=int(at)) for of, at in (word.split("@") for word in words if "@" in word)
    )
    return asking.LevelConstraint(
        levels.get("r", asking.NO_LEVEL), levels.get("p", asking.NO_LEVEL), "any" in words, slices
    )


def _as_said(found: str, said: str) -> str:
    """Return what was found with the sum of a domain's nodes where a case has one number for several."""
    pairs = zip(found.split(), said.split(), strict=True)
    return " ".join(
        one if one in ("-", "&", ";") or "," in other else str(sum(map(int, one.split(",")))) for one, other in pairs
    )


@pytest.mark.parametrize(
    ("case", "strategy"),
    [(case, asking.TopologyStrategy.BEST_FIT) for case in (*AS_THERE, *OTHERWISE, *PREFERRING, *GROWING)]
    + [(case, asking.TopologyStrategy.BALANCED) for case in (*BALANCED, *OTHERWISE_BALANCED)]
    + [(case, asking.TopologyStrategy.BIN_PACK) for case in KAI],
    ids=lambda value: getattr(value, "about", str(value)),
)
def test_pods_are_where_the_peer_puts_them_or_where_the_case_says(
    case: Case, strategy: asking.TopologyStrategy
) -> None:
    found = _as_said(placed(case, strategy), case.ours or case.expected)
    assert found == (case.ours or case.expected)
    assert found != case.expected or not case.ours


#: A node has failed: what is left, layers of slices, how many pods each node keeps, how many are lost, where they go.
REPLACED = [
    ("not in the next rack, though its name begins alike", "a:0,0 ab:1", "", (0, 1, 0), 1, "-"),
    (
        "in the rack of the broken slice, where it is tightest",
        "r1:0,0 r2:0,1,2",
        "2@0",
        (1, 1, 0, 1, 0),
        1,
        "0,0 0,1,0",
    ),
    ("no room in the rack of the broken slice", "r1:1,0 r2:0,0", "2@0", (1, 1, 0, 1), 1, "-"),
    (
        "in the narrowest domain that broke, not in the widest",
        "r1.s1:4,4 r1.s2:0,8 r2.s3:4,4 r2.s4:4,4",
        "8@0 4@1 2@2",
        (2, 2, 0, 2, 2, 2, 2, 2),
        2,
        "0,0 0,2 0,0 0,0",
    ),
    ("a pair that no node of its rack takes", "r1:2,2 r2:0,1,1", "4@0 2@1", (2, 2, 0, 2, 0), 2, "-"),
]


@pytest.mark.parametrize("case", REPLACED, ids=lambda case: case[0])
def test_what_a_failed_node_had_goes_where_kueue_puts_it(case: tuple[str, str, str, tuple[int, ...], int, str]) -> None:
    _, rooms, layers, kept, lost, expected = case
    domains, free = _rooms(rooms)
    tree = tree_of([(*domain, f"n{number:03}") for number, domain in enumerate(domains)])
    slices = tuple(
        asking.Slices(int(of), required=int(at)) for of, at in (layer.split("@") for layer in layers.split())
    )
    # The failed node is the third one; in the order of ranks its pods come after those of the nodes before it.
    failed = 2 if layers else 0
    rows = [row for row, count in enumerate(kept) for _ in range(lost if row == failed else count)]
    ranks = tuple(rank for rank, row in enumerate(rows) if row == failed)
    request = asking.SetRequest(
        "set",
        tuple(range(lost)),
        constraint=asking.LevelConstraint(slices=slices, unconstrained=True)
        if slices
        else asking.LevelConstraint(required=0),
        held=np.array(kept),
        ranks=ranks,
        held_ranks={rank: row for rank, row in enumerate(rows) if rank not in ranks},
    )
    found = search(request, tree, MemoryRoom(np.array(free), np.array([[1]]), [0] * lost))
    assert shown(found, range(lost), domains) == expected
