"""Up to which tier of the network pods may be apart, in Volcano's words; and the partitions of a task."""

import json

import pytest
from kaicore.rules.model.group import PodSet, RankSource, TopologyConstraint
from kaicore.rules.model.node import HYPER_NODE

from tests.given.work.groups import World, shape, source

GROUP = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: g}\nspec: "
MODE, TIER = "volcano.sh/network-topology-mode", "volcano.sh/network-topology-highest-tier"
PARTS = "totalPartitions: 2, partitionSize: 2"
NEAR = "networkTopology: {mode: hard, highestTierAllowed: 1}"


def volcano(spec: str) -> str:
    return f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: v}}\nspec: {{{spec}}}\n"


def parted(policy: str, more: str = "") -> str:
    return volcano(f"tasks: [{{name: w, replicas: 4, {more} partitionPolicy: {{{policy}}}}}]")


def closest(required: str = "", field: str = "") -> TopologyConstraint:
    return TopologyConstraint(required=required, field=field, kind=HYPER_NODE, closest=True)


ALLOWED, NAMED = "spec.networkTopology.highestTierAllowed", "spec.networkTopology.highestTierName"


@pytest.mark.parametrize(
    ("said", "constraint"),
    [
        ("{mode: hard, highestTierAllowed: 2}", closest("2", ALLOWED)),
        # Hard is the default.
        ("{highestTierAllowed: 0}", closest("0", ALLOWED)),
        ("{highestTierName: leaf}", closest("leaf", NAMED)),
        # A tier says nothing where nothing is required, and without one nothing is.
        ("{mode: soft, highestTierAllowed: 2}", closest()),
        ("{mode: soft}", closest()),
        ("{mode: hard}", closest()),
        ("{}", closest()),
    ],
)
def test_a_network_topology_is_as_close_as_can_be_within_its_tier(said: str, constraint: TopologyConstraint) -> None:
    of_group = source(f"{GROUP}{{networkTopology: {said}}}").templates[0].sets[0].topology
    of_job = source(volcano(f"networkTopology: {said}")).templates[0].sets[0].topology
    assert of_group == of_job == constraint


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("{mode: tight}", "spec.networkTopology.mode: is neither hard nor soft: 'tight'"),
        ("{highestTierAllowed: 1, highestTierName: leaf}", f"{NAMED}: excludes highestTierAllowed: 'leaf'"),
        ("{highestTierAllowed: -1}", f"{ALLOWED}: is no tier of 0 or more: -1"),
    ],
)
def test_a_network_topology_that_makes_no_sense_is_named(said: str, problem: str) -> None:
    (root,) = source(f"{GROUP}{{networkTopology: {said}}}").templates[0].sets
    assert root.topology == TopologyConstraint(kind=HYPER_NODE, problem=problem)


def test_pods_of_a_sub_group_tell_their_rank_by_their_number_in_the_task(world: World) -> None:
    world.apply(f"{GROUP}{{subGroupPolicy: [{{name: s, matchLabelKeys: [part]}}]}}\n")
    said = json.dumps({"name": "p", "labels": {"part": "a"}, "annotations": {"scheduling.k8s.io/group-name": "g"}})
    world.apply(f"apiVersion: v1\nkind: Pod\nmetadata: {said}\nspec: {{}}\n")
    ranks = {one.name: one.rank for one in world.group_of("p").sets if one.rank is not None}
    assert ranks == {"s.a": RankSource("volcano.sh/task-index")}


def test_a_policy_of_sub_groups_has_a_constraint_of_its_own() -> None:
    policy = f"subGroupPolicy: [{{name: s, matchLabelKeys: [part], {NEAR}}}]"
    (rule,) = source(f"{GROUP}{{networkTopology: {{highestTierAllowed: 2}}, {policy}}}").templates[0].rules
    assert rule.topology == closest("1", "spec.subGroupPolicy[0].networkTopology.highestTierAllowed")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (parted(PARTS), "(w(w.0>=2 w.1>=2)/0>=4 -)/all>=4"),
        # So many of them are enough.
        (parted(f"{PARTS}, minPartitions: 1"), "(w(w.0>=2 w.1>=2)/1>=2 -)/all>=2"),
        (parted(f"{PARTS}, minPartitions: 1", "minAvailable: 2,"), "(w(w.0>=2 w.1>=2)/1>=2 -)/all>=2"),
    ],
)
def test_partitions_of_a_task_are_sets_of_their_own(text: str, tree: str) -> None:
    assert shape(source(text).templates[0].sets) == tree


