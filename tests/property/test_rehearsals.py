"""In clusters of any kind: what is said to make a pod start does so when it is done, whatever else waits."""

from itertools import count
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from kaicore.analysis.ask.counterfactuals.asked import Asked
from kaicore.analysis.ask.counterfactuals.checking import Helpful, check
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.snapshot import encode_state

from tests.given.examples import examples
from tests.given.work.workloads import Workloads
from tests.property.test_engine_invariants import Story, nodes, queues, rounds
from tests.property.test_remedies import copied

#: Changes that are tried for one pod.
MOST = 8


def starts(cluster: Workloads, uid: str, helpful: Helpful) -> bool:
    """Do what is said to a copy of the cluster, and see whether the pod starts."""
    then = copied(cluster)
    for fact in helpful.amendment.facts:
        then.record("done", fact)
    then.now = max(then.state.recorded_at, helpful.amendment.until)
    for _ in range(3):
        result = then.cycle()
        if uid in {one.uid for one in result.placements}:
            return True
        then.go(result)
    return False


@settings(max_examples=examples(15), deadline=None)
@given(nodes, queues, st.lists(rounds, min_size=1, max_size=2))
def test_what_is_said_to_make_a_pod_start_does(
    layout: list[Any], queues: dict[str, Any] | None, happenings: list[Any]
) -> None:
    story = Story(layout, queues)
    for added, happened in happenings:
        story.come(added, happened)
    cluster = story.cluster
    before = encode_state(cluster.state)
    by_group = {cluster.state.pods[uid].group: uid for uid in sorted(cluster.state.waiting)}
    for group, uid in sorted(by_group.items())[:3]:
        trials = count()
        asked = Asked(cluster.state, EngineConfig(), cluster.state.pods[uid])
        checked = check(asked, go_on=lambda trials=trials: next(trials) < MOST)  # type: ignore[misc]
        for helpful in checked.helpful:
            note(f"{group}: {helpful.amendment.message}")
            assert starts(cluster, uid, helpful), (group, helpful.amendment.message, helpful.start)
    assert encode_state(cluster.state) == before
