"""Queues, priorities and preemptibility of groups, and groups that come, change and go in any order."""

import json
import random

import msgspec
import pytest
from kaicore.rules.events import payloads
from kaicore.rules.model.group import Group
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.work.group_manifests import GANG_EXAMPLES, pod
from tests.given.work.groups import World, documents, read_pod

CLASSES = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: train, namespace: ""}
value: 50
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: build, namespace: ""}
value: 100
"""
KAI_GROUP = "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: {SPEC}\n---\n" + pod(
    "p", annotations="pod-group-name: g", spec="priority: 7"
)
JOB_OF = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, labels: {LABELS}}\nspec: {}\n---\n"


@pytest.mark.parametrize(
    ("objects", "queue", "priority", "preemptible"),
    [
        # KAI: priority classes below 100 are preemptible, unless it is said.
        (KAI_GROUP.replace("SPEC", "queue: a, priorityClassName: train"), "a", 50, True),
        (KAI_GROUP.replace("SPEC", "queue: a, priorityClassName: build"), "a", 100, False),
        (KAI_GROUP.replace("SPEC", "priorityClassName: build, preemptibility: preemptible"), "", 100, True),
        (KAI_GROUP.replace("SPEC", "priorityClassName: train, preemptibility: non-preemptible"), "", 50, False),
        # Without a class, or one that is not there, the pods' own priority.
        (KAI_GROUP.replace("SPEC", ""), "", 7, True),
        (KAI_GROUP.replace("SPEC", "priorityClassName: nobody"), "", 7, True),
        # Owners say it by labels, or their pods do; who names KAI's queue means KAI's rule.
        (
            JOB_OF.replace("LABELS", "kai.scheduler/queue: a, priorityClassName: build")
            + pod("p", owner="batch/v1/Job/j"),
            "a",
            100,
            False,
        ),
        (
            JOB_OF.replace("LABELS", "") + pod("p", owner="batch/v1/Job/j", labels="kai.scheduler/queue: b"),
            "b",
            0,
            True,
        ),
        (JOB_OF.replace("LABELS", "") + pod("p", owner="batch/v1/Job/j", spec="priority: 5000"), "", 5000, True),
        (
            JOB_OF.replace("LABELS", "kueue.x-k8s.io/queue-name: u") + pod("p", owner="batch/v1/Job/j"),
            "default/u",
            0,
            True,
        ),
        # Others are preemptible as Kubernetes has it.
        (pod("p", spec="priority: 1000", labels="kai.scheduler/queue: a"), "a", 1000, False),
        (pod("p", spec="priority: 1000"), "", 1000, True),
        (pod("p", spec="priority: 1000", annotations="volcano.sh/preemptable: 'false'"), "", 1000, False),
        (pod("p", labels="kai.scheduler/preemptibility: non-preemptible"), "", 0, False),
    ],
)
def test_group_has_queue_priority_and_preemptibility_of_its_source(
    world: World, objects: str, queue: str, priority: int, preemptible: bool
) -> None:
    world.apply(CLASSES)
    world.apply(objects)
    group = world.group_of("p")
    assert (group.queue, group.priority, group.preemptible) == (queue, priority, preemptible)


def test_a_priority_class_may_come_late_and_change(world: World) -> None:
    world.apply(KAI_GROUP.replace("SPEC", "priorityClassName: train"))
    assert world.group_of("p").priority == 7
    world.apply(CLASSES)
    assert world.group_of("p").priority == 50
    world.record("priorityclass/train", payloads.PriorityClassDeleted("train", "train"))
    assert world.group_of("p").priority == 7


def everything() -> list[str]:
    """Objects of all kinds, each a text of its own, pods and objects named alike in many ways."""
    gang = 'gang.scheduling.koordinator.sh/name: g{}, gang.scheduling.koordinator.sh/min-available: "{}"'
    texts = [*GANG_EXAMPLES.split("---\n"), *CLASSES.split("---\n"), KAI_GROUP.split("---\n")[0].replace("SPEC", "")]
    texts.append(JOB_OF.replace("LABELS", "kai.scheduler/queue: a").removesuffix("---\n"))
    for number in range(8):
        name, spec = f"p{number}", "nodeName: n1" if number < 4 else ""
        texts += [
            pod(name, labels=f"pod-group.scheduling.sigs.k8s.io: gang-example{number % 2 + 1}", spec=spec),
            pod(name, annotations=gang.format(number % 2, number), spec=spec),
            pod(name, annotations="pod-group-name: g", spec=spec),
            pod(name, owner="batch/v1/Job/j", spec=spec or f"priority: {number}"),
            pod(name, spec=spec),
        ]
    return texts


@pytest.mark.parametrize("seed", range(8))
def test_groups_depend_on_what_there_is_and_not_on_how_it_came_about(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    for text in chance.choices(everything(), k=60):
        world.apply(text)
        if chance.random() < 0.2:
            for source in list(world.state.group_table.sources.values())[:1]:
                world.remove(source.kind, source.name)
        if chance.random() < 0.1 and world.state.pods:
            entry = world.state.pods[min(world.state.pods)]
            world.record(f"pod/{entry.pod.uid}", payloads.PodDeleted(entry.pod.uid, "default", entry.pod.name))
    # A state that goes on from a snapshot is the same, to the byte.
    restored = decode_state(encode_state(world.state))
    assert encode_state(restored) == encode_state(world.state)
    assert seen(restored.groups) == seen(world.state.groups)
    # And so are the groups of a cluster where all this was there from the start.
    fresh = World()
    for source in world.state.group_table.sources.values():
        fresh.record(f"group/{source.key}", payloads.GroupSourceObserved(source))
    for observed in world.state.priority_classes.values():
        fresh.record("priorityclass/x", observed)
    for uid in sorted(world.state.pods, reverse=True):
        fresh.add_pod(world.state.pods[uid].pod)
    assert seen(fresh.state.groups) == seen(world.state.groups)
    members = {uid: (entry.group, entry.pod_set, entry.group_problem) for uid, entry in world.state.pods.items()}
    assert {uid: (one.group, one.pod_set, one.group_problem) for uid, one in fresh.state.pods.items()} == members


def seen(groups: dict[str, Group]) -> dict[str, str]:
    return {key: json.dumps(msgspec.to_builtins(groups[key]), sort_keys=True) for key in sorted(groups)}


def test_successor_of_a_lone_pod_is_a_group_of_its_own(world: World) -> None:
    world.apply(pod("p"))
    (document,) = documents(pod("p"))
    successor = read_pod({**document, "metadata": document["metadata"] | {"uid": "uid-second"}})
    world.add_pod(successor)
    world.record("pod/uid-p", payloads.PodDeleted("uid-p", "default", "p"))
    assert world.state.groups["Pod/default/p"].uid == "uid-second"
    assert world.state.group_table.pods_of("Pod/default/p") == {"uid-second"}
    world.delete_pod(successor)
    assert world.state.groups == {}