def test_a_partition_has_its_own_place_and_its_own_ranks() -> None:
    sets = {one.name: one for one in source(parted(f"{PARTS}, {NEAR}")).templates[0].sets}
    where = closest("1", "spec.tasks[0].partitionPolicy.networkTopology.highestTierAllowed")
    assert sets["w.1"] == PodSet("w.1", "w", 2, topology=where, rank=RankSource("volcano.sh/task-index", 2))
    assert sets["w"].topology is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (parted("totalPartitions: 3, partitionSize: 2"), "partitionSize: 3 partitions are not the 4 replicas: 2"),
        (parted(""), "partitionSize: 0 partitions are not the 4 replicas: 0"),
        (parted(f"{PARTS}, minPartitions: 3"), "minPartitions: is more than the 2 partitions: 3"),
        (
            parted(f"{PARTS}, minPartitions: 2", "minAvailable: 3,"),
            "minPartitions: is not the minAvailable of 3 pods: 2",
        ),
        (parted("totalPartitions: 2000000000, partitionSize: 1"), "totalPartitions: is more than 10000: 2000000000"),
    ],
)
def test_partitions_that_cannot_be_are_named(text: str, problem: str) -> None:
    found = [one.topology.problem for one in source(text).templates[0].sets if one.topology is not None]
    assert found == [f"spec.tasks[0].partitionPolicy.{problem}"]


def volcano_pod(name: str, *, labels: dict[str, str], task: str = "w", owner: str = "v") -> str:
    metadata = {
        "name": name,
        "labels": labels,
        "annotations": {"volcano.sh/task-spec": task, "scheduling.k8s.io/group-name": f"{owner}-uid-{owner}"},
        "ownerReferences": [
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "name": owner,
                "uid": f"uid-{owner}",
                "controller": True,
            }
        ],
    }
    return f"apiVersion: v1\nkind: Pod\nmetadata: {json.dumps(metadata)}\nspec: {{}}\n"


@pytest.mark.parametrize(
    ("labels", "pod_set"),
    [
        ({"volcano.sh/partition-id": "1"}, "w.1"),
        # One that does not say its partition says its number.
        ({"volcano.sh/task-index": "3"}, "w.1"),
        ({"volcano.sh/task-index": "0"}, "w.0"),
    ],
)
def test_a_pods_partition_is_told_by_its_labels(world: World, labels: dict[str, str], pod_set: str) -> None:
    world.apply(parted(PARTS) + "---\n" + volcano_pod("p", labels=labels))
    assert world.state.pods["uid-p"].pod_set == pod_set


@pytest.mark.parametrize("labels", [{"volcano.sh/partition-id": "7"}, {"volcano.sh/task-index": "99"}, {}])
def test_a_pod_of_no_partition_waits(world: World, labels: dict[str, str]) -> None:
    world.apply(parted(PARTS) + "---\n" + volcano_pod("p", labels=labels))
    assert world.problem_of("p") == "SubGroupNotFound"


@pytest.mark.parametrize(
    ("annotations", "constraint"),
    [
        ({MODE: "hard", TIER: "2"}, closest("2", f"metadata.annotations[{TIER}]")),
        ({TIER: "2"}, closest("2", f"metadata.annotations[{TIER}]")),
        ({MODE: "soft", TIER: "2"}, closest()),
        ({MODE: "hard"}, closest()),
        ({}, None),
        (
            {MODE: "tight"},
            TopologyConstraint(
                kind=HYPER_NODE, problem=f"metadata.annotations[{MODE}]: is neither hard nor soft: 'tight'"
            ),
        ),
        (
            {TIER: "leaf"},
            TopologyConstraint(
                kind=HYPER_NODE, problem=f"metadata.annotations[{TIER}]: is no tier of 0 or more: 'leaf'"
            ),
        ),
    ],
)
def test_a_pod_says_itself_up_to_which_tier(
    world: World, annotations: dict[str, str], constraint: TopologyConstraint | None
) -> None:
    metadata = json.dumps({"name": "p", "annotations": annotations})
    world.apply(f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec: {{}}\n")
    (root,) = world.group_of("p").sets
    assert root.topology == constraint


def test_annotations_of_a_jobs_template_are_the_jobs() -> None:
    metadata = json.dumps({"annotations": {TIER: "1"}})
    found = source(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\n"
        f"spec: {{parallelism: 4, template: {{metadata: {metadata}}}}}\n"
    )
    (root,) = found.templates[0].sets
    assert root.topology == closest("1", f"spec.template.metadata.annotations[{TIER}]")
    assert root.min_pods == 1
