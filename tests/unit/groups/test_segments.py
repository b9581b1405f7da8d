"""Segments of KAI: workers that share a domain by their index, as slices of the model.

Source: KAI-Scheduler 0.17, its guide to segments (its examples, restated).
"""

import json
from collections.abc import Mapping

import pytest
from kaicore.rules.model.group import PodSet, RankSource, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import KAI_TOPOLOGY

from tests.given.work.groups import World, shape, source

REPLICA = "training.kubeflow.org/replica-index"
WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
SIZE, REQUIRED = "kai.scheduler/segment-size", "kai.scheduler/segment-topology-required-placement"
PREFERRED, SPARES = "kai.scheduler/segment-topology-preferred-placement", "kai.scheduler/segment-spare-nodes"
TOPOLOGY = "kai.scheduler/topology"
FOURS = {TOPOLOGY: "dc", SIZE: "4", REQUIRED: "rack"}
ZONE = {TOPOLOGY: "dc", "kai.scheduler/topology-required-placement": "zone"}


def said(annotations: Mapping[str, str]) -> str:
    return json.dumps({"annotations": dict(annotations)})


def pytorch(
    annotations: Mapping[str, str], owner: Mapping[str, str] | None = None, *, workers: int = 16, spec: str = ""
) -> str:
    template = f"template: {{metadata: {said(annotations)}}}"
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: j, {said(owner or {})[1:]}\n"
        f"spec: {{{spec}pytorchReplicaSpecs: {{Master: {{replicas: 1, {template}}},"
        f" Worker: {{replicas: {workers}, {template}}}}}}}\n"
    )


def lws(size: int, annotations: Mapping[str, str], *, policy: str = "", startup: str = "", owner: str = "{}") -> str:
    return (
        f"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {{name: l, {owner[1:]}\n"
        f"spec: {{{startup}leaderWorkerTemplate: {{size: {size}, {policy} leaderTemplate: {{}},"
        f" workerTemplate: {{metadata: {said(annotations)}}}}}}}\n"
    )


def sets_of(text: str) -> dict[str, PodSet]:
    return {one.name: one for one in source(text).templates[0].sets}


def slices_of(one: PodSet) -> tuple[SliceLayer, ...]:
    assert one.topology is not None
    assert not one.topology.problem, one.topology.problem
    return one.topology.slices


def problem_of(text: str) -> str:
    (found,) = {one.topology.problem for one in sets_of(text).values() if one.topology is not None}
    return found


def test_workers_of_a_pytorch_job_are_in_segments_and_its_master_is_not() -> None:
    sets = sets_of(pytorch(FOURS | {PREFERRED: "host", SPARES: "2"}))
    assert sets["worker"].topology == TopologyConstraint(
        "dc",
        field=f"spec.pytorchReplicaSpecs.Worker.template.metadata.annotations[{REQUIRED}, {PREFERRED}]",
        kind=KAI_TOPOLOGY,
        slices=(SliceLayer(4, "rack", "host", 2),),
    )
    assert sets["worker"].rank == RankSource(REPLICA)
    assert sets["master"].topology is None


def test_whole_job_and_its_segments_have_a_constraint_each() -> None:
    sets = sets_of(pytorch({SIZE: "4", REQUIRED: "rack"}, ZONE))
    assert sets[""].topology is not None
    assert (sets[""].topology.topology, sets[""].topology.required) == ("dc", "zone")
    assert sets["worker"].topology is not None
    assert sets["worker"].topology.topology == "dc", "the owner names it"


def test_segments_of_the_owner_are_of_its_workers_and_those_of_the_template_go_before() -> None:
    assert slices_of(sets_of(pytorch({}, FOURS))["worker"])[0].size == 4
    assert slices_of(sets_of(pytorch({SIZE: "8", PREFERRED: "rack"}, FOURS))["worker"]) == (
        SliceLayer(8, preferred="rack"),
    )


def test_elastic_workers_beyond_the_minimum_are_waited_for_by_no_segment() -> None:
    sets = sets_of(pytorch(FOURS, workers=20, spec="elasticPolicy: {minReplicas: 13}, "))
    assert sets["worker"].min_pods == 12
    assert slices_of(sets["worker"]) == (SliceLayer(4, "rack"),)


def test_index_is_in_the_label_that_an_annotation_names() -> None:
    sets = sets_of(pytorch(FOURS | {"kai.scheduler/pod-index-label": "my/index"}))
    assert sets["worker"].rank == RankSource("my/index")


