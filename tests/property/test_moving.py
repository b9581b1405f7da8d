"""Fragmented clusters, in which what waits would fit if others moved: moves are rare, worth it, and come to rest."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.model.pod import Owner

from tests.given.cluster.factory import pod
from tests.given.examples import examples
from tests.given.work.groups import job
from tests.given.work.workloads import OWNER
from tests.property.test_engine_invariants import Step, Story

NODES, GPUS = 4, 8

#: A node, GPUs of each pod, how many, and who makes them again: a ReplicaSet, a Job that bears one failure, or nothing.
running = st.lists(
    st.tuples(
        st.integers(0, NODES - 1), st.integers(1, 4), st.integers(1, 3), st.sampled_from(("set", "set", "job", "bare"))
    ),
    min_size=3,
    max_size=9,
)
waiting = st.lists(st.tuples(st.integers(4, 8), st.integers(0, 2)), min_size=1, max_size=3)
later = st.lists(st.sampled_from(("recreate", "time", "restart", "fail")), max_size=6)


def fragment(story: Story, layout: list[Any]) -> None:
    """Have pods run where a test says, as far as they fit; several of one kind are a gang."""
    free = [GPUS] * NODES
    for number, (node, gpu, wanted, maker) in enumerate(layout):
        count = min(wanted, free[node] // gpu)
        if not count:
            continue
        free[node] -= gpu * count
        owner: Owner | None = OWNER if maker == "set" else None
        if maker == "job":
            owner = job(story.cluster, f"r{number}", spec={"backoffLimit": 1})
        spec: dict[str, Any] = {"cpu": 1, "gpu": gpu, "labels": {"app": ""}, "node_name": f"n{node}", "owner": owner}
        if count > 1:
            story.cluster.gang(f"r{number}", count, phase="Running", **spec)
        else:
            story.cluster.add_pod(pod(f"r{number}", phase="Running", **spec))


@settings(max_examples=examples(100), deadline=None)
@example(
    [
        *[(3, 1, 2, "set"), (0, 3, 1, "set"), (0, 3, 2, "set"), (0, 1, 1, "set"), (0, 1, 1, "set"), (2, 3, 3, "set")],
        *[(1, 2, 1, "set"), (1, 2, 3, "set"), (0, 3, 1, "set")],
    ],
    [
        ([(8, 0), (4, 0), (8, 1)], ["restart", "restart", "time"]),
        ([(4, 1), (7, 2), (4, 0)], ["time", "recreate", "recreate", "fail", "time", "recreate"]),
        ([(4, 1), (7, 2), (7, 2)], ["time"]),
    ],
)  # a gang of which one pod is to be placed anew and the other leaves
@example(
    [
        *[(3, 1, 1, "set"), (1, 2, 1, "set"), (3, 2, 3, "set"), (0, 1, 1, "set"), (0, 1, 1, "set"), (0, 1, 1, "set")],
        (0, 4, 1, "set"),
    ],
    [([(8, 1), (7, 1)], []), ([(4, 0)], []), ([(4, 0), (8, 1), (4, 0)], ["fail"])],
)  # a moved pod's successor is to go where room is reserved for another group
@example(
    [(0, 1, 1, "set"), (0, 1, 1, "set"), (1, 2, 2, "set"), (2, 1, 2, "set")],
    [([(8, 1), (8, 1), (4, 0)], ["recreate", "fail"])],
)  # the rest of a gang is evicted for higher priority, just before what waits of the gang would start
@example(
    [
        *[(1, 3, 2, "set"), (1, 1, 2, "set"), (2, 1, 3, "set"), (1, 1, 1, "set"), (2, 1, 2, "set"), (2, 1, 2, "set")],
        *[(3, 4, 1, "set"), (3, 2, 2, "set"), (0, 2, 2, "set")],
    ],
    [
        ([(7, 1)], ["fail"]),
        ([(7, 1)], ["recreate", "restart", "restart", "fail", "fail", "fail"]),
        ([(4, 1), (4, 0), (6, 2)], []),
    ],
)  # room is reserved for a pod on a node that is promised to a gang
@given(running, st.lists(st.tuples(waiting, later), min_size=1, max_size=3))
def test_moves_are_worth_it_and_rare(layout: list[Any], rounds: list[Any]) -> None:
    """The checks after each cycle are in `Story.cycle`."""
    story = Story([], None)
    for number in range(NODES):
        story.cluster.add_node(f"n{number}", cpu=32, memory=256, gpu=GPUS, labels={"host": f"n{number}"})
    fragment(story, layout)
    for large, happened in rounds:
        for gpu, priority in large:
            spec = {"cpu": 1, "memory": 1, "gpu": gpu, "priority": priority, "labels": {"app": ""}, "rules": None}
            story.group(1, 1, 0, spec)
        story.cycle()
        for what in happened:
            story.take(Step(what))
            for eviction in story.cycle().evictions:
                victim = story.state.pods[eviction.uid].pod
                assert eviction.reason != EvictionReason.CONSOLIDATED or victim.owner is not None
    for left in range(30):
        story.take(Step("recreate"))
        if not story.cycle().batches and not story.state.workload_index.leaving:
            break
        assert left < 29, "does not come to rest"
