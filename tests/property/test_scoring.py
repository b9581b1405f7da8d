"""Scores only rank: whatever the strategy, a pod may run on the same nodes, and the choice is the same every time."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy

from tests.given.cluster.factory import GPU, Cluster, pod
from tests.given.examples import examples
from tests.property.test_ledger_invariants import asked, nodes

weights = st.dictionaries(st.sampled_from(("cpu", "memory", GPU)), st.integers(0, 100), max_size=3)


def cluster_of(layout: list[Any], requests: list[dict[str, Any]]) -> Cluster:
    cluster = Cluster()
    for index, (zones, policy, scope) in enumerate(layout):
        cluster.add_node(f"n{index}", *zones, policy=policy, scope=scope)
    for index, request in enumerate(requests):
        cluster.add_pod(pod(f"p{index}", **request))
    return cluster


@settings(max_examples=examples(150), deadline=None)
@given(nodes, asked, weights)
def test_scores_never_change_which_nodes_are_feasible(
    layout: list[Any], request: dict[str, Any], given_weights: Any
) -> None:
    """Taken node after node: the nodes that take one pod are the same for all strategies, until none is left."""
    takers = set()
    for strategy in ScoringStrategy:
        cluster = cluster_of(layout, [])
        config = EngineConfig(numa_scoring=NumaScoring(strategy, given_weights))
        chosen = []
        for index in range(len(layout) + 1):
            cluster.add_pod(pod(f"p{index}", **request))
            decisions = cluster.cycle(config).placements
            if not decisions:
                break
            chosen.append(decisions[0].node)
            # A node that has taken one takes no other, so that each is asked once.
            row = cluster.state.columns.rows[decisions[0].node]
            cluster.state.columns.unschedulable[row] = True
        takers.add(tuple(sorted(chosen)))
    assert len(takers) == 1


@settings(max_examples=examples(60), deadline=None)
@given(nodes, st.lists(asked, min_size=1, max_size=6), st.sampled_from(ScoringStrategy), st.randoms())
def test_the_order_of_arrival_does_not_matter(
    layout: list[Any], requests: list[dict[str, Any]], strategy: ScoringStrategy, chance: Any
) -> None:
    """Rows are given out as nodes appear; what is decided does not hang on it."""
    config = EngineConfig(numa_scoring=NumaScoring(strategy))
    results = []
    for order in (list(range(len(layout))), chance.sample(range(len(layout)), len(layout))):
        cluster = Cluster()
        for index in order:
            zones, policy, scope = layout[index]
            cluster.add_node(f"n{index}", *zones, policy=policy, scope=scope)
        for index, request in enumerate(requests):
            cluster.add_pod(pod(f"p{index}", **request))
        results.append(cluster.cycle(config))
    assert results[0] == results[1]
