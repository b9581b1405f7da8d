"""CompositePodGroups of Kubernetes (KEP-6012): one group of several objects, and what its tree may not be.

Source: `keps/sig-scheduling/6012-composite-podgroup-api`, `staging/src/k8s.io/api/scheduling/v1alpha3`.
"""

import random
import re

import pytest
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.groups.labels import COMPOSITE_POD_GROUP, NATIVE_POD_GROUP
from kaicore.rules.state.snapshot import decode_state, encode_state

from tests.given.work.groups import World, shape
from tests.unit.groups.test_native import Running

#: The Workload says of what form its objects are; they have all that counts themselves.
WORKLOAD = """
apiVersion: scheduling.k8s.io/v1alpha3
kind: Workload
metadata: {name: w}
spec:
  compositePodGroupTemplates:
    - name: root
      schedulingPolicy: {gang: {minGroupCount: 2}}
      podGroupTemplates: [{name: a, schedulingPolicy: {gang: {minCount: 2}}}]
"""


def composite(name: str, least: int = 0, **given: str) -> str:
    policy = f"gang: {{minGroupCount: {least}}}" if least else "basic: {}"
    return _object(f"v1alpha3\nkind: CompositePodGroup\nmetadata: {{name: {name}}}", policy, **given)


def pod_group(name: str, least: int = 0, **given: str) -> str:
    policy = f"gang: {{minCount: {least}}}" if least else "basic: {}"
    return _object(f"v1beta1\nkind: PodGroup\nmetadata: {{name: {name}}}", policy, **given)


def _object(head: str, policy: str, *, parent: str = "", more: str = "", workload: str = "w") -> str:
    above = f"parentCompositePodGroupName: {parent}, " if parent else ""
    return (
        f"apiVersion: scheduling.k8s.io/{head}\n"
        f"spec: {{{above}workloadRef: {{workloadName: {workload}, templateName: t}}, "
        f"schedulingPolicy: {{{policy}}}{more and ', '}{more}}}\n"
    )


def pod(name: str, group: str) -> str:
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{schedulingGroup: {{podGroupName: {group}}}, "
        "containers: [{name: c, resources: {limits: {cpu: 4, memory: 1Mi}}}]}\n"
    )


def pods(group: str, count: int) -> list[str]:
    return [pod(f"{group}-{number}", group) for number in range(count)]


#: Two replicas of a leader and its workers.
REPLICAS = [composite("root", 2)]
for replica in ("x", "y"):
    REPLICAS += [composite(replica, 2, parent="root"), pod_group(f"{replica}a", 2, parent=replica)]
    REPLICAS += [pod_group(f"{replica}b", 1, parent=replica), *pods(f"{replica}a", 2), *pods(f"{replica}b", 1)]


def seen(*texts: str, world: World | None = None) -> World:
    world = world or World()
    world.apply("---\n".join(texts))
    return world


@pytest.mark.parametrize(
    ("texts", "tree"),
    [
        ([*REPLICAS, WORKLOAD], "(composite/x(xa>=2 xb>=1)/2 composite/y(ya>=2 yb>=1)/2)/2"),
        ([composite("r"), pod_group("a", 2, parent="r"), pod_group("b", parent="r"), pod("p", "a")], "(a>=2 b)/0"),
        # A group that the parent needs and that is not there yet is one more child, without pods.
        (
            [composite("r", 3), pod_group("a", 2, parent="r"), pod("p", "a")],
            "(a>=2 composite/r/missing>=2)/all",
        ),
        # Four levels are the most: what is below is of no tree.
        (
            [
                *(composite("r", 1), composite("s", 1, parent="r"), composite("t", 1, parent="s"), pod("p", "a")),
                *(pod_group("a", 1, parent="t"), composite("u", 1, parent="t"), pod_group("b", 1, parent="u")),
            ],
            "(composite/s(composite/t(composite/u(composite/u/missing>=1)/all a>=1)/1)/1)/1",
        ),
    ],
)
def test_a_tree_is_one_group_of_its_topmost_object(texts: list[str], tree: str) -> None:
    world = seen(*texts)
    groups = {group.key: shape(group.sets) for group in world.state.groups.values()}
    assert groups == {f"{COMPOSITE_POD_GROUP}/default/{'root' if 'root' in texts[0] else 'r'}": tree}


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (
            [pod_group("a", 1, parent="r")],
            "CompositePodGroup.scheduling.k8s.io default/r does not exist or is malformed",
        ),
        (
            [pod_group("a", 1, parent="r"), composite("r", 1, parent="s"), composite("s", 1, parent="r")],
            "default/s has itself above it: its parent is CompositePodGroup.scheduling.k8s.io default/r",
        ),
        (
            [pod_group("a", 1, parent="r"), composite("u", 1)]
            + [composite(one, 1, parent=above) for one, above in ("rs", "st", "tu")],
            "default/t has a parent and 3 levels below it; 4 are the most",
        ),
        (
            [pod_group("a", 1, parent="r"), composite("r", 1, workload="v")],
            "default/a its Workload is w, that of its parent CompositePodGroup.scheduling.k8s.io default/r is v",
        ),
        (
            [pod_group("a", 1, parent="r", more="priority: 7"), composite("r", 1)],
            "its priority is 7, that of its parent CompositePodGroup.scheduling.k8s.io default/r is none",
        ),
        (
            [pod_group("a", 1, parent="r", more="preemptionPolicy: Never"), composite("r", 1)],
            "its preemption policy is Never, that of its parent CompositePodGroup.scheduling.k8s.io default/r is none",
        ),
        ([pod_group("a", parent="r"), composite("r", 1)], "default/a is basic, and its parent .* default/r is a gang"),
        (
            [pod_group("a", 1, parent="r"), composite("r", 1, more="disruptionMode: {all: {}}")],
            "its pods are disrupted one by one, and those of its parent .* all at once",
        ),
    ],
)
def test_pods_of_a_tree_that_may_not_be_wait_with_the_reason(texts: list[str], problem: str) -> None:
    world = seen(*texts, pod("p", "a"))
    found = world.state.pods["uid-p"].group_problem
    assert re.search(problem, str(found)), found
    # The objects at fault are no groups by themselves, and the pods start nothing.
    assert not [group for group in world.state.groups.values() if world.state.group_table.pods_of(group.key)]


