"""With policies, nodes that are looked at again after charges rank as they do when all are looked at anew.

So they do where each class is looked at by itself, and not together with those that only policies tell apart. A policy
that scores as a built-in rule does, and replaces it, changes no decision.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from kaicore.policy import Facts, Flags, Ints, Nodes, Policy, PolicyBand, Work
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import PlacementStrategy
from kaicore.rules.engine.placement.feasible_nodes import FeasibleNodes
from kaicore.rules.engine.placement.placer import Placer
from kaicore.rules.engine.policies.builtin import PackedNodes, SpreadPods
from kaicore.rules.engine.policies.class_policies import ClassPolicies
from kaicore.rules.engine.policies.cycle_policies import guarded
from kaicore.rules.engine.session.session import Session
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.numa.columns import Ints as Rows

from tests.given.cluster.factory import amounts, pod
from tests.given.examples import FEW
from tests.given.work.policies import WithPolicies

GPU, CPU = "nvidia.com/gpu", "cpu"
SEEDS = range(1 if FEW else 4)
#: Of clusters that are decided on several times; and rounds of changes to one.
NODES, PODS, ROUNDS = (12, 20, 6) if FEW else (24, 40, 12)


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


class Wanted(Policy):
    """Of the pods' label: a zone that they want, and one that they do not get."""

    name, pod_labels, node_labels = "wanted", ("wants",), ("zone",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.where(nodes.labels("zone") == f"z{work.labels.get('wants', '')}", 300, 100)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        refused = {"1": "z2", "3": "z0"}.get(work.labels.get("wants", ""), "")
        return nodes.labels("zone") != refused


class Level(Policy):
    """The more of a node's zone is in use, the worse."""

    name, live, node_labels = "level", True, ("zone",)

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        _, zones = np.unique(nodes.labels("zone"), return_inverse=True)
        used = np.bincount(zones, weights=nodes.used(CPU)).astype(np.int64)
        return 1000 - np.minimum(used[zones] // 4000, 1000)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.used(GPU) < 6


class LevelByZone(Level):
    """The same, which says how far a charge reaches."""

    name, within = "level-by-zone", "zone"


class Third(Policy):
    """In place of fullness: zones in an order, below and above what the built-in rule says."""

    name, node_labels, band = "third", ("zone",), PolicyBand.FULL

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        _, zones = nodes.domains("zone")
        return (1 - zones) * 9000


class ThirdAgain(Third):
    live = True


class Few(Policy):
    """Nodes with few pods, each by itself."""

    name, live, within, tenants, band = "few", True, "", True, PolicyBand.FULL

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return -nodes.pods_of(work.namespace)


def made_of(kinds: tuple[type[Policy], ...], random: np.random.Generator) -> WithPolicies:
    made = WithPolicies(*kinds)
    for number in range(40):
        made.add_node(f"n{number:02}", cpu=int(random.integers(4, 64)), gpu=8, labels={"zone": f"z{number % 3}"})
    for number in range(24):
        cpu, gpu, labels = int(random.integers(1, 9)), int(random.integers(0, 3)), {"wants": str(number % 5)}
        made.add_pod(pod(f"p{number}", cpu=cpu if number % 2 else 2, gpu=gpu if number % 2 else 1, labels=labels))
    return made


@contextmanager
def each_class_by_itself() -> Iterator[None]:
    by_itself = property(lambda _: object(), lambda *_: None)
    no_other = patch.object(FeasibleNodes, "with_policies", lambda *_: None)
    with no_other, patch.object(ClassPolicies, "alike", by_itself, create=True):
        yield


def ranked(placer: Placer, uids: list[str], made: WithPolicies) -> list[tuple[Rows, int | None]]:
    found = []
    for uid in uids:
        feasible = placer.feasible_nodes(placer.class_of(made.state.pods[uid]))
        found.append((feasible.ranked_rows(), feasible.best(created_at=0)))
    return found


@pytest.mark.parametrize(
    "kinds", [(Zones, Wanted), (Wanted, Free), (Level,), (Zones, Free, Level), (Zones, Free, LevelByZone, Few)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_looked_at_again_rank_as_rows_looked_at_anew(kinds: tuple[type[Policy], ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    made = made_of(kinds, random)
    entered = guarded(made.book.policies(made.config.policies), made.book.guard, but=frozenset())
    given = cycle_input(made.state, made.config, now=made.now, policies=entered)
    placers = Session(given, made.config).placers
    placer, uids = placers.now, sorted(made.state.waiting)
    for _ in range(ROUNDS):
        before = placer.statement.savepoint()
        for uid in random.permutation(uids)[: int(random.integers(1, 30))].tolist():
            placer.place(made.state.pods[uid])
        if random.random() < 0.5:
            placer.statement.rollback(int(random.integers(before, placer.statement.savepoint() + 1)))
        again = ranked(placer, uids, made)
        with each_class_by_itself():
            anew = ranked(placers.on(np.ones_like(given.columns.present)), uids, made)
        for (rows, best), (expected, first) in zip(again, anew, strict=True):
            assert best == first
            assert rows.tolist() == expected.tolist()
            assert best is None or rows[0] == best


@pytest.mark.parametrize("seed", range(2))
def test_live_policy_that_says_how_far_charges_reach_decides_as_one_that_does_not(seed: int) -> None:
    said, unsaid = (made_of((kind,), np.random.default_rng(seed)) for kind in (LevelByZone, Level))
    assert said.nodes_of() == unsaid.nodes_of()


def busy_cluster(kinds: tuple[type[Policy], ...], strategy: PlacementStrategy, seed: int) -> WithPolicies:
    """Nodes of three kinds, some with more in use than they have, and pods with and without devices and zones."""
    random, made = np.random.default_rng(seed), WithPolicies(*kinds)
    made.config = msgspec.structs.replace(made.config, placement_strategy=strategy, gpu_sharing=True)
    for number in range(NODES):
        zone, labels = amounts(cpu=int(random.integers(4, 33)), memory=64, gpu=4), {"zone": f"z{number % 5 % 3}"}
        if number % 3:
            made.add_node(f"n{number:02}", zone, zone, policy="restricted", labels=labels)
        else:
            gpu = 8 * (number % 2)
            made.add_node(f"n{number:02}", cpu=int(random.integers(4, 64)), memory=128, gpu=gpu, labels=labels)
        for other in range(int(random.integers(0, 4))):
            name, cpu = f"runs-{number}-{other}", int(random.integers(1, 24))
            made.add_pod(pod(name, cpu=cpu, memory=2, gpu=other % 2, node_name=f"n{number:02}", phase="Running"))
    for number in range(PODS):
        spec = {"gpu_share": GpuShare(milli=400)} if number % 7 == 0 else {"gpu": int(random.integers(0, 3))}
        spec["labels"] = {"wants": str(number % 4)}
        made.add_pod(pod(f"p{number:02}", cpu=int(random.integers(0, 9)), memory=number % 3, **spec))
    return made


def decided_by(made: WithPolicies) -> list[object]:
    """All that a cycle decides about placements, in order; keys of classes aside, which name what policies know."""
    proposal = made.decided()
    assert proposal.policies_left_out == ()
    waiting = sorted(entry.pod.name for entry in made.state.pods.values() if entry.pod.uid in made.state.waiting)
    return [*(msgspec.structs.replace(one, pod_class="") for one in proposal.result.placements), tuple(waiting)]


@pytest.mark.parametrize("seed", SEEDS)
def test_classes_that_policies_tell_apart_fare_together_as_each_by_itself(seed: int) -> None:
    together, alone = (busy_cluster((Wanted, Free), PlacementStrategy.BINPACK, seed) for _ in range(2))
    decided = decided_by(together)
    with each_class_by_itself():
        assert decided == decided_by(alone)
    assert together.replayed().differences == []


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_refuse_when_asked_refuse_classes_together_as_each_by_itself(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes(_: FeasibleNodes, row: int, __: int) -> bool:
        return int(placer.statement.columns.used[row].sum()) % 3 < 2

    monkeypatch.setattr(FeasibleNodes, "_takes_by_zones", takes)
    found = list[list[str]]()
    for by_itself in (False, True):
        made = made_of((Wanted, Free), np.random.default_rng(seed))
        entered = guarded(made.book.policies(made.config.policies), made.book.guard, but=frozenset())
        placer = Session(cycle_input(made.state, made.config, now=made.now, policies=entered), made.config).placers.now
        with each_class_by_itself() if by_itself else nullcontext():
            given = [placer.place(made.state.pods[uid]) for uid in sorted(made.state.waiting) * 3]
        found.append([placer.statement.columns.names[one.row] if one else "" for one in given])
    assert found[0] == found[1] != [""] * 72


@pytest.mark.parametrize("strategy", PlacementStrategy)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_built_in_rule_named_in_the_settings_decides_as_it_does_by_itself(
    strategy: PlacementStrategy, seed: int
) -> None:
    own = {PlacementStrategy.BINPACK: PackedNodes, PlacementStrategy.SPREAD: SpreadPods}[strategy]
    clusters = [busy_cluster(kinds, strategy, seed) for kinds in ((), (own,))]
    other = SpreadPods if own is PackedNodes else PackedNodes
    clusters.append(busy_cluster((other,), strategy, seed))
    by_itself, named, opposite = (decided_by(made) for made in clusters)
    assert named == by_itself != opposite
    assert clusters[1].replayed().differences == []


@pytest.mark.parametrize("strategy", PlacementStrategy)
@pytest.mark.parametrize("seed", SEEDS)
def test_fullness_said_once_decides_as_the_same_said_after_each_charge(strategy: PlacementStrategy, seed: int) -> None:
    clusters = [busy_cluster((Wanted, kind), strategy, seed) for kind in (Third, ThirdAgain)]
    once, again = (decided_by(made) for made in clusters)
    assert once == again
