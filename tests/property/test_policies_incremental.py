"""With policies, nodes that are looked at again after charges rank as they do when all are looked at anew."""

import numpy as np
import pytest
from kaicore.policy import Facts, Flags, Ints, Nodes, Policy, PolicyBand, Work
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.policies.cycle_policies import guarded
from kaicore.rules.engine.session.session import Session
from kaicore.rules.numa.columns import Ints as Rows

from tests.factory import pod
from tests.policies import WithPolicies

GPU, CPU = "nvidia.com/gpu", "cpu"


class Zones(Policy):
    name, node_labels = "zones", ("zone",)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.labels("zone") != ("z0" if work.gpus else "z1")

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.where(nodes.labels("zone") == "z2", 700, 0)


class Free(Policy):
    name, band = "free", PolicyBand.ROOM_TAKEN

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return nodes.free(CPU) // 1000 % 7


class Level(Policy):
    """The more of a node's zone is in use, the worse."""

    name, live, node_labels = "level", True, ("zone",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        _, zones = np.unique(nodes.labels("zone"), return_inverse=True)
        used = np.bincount(zones, weights=nodes.used(CPU)).astype(np.int64)
        return 1000 - np.minimum(used[zones] // 4000, 1000)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.used(GPU) < 6


def made_of(kinds: tuple[type[Policy], ...], random: np.random.Generator) -> WithPolicies:
    made = WithPolicies(*kinds)
    for number in range(40):
        made.add_node(f"n{number:02}", cpu=int(random.integers(4, 64)), gpu=8, labels={"zone": f"z{number % 3}"})
    for number in range(24):
        made.add_pod(pod(f"p{number}", cpu=int(random.integers(1, 9)), gpu=int(random.integers(0, 3))))
    return made


def ranked(placer: Placer, uids: list[str], made: WithPolicies) -> list[tuple[Rows, int | None]]:
    found = []
    for uid in uids:
        feasible = placer.feasible_nodes(placer.class_of(made.state.pods[uid]))
        found.append((feasible.ranked_rows(), feasible.best(created_at=0)))
    return found


@pytest.mark.parametrize("kinds", [(Zones,), (Free,), (Level,), (Zones, Free, Level)])
@pytest.mark.parametrize("seed", range(4))
def test_rows_looked_at_again_rank_as_rows_looked_at_anew(kinds: tuple[type[Policy], ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    made = made_of(kinds, random)
    entered = guarded(made.book.policies(made.config.policies), made.book.guard, but=frozenset())
    given = cycle_input(made.state, made.config, now=made.now, policies=entered)
    placers = Session(given, made.config).placers
    placer, uids = placers.now, sorted(made.state.waiting)
    for _ in range(12):
        before = placer.statement.savepoint()
        for uid in random.permutation(uids)[: int(random.integers(1, 30))].tolist():
            placer.place(made.state.pods[uid])
        if random.random() < 0.5:
            placer.statement.rollback(int(random.integers(before, placer.statement.savepoint() + 1)))
        again, anew = ranked(placer, uids, made), ranked(placers.on(np.ones_like(given.columns.present)), uids, made)
        for (rows, best), (expected, first) in zip(again, anew, strict=True):
            assert best == first
            assert rows.tolist() == expected.tolist()
            assert best is None or rows[0] == best
