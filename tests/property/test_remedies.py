"""A remedy helps: the change is made, a cycle runs, and the group starts."""

from typing import Any

import msgspec
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from kaicore.rules.deciding.cycle_input import cycle_input
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.explain.remedies import Remedies, with_at_most
from kaicore.rules.events.reasons.making_room import FitsAfter, FitsIf
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.cluster.factory import amounts
from tests.given.examples import examples
from tests.given.work.workloads import Workloads
from tests.property.test_engine_invariants import Story, nodes, queues, rounds


def copied(cluster: Workloads) -> Workloads:
    other = Workloads()
    other.state, other.now = decode_state(encode_state(cluster.state)), cluster.now
    other.events, other._versions = list(cluster.events), dict(cluster._versions)
    return other


def changed(cluster: Workloads, starting: set[str], remedy: Reason) -> Workloads:
    """The cluster after the change that a remedy speaks of, where nothing may start but the pods that are to."""
    then = copied(cluster)
    workloads = then.state.workload_index.workloads
    for uid in sorted(then.state.waiting):
        if uid not in starting:
            # There, so that no pod misses its group, but not asking for anything.
            then.add_pod(msgspec.structs.replace(then.state.pods[uid].pod, scheduling_gates=("held.back",)))
    if isinstance(remedy, FitsIf):
        for uid in sorted(then.state.waiting):
            smaller = with_at_most(then.state.pods[uid].pod, remedy.resource, remedy.most)
            if smaller is not None:
                then.add_pod(smaller)
        return then
    assert isinstance(remedy, FitsAfter)
    gone = list(then.state.workload_index.leaving.values())
    if remedy.group:
        ending = [
            one
            for one in workloads.values()
            if f"{one.group.origin.split('.')[0]} {one.group.namespace}/{one.group.name}" in remedy.groups
        ]
        assert len(ending) == len(remedy.groups)
        gone = [then.state.pods[uid] for one in ending for uid in (*one.active, *one.leaving)]
        assert len(gone) == remedy.pods
    for entry in gone:
        then.delete_pod(entry.pod)
    return then


def check(cluster: Workloads) -> None:
    state = cluster.state
    given = cycle_input(state, EngineConfig(), now=state.recorded_at)
    answers = Remedies(given, EngineConfig())
    for key in given.pending:
        if any(state.pods[uid].group != key for uid in state.nominated):
            continue
        for remedy in answers.of(key).reasons:
            note(f"{key}: {remedy!s}")
            steps = answers._steps_of(key)
            starting = {member.pod.uid for _, step in steps for member in step.members}
            # A group that it starts together with, but that does not need it, may start before it, and where it would
            # have been.
            may_start = {pending_group.workload.group.key for pending_group, _ in steps}
            then = changed(cluster, starting, remedy)
            group_of = {uid: entry.group for uid, entry in then.state.pods.items()}
            placements = then.cycle().placements
            assert any(group_of[placed.uid] in may_start for placed in placements), (key, str(remedy))


def _group(least: int, others: int, count: int = 1, **spec: int) -> Any:
    return count, least, others, {"cpu": 1, "memory": 1, "priority": 0, "labels": {"app": ""}, "rules": None} | spec


#: Room is made for the first pod of an elastic group along with that of a higher one, and not for its second pod.
_HALF_HELPED = (
    ([_group(0, 0, gpu=0), _group(0, 0, gpu=2)], []),
    ([_group(1, 0, count=2, gpu=2), _group(1, 1, gpu=1, priority=1)], []),
)


@settings(max_examples=examples(40), deadline=None)
@given(nodes, queues, st.lists(rounds, min_size=1, max_size=3))
@example([([amounts(cpu=4, memory=8, gpu=2)] * 2, "single-numa-node")], None, _HALF_HELPED)
def test_remedy_makes_its_group_schedulable(
    layout: list[Any], queues: dict[str, Any] | None, happenings: list[Any]
) -> None:
    story = Story(layout, queues)
    for added, happened in happenings:
        story.come(added)
        check(story.cluster)
        for step in happened:
            story.take(step)
        check(story.cluster)