def test_a_missing_minimum_is_named() -> None:
    with pytest.raises(
        Exception, match=r"spec\.schedulingPolicy\.gang\.minGroupCount: must be a whole number of 0 or more: -1"
    ):
        seen(composite("r", -1))


@pytest.mark.parametrize("seed", range(4))
def test_objects_of_a_tree_may_come_and_change_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    texts = [*REPLICAS]
    # Some are seen as others before, and one is gone for a while.
    before = [composite("x", 1), pod_group("ya", 1), composite("y", 1, parent="x"), *texts]
    chance.shuffle(before)
    world = seen(*before)
    world.remove(NATIVE_POD_GROUP, "xb")
    world.remove(COMPOSITE_POD_GROUP, "y")
    assert world.problem_of("xb-0") == "GroupNotFound"
    chance.shuffle(texts)
    seen(*texts, world=world)
    straight = seen(*REPLICAS)
    assert world.state.groups == straight.state.groups
    assert len(straight.state.groups) == 1
    assert {uid: entry.pod_set for uid, entry in world.state.pods.items()} == {
        uid: entry.pod_set for uid, entry in straight.state.pods.items()
    }
    restored = decode_state(encode_state(world.state))
    assert encode_state(restored) == encode_state(world.state)


def test_a_tree_starts_with_so_many_whole_groups_and_grows_by_whole_groups() -> None:
    world = Running()
    world.add_node("n1", cpu=16, memory=8)
    texts = [
        text.replace("minGroupCount: 2", "minGroupCount: 1") if "name: root" in text else text for text in REPLICAS
    ]
    seen(*texts, world=world)
    # One replica takes 12 of 16 CPUs; the other one does not fit as a whole.
    assert sorted(world.placed(world.cycle())) == ["xa-0", "xa-1", "xb-0"]
    assert world.placed(world.cycle()) == {}
    world.add_node("n2", cpu=8, memory=8)
    assert sorted(world.placed(world.cycle())) == ["ya-0", "ya-1", "yb-0"]


def test_a_group_that_is_not_there_yet_is_waited_for() -> None:
    world = Running()
    world.add_node("n1", cpu=64, memory=8)
    seen(composite("r", 2), pod_group("a", 1, parent="r"), pod("p", "a"), world=world)
    assert world.placed(world.cycle()) == {}
    seen(pod_group("b", 1, parent="r"), pod("q", "b"), world=world)
    assert sorted(world.placed(world.cycle())) == ["p", "q"]


def test_the_widest_set_that_ends_as_a_whole_says_who_is_evicted_with_a_pod() -> None:
    whole = "disruptionMode: {all: {}}"
    texts = [composite("r", 1), composite("x", 1, parent="r", more=whole)]
    texts += [pod_group(name, 1, parent="x", more=whole) for name in ("xa", "xb")] + [pod_group("y", 1, parent="r")]
    world = seen(*texts, *pods("xa", 2), *pods("xb", 1), *pods("y", 2))
    group = Workload(world.group_of("xa-0"))
    for entry in world.state.pods.values():
        group.start(entry)
    counts = {"xa": 2, "xb": 1, "y": 2}

    def evicted_with(name: str) -> list[str]:
        (member,) = (one for one in group.active.values() if one.pod.name == name)
        return sorted(one.pod.name for one in group.evicted_with(member, counts))

    assert evicted_with("xa-0") == ["xa-0", "xa-1", "xb-0"]
    assert evicted_with("y-0") == ["y-0"]
