"""Each built-in rule of the score table, named in the settings like an operator's policy, decides as it does by itself.

So the rules see over the interface of policies all that they go by. Rules that turn a built-in one around decide
otherwise, so what they see matters to the clusters of these tests.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from kaicore.policy import Facts, Flags, Ints, NodeFinding, Nodes, Policy, PolicyBand, Work
from kaicore.rules.engine.config import PlacementStrategy
from kaicore.rules.engine.placement.node_score import parts_of, score_range
from kaicore.rules.engine.policies.builtin import (
    FewOpened,
    FittingParts,
    GoodZones,
    IdleDevices,
    KeepOwnPolicy,
    KeepRoom,
    LeaveDevices,
)
from kaicore.rules.engine.policies.class_rules import rank_by_cycle
from kaicore.rules.model.gpu_share import GpuShare
from kaicore.rules.state.indexes.past_runs import LEAST_PODS

from tests.given.cluster.factory import Cluster, amounts, pod
from tests.given.examples import FEW
from tests.given.work.policies import WithPolicies
from tests.property.test_policies_incremental import NODES, PODS, decided_by

SEEDS = range(1 if FEW else 4)
#: Kinds of pods: that ask for nothing but CPUs, for whole GPUs, for shares of one.
PLAIN, WHOLE, SHARE = "plain", "whole", "share"


def cluster(kinds: Sequence[type[Policy]], seed: int, asks: Sequence[str], *, recent_days: int = 0) -> WithPolicies:
    """Nodes with zones and without, with GPUs and without; some pods wish to be on one zone."""
    random, made = np.random.default_rng(seed), WithPolicies(*kinds)
    made.config = msgspec.structs.replace(made.config, gpu_sharing=True, recent_work_days=recent_days)
    for number in range(NODES):
        if number % 3:
            zones = [amounts(cpu=int(random.integers(4, 17)), memory=64, gpu=4 - 2 * (number % 2)) for _ in range(2)]
            made.add_node(f"n{number:02}", *zones, policy="best-effort" if number % 2 else "restricted")
        else:
            made.add_node(f"n{number:02}", cpu=int(random.integers(4, 64)), memory=128, gpu=8 * (number % 2))
        for other in range(int(random.integers(0, 3))):
            spec: dict[str, Any] = {"cpu": int(random.integers(1, 6)), "memory": 2, "gpu": 1}
            made.add_pod(pod(f"runs-{number}-{other}", node_name=f"n{number:02}", phase="Running", **spec))
    for number in range(LEAST_PODS if recent_days else 0):
        seen = pod(f"seen-{number}", cpu=1 + number % 6 * 2, memory=2, gpu=1 + number % 2)
        made.delete_pod(made.add_pod(seen))
    for number in range(PODS):
        spec = {"cpu": int(random.integers(1, 9)), "memory": 1 + number % 3}
        kind = asks[number % len(asks)]
        if kind == WHOLE:
            spec["gpu"] = int(random.integers(1, 4))
        elif kind == SHARE:
            spec["gpu_share"] = GpuShare(milli=int(random.choice([200, 400, 700])))
        if number % 4 == 0 and kind != SHARE:
            spec["annotations"] = {"kai.scheduler/numa-policy": "best-effort"}
        made.add_pod(pod(f"p{number:02}", **spec))
    return made


def turned(kind: type[Policy]) -> type[Policy]:
    """The rule that wants the opposite."""

    def score(self: Policy, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        least, most = score_range(kind.band)
        return np.clip(least + most - kind.score(self, nodes, work, facts), least, most)

    return type("Turned", (kind,), {"score": score, "name": f"turned-{kind.name}"})


@pytest.mark.parametrize(
    ("kind", "asks", "recent_days"),
    [
        (LeaveDevices, (PLAIN, WHOLE, SHARE), 7),
        (KeepOwnPolicy, (PLAIN, WHOLE), 7),
        (GoodZones, (PLAIN, WHOLE, SHARE), 7),
        (KeepRoom, (WHOLE,), 7),
        (FittingParts, (SHARE,), 0),
        (IdleDevices, (PLAIN,), 0),
        (FewOpened, (WHOLE, SHARE), 7),
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rule_named_in_the_settings_decides_as_by_itself_and_otherwise_turned_around(
    kind: type[Policy], asks: Sequence[str], recent_days: int, seed: int
) -> None:
    clusters = [cluster(kinds, seed, asks, recent_days=recent_days) for kinds in ((), (kind,), (turned(kind),))]
    by_itself, named, opposite = (decided_by(made) for made in clusters)
    assert named == by_itself
    # Bands above have the GPUs that are opened, too; and which kubelets keep a wish seldom differs here.
    assert opposite != by_itself or kind in (FewOpened, KeepOwnPolicy)
    assert clusters[1].replayed().differences == []


def test_turns_and_avoided_nodes_come_after_the_others_by_their_bands() -> None:
    columns = Cluster().add_nodes(4, cpu=4).state.columns
    turns = np.zeros(len(columns.present), np.int64)
    turns[:4] = 0, 1, 9, 0
    below = rank_by_cycle(columns, turns, [3], Work())
    parts = [parts_of(-int(one)) for one in below[:4]]
    assert [(one["turn"], one["avoided"], one["name"]) for one in parts] == [
        (0, 0, 0),
        (-1, 0, -1),
        (-3, 0, -2),
        (0, -1, -3),
    ]
    assert rank_by_cycle(columns, None, (), Work()).tolist() == columns.name_order().tolist()


class InPlace(Policy):
    """Wants nodes by a finding, in place of the built-in rule of the zones."""

    name, version, live, within, band = "in-place", "1", True, "", PolicyBand.ZONES
    findings = (NodeFinding.ROOM_TAKEN, NodeFinding.TURN, NodeFinding.AVOIDED, NodeFinding.FREE_PARTS)

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        return nodes.found(NodeFinding.TURN) + nodes.found(NodeFinding.AVOIDED) == 0

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        return np.clip(100 - nodes.found(NodeFinding.ROOM_TAKEN) // 10 - nodes.found(NodeFinding.FREE_PARTS), -1, 100)


@pytest.mark.parametrize("strategy", PlacementStrategy)
def test_a_policy_by_findings_is_asked_as_pods_come_and_is_replayed(strategy: PlacementStrategy) -> None:
    made = cluster((InPlace,), 1, (PLAIN, WHOLE, SHARE), recent_days=7)
    made.config = msgspec.structs.replace(made.config, placement_strategy=strategy)
    assert decided_by(made)
    assert made.replayed().differences == []