def test_job_with_an_index_may_have_segments_too() -> None:
    job = (
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j, {said(ZONE)[1:]}\n"
        f"spec: {{parallelism: 8, MODE template: {{metadata: {said(FOURS)}}}}}\n"
    )
    root = sets_of(job.replace("MODE", "completionMode: Indexed,"))[""]
    assert root.topology is not None
    assert (root.topology.required, root.topology.slices) == ("zone", (SliceLayer(4, "rack"),))
    assert "needs pods that tell their index" in problem_of(job.replace("MODE", ""))


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({REQUIRED: "rack"}, f"[{SIZE}]: is no count from 2 to the 16 pods that there are"),
        ({SIZE: "1", REQUIRED: "rack"}, "is no count from 2 to the 16 pods that there are: '1'"),
        ({SIZE: "17", REQUIRED: "rack"}, "is no count from 2"),
        ({SIZE: "four", REQUIRED: "rack"}, "is no count from 2 to the 16 pods that there are: 'four'"),
        ({SIZE: "9" * 5000, REQUIRED: "rack"}, "is no count from 2"),
        ({SIZE: "4"}, f"[{REQUIRED}]: is missing, and so is {PREFERRED}"),
        ({SIZE: "4", REQUIRED: "rack", SPARES: "-1"}, f"[{SPARES}]: is no count: '-1'"),
    ],
)
def test_segments_that_make_no_sense_are_a_problem_of_the_workers(annotations: dict[str, str], problem: str) -> None:
    found = problem_of(pytorch(annotations))
    assert found.startswith("spec.pytorchReplicaSpecs.Worker.template.metadata.annotations[")
    assert problem in found
    assert len(found) < 250
    assert problem_of(pytorch({}, annotations)).startswith("metadata.annotations[")


def test_segments_of_an_owner_without_workers_are_a_problem() -> None:
    text = f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: r, {said(FOURS)[1:]}\nspec: {{}}\n"
    assert "is for workers that have an index" in problem_of(text)


@pytest.mark.parametrize("pod_group", ["scheduling.run.ai/v2alpha2", "scheduling.sigs.k8s.io/v1alpha1"])
def test_pod_group_that_repeats_its_owners_segments_is_none_the_worse(pod_group: str) -> None:
    text = f"apiVersion: {pod_group}\nkind: PodGroup\nmetadata: {{name: g, {said(FOURS)[1:]}\nspec: {{minMember: 1}}\n"
    assert sets_of(text)[""].topology is None


def test_leader_besides_full_segments_shares_the_first_one() -> None:
    text = lws(5, {TOPOLOGY: "dc", REQUIRED: "rack"}, policy="subGroupPolicy: {subGroupSize: 2}, ")
    sets = sets_of(text)
    assert shape(tuple(sets.values())) == "(segment-0(leader>=1 workers-0>=2)/all workers>=2)/all"
    first = sets["segment-0"].topology
    assert first is not None
    assert (first.topology, first.required, first.slices) == ("dc", "rack", ())
    assert slices_of(sets["workers"]) == (SliceLayer(2, "rack"),)
    assert sets["workers"].rank == RankSource(WORKER, 3)
    world = World()
    world.apply(text)
    for index in ("0", "1", "2", "3", "4", "x"):
        of = f'leaderworkerset.sigs.k8s.io/name: l, leaderworkerset.sigs.k8s.io/group-index: "0", {WORKER}: "{index}"'
        world.apply(f"kind: Pod\nmetadata: {{name: p{index}, labels: {{{of}}}}}\nspec: {{}}\n")
    assert [world.state.pods[f"uid-p{index}"].pod_set for index in "01234x"] == [
        "leader",
        "workers-0",
        "workers-0",
        "workers",
        "workers",
        "workers",
    ]
    one_segment = sets_of(lws(3, {SIZE: "2", REQUIRED: "rack"}))
    assert shape(tuple(one_segment.values())) == "(segment-0(leader>=1 workers-0>=2)/all)/all"


def test_leader_that_makes_segments_full_is_one_of_the_pods_of_the_first() -> None:
    root = sets_of(lws(8, FOURS))[""]
    assert (root.min_pods, root.rank) == (8, RankSource(WORKER))
    assert slices_of(root) == (SliceLayer(4, "rack"),)
    within = sets_of(lws(8, FOURS, owner=said(ZONE)))[""]
    assert slices_of(within) == (SliceLayer(4, "rack"),)
    assert within.topology is not None
    assert within.topology.required == "zone"


def test_excluded_leader_is_in_no_segment() -> None:
    policy = "subGroupPolicy: {subGroupSize: 2, subGroupPolicyType: LeaderExcluded}, "
    sets = sets_of(lws(5, {REQUIRED: "rack"}, policy=policy))
    assert shape(tuple(sets.values())) == "(leader>=1 workers>=4)/all"
    assert sets["workers"].rank == RankSource(WORKER, 1)
    assert slices_of(sets["workers"]) == (SliceLayer(2, "rack"),)
    assert "5 workers do not divide into segments of 2" in problem_of(lws(6, {REQUIRED: "rack"}, policy=policy))


def test_leader_that_starts_before_its_workers_can_share_no_segment_with_them() -> None:
    found = problem_of(lws(5, {SIZE: "2", REQUIRED: "rack"}, startup="startupPolicy: LeaderReady, "))
    assert "needs leader and workers that start together" in found
