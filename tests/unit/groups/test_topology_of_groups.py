"""Topology constraints of KAI, Koordinator and Kubernetes, as the model has them."""

import pytest
from kaicore.rules.model.group import RankSource, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import CLUSTER_NETWORK_TOPOLOGY, KAI_TOPOLOGY

from tests.given.work.groups import World, source

KAI = "apiVersion: scheduling.run.ai/v2alpha2\nkind: PodGroup\nmetadata: {name: g}\nspec: "
SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
INDEX = RankSource("gang.scheduling.koordinator.sh/network-topology-index", order_only=True)
ROOT = (
    "kai.scheduler/topology: dc, kai.scheduler/topology-required-placement: zone, "
    "kai.scheduler/topology-preferred-placement: rack"
)
OF_ROOT = TopologyConstraint(
    "dc",
    "zone",
    "rack",
    "metadata.annotations[kai.scheduler/topology-required-placement, kai.scheduler/topology-preferred-placement]",
    KAI_TOPOLOGY,
)


def gang(spec: str, kind: str = "scheduling.sigs.k8s.io") -> str:
    return (
        f"apiVersion: {kind}/v1alpha1\nkind: PodGroup\n"
        f"metadata: {{name: g, annotations: {{{SPEC}: '{spec}'}}}}\nspec: {{minMember: 2}}\n"
    )


def rule(layer: str, strategy: str, multiple: object = None) -> str:
    said = "" if multiple is None else f', "podCountMultiple": {multiple}'
    return f'{{"layer": "{layer}", "strategy": "{strategy}"{said}}}'


def gather(*rules: str) -> str:
    return f'{{"gatherStrategy": [{", ".join(rules)}]}}'


def topology_of(text: str) -> TopologyConstraint:
    found = source(text).templates[0].sets[0].topology
    assert found is not None
    return found


def pod(name: str, annotations: str, labels: str = "") -> str:
    return f"kind: Pod\nmetadata: {{name: {name}, annotations: {{{annotations}}}, labels: {{{labels}}}}}\nspec: {{}}\n"


@pytest.mark.parametrize(
    "owner",
    [
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, annotations: {ROOT}}\nspec: {parallelism: 4}\n",
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j, annotations: {ROOT}}\n"
        "spec: {replicatedJobs: [{name: a}]}\n",
        "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: j, annotations: {ROOT}}\n"
        "spec: {mpiReplicaSpecs: {Worker: {replicas: 2}}}\n",
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: j, annotations: {ROOT}}\nspec: {}\n",
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: j, annotations: {ROOT}}\n"
        "spec: {leaderWorkerTemplate: {size: 2}}\n",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: j, annotations: {ROOT}}\n"
        "spec: {tasks: [{name: a, replicas: 2}]}\n",
    ],
)
def test_annotations_of_an_owner_are_about_all_its_pods(owner: str) -> None:
    root, *others = source(owner.replace("ROOT", ROOT)).templates[0].sets
    assert root.topology == OF_ROOT
    assert not any(one.topology for one in others)


def test_every_group_of_a_leader_worker_set_has_the_annotations_of_the_set() -> None:
    world = World()
    world.apply(
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\n"
        f"metadata: {{name: l, annotations: {{{ROOT}}}}}\nspec: {{leaderWorkerTemplate: {{size: 2}}}}\n"
    )
    for group in "01":
        of_group = f'leaderworkerset.sigs.k8s.io/name: l, leaderworkerset.sigs.k8s.io/group-index: "{group}"'
        world.apply(pod(f"l-{group}", "", f'{of_group}, leaderworkerset.sigs.k8s.io/worker-index: "0"'))
        assert world.group_of(f"l-{group}").sets[0].topology == OF_ROOT
    assert world.group_of("l-0").key != world.group_of("l-1").key


def test_constraint_of_a_kai_pod_group_and_of_each_sub_group_is_read() -> None:
    text = KAI + (
        "{topologyConstraint: {topology: dc, requiredTopologyLevel: zone}, subGroups: ["
        "{name: decode, topologyConstraint: {topology: dc, requiredTopologyLevel: block}},"
        " {name: leader, parent: decode, minMember: 1},"
        " {name: workers, parent: decode, minMember: 4,"
        " topologyConstraint: {requiredTopologyLevel: rack, preferredTopologyLevel: host}},"
        " {name: rest, topologyConstraint: {topology: dc}}]}"
    )
    assert {one.name: one.topology for one in source(text).templates[0].sets} == {
        "": TopologyConstraint("dc", "zone", "", "spec.topologyConstraint", KAI_TOPOLOGY),
        "decode": TopologyConstraint("dc", "block", "", "spec.subGroups[0].topologyConstraint", KAI_TOPOLOGY),
        "rest": None,
        "leader": None,
        "workers": TopologyConstraint("", "rack", "host", "spec.subGroups[2].topologyConstraint", KAI_TOPOLOGY),
    }


def test_annotations_of_pods_count_where_the_owner_says_nothing() -> None:
    world = World()
    world.apply(pod("alone", ROOT))
    assert world.group_of("alone").sets[0].topology == OF_ROOT
    world.apply(
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 1}\n"
    )
    world.apply(pod("of-a-gang", ROOT, "pod-group.scheduling.sigs.k8s.io: g"))
    assert world.group_of("of-a-gang").sets[0].topology == OF_ROOT
    world.apply(KAI.replace("{name: g}", "{name: kai}") + "{minMember: 1}")
    world.apply(pod("of-kai", f"{ROOT}, pod-group-name: kai"))
    assert world.group_of("of-kai").sets[0].topology is None


def test_segments_of_a_pod_without_an_owner_are_a_problem() -> None:
    world = World()
    world.apply(pod("alone", 'kai.scheduler/segment-size: "4"'))
    topology = world.group_of("alone").sets[0].topology
    assert topology is not None
    assert topology.problem.startswith("metadata.annotations[kai.scheduler/segment-size]: has no owner")


@pytest.mark.parametrize("kind", ["scheduling.sigs.k8s.io", "scheduling.x-k8s.io"])
def test_layers_of_a_gang_are_required_and_preferred_in_whatever_order(kind: str) -> None:
    rules = (
        rule("BlockLayer", "MustGather"),
        rule("NodeTopologyLayer", "PreferGather"),
        rule("SpineLayer", "MustGather"),
        rule("AcceleratorLayer", "PreferGather"),
    )
    assert topology_of(gang(gather(*rules), kind)) == TopologyConstraint(
        required="BlockLayer",
        preferred="NodeTopologyLayer",
        field=f"metadata.annotations[{SPEC}]",
        kind=CLUSTER_NETWORK_TOPOLOGY,
        required_also=("SpineLayer",),
        preferred_also=("AcceleratorLayer",),
        together=True,
    )


def test_multiple_of_a_layer_makes_slices_there_whatever_its_strategy() -> None:
    text = gang(gather(rule("Spine", "MustGather", 8), rule("Block", "PreferGather", 4), rule("Node", "MustGather", 1)))
    found = topology_of(text)
    assert found.slices == (SliceLayer(8, required="Spine"), SliceLayer(4, required="Block"))
    assert (found.required, found.required_also, found.preferred) == ("Spine", ("Node",), "Block")


def test_multiple_is_of_each_gang_of_several_by_itself() -> None:
    text = gang(gather(rule("Block", "MustGather", 2)))
    joint = text.replace("{gang", """{gang.scheduling.koordinator.sh/groups: '["a/b", "default/g"]', gang""", 1)
    assert topology_of(joint).slices == (SliceLayer(2, required="Block"),)
    odd = topology_of(joint.replace("minMember: 2", "minMember: 3"))
    assert "podCountMultiple 2 of Block does not divide the 3 pods of the gang, which is one of several" in odd.problem
    assert not topology_of(text.replace("minMember: 2", "minMember: 3")).problem


def test_whole_cluster_as_a_layer_asks_for_nothing() -> None:
    root = source(gang(gather(rule("ClusterTopologyLayer", "MustGather")))).templates[0].sets[0]
    assert (root.topology, root.rank) == (None, None)
    both = topology_of(gang(gather(rule("ClusterTopologyLayer", "MustGather"), rule("Spine", "PreferGather"))))
    assert (both.required, both.preferred) == ("", "Spine")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("spine", "is no object in JSON: 'spine'"),
        ("[1]", "is no object in JSON"),
        ("[" * 100_000, "is no object in JSON"),
        ('{"gatherStrategy": {}, "x": 1}', None),
        ('{"gatherStrategy": "Spine"}', "gatherStrategy is no list"),
        ('{"gatherStrategy": ["Spine"]}', "gatherStrategy[0] is no object"),
        (gather('{"strategy": "MustGather"}'), "gatherStrategy[0] has no layer"),
        (gather(r'{"layer": "\ud800", "strategy": "MustGather"}'), "or one that is no name"),
        (gather(rule("S" * 300, "MustGather")), "or one that is no name"),
        (gather('{"layer": 3, "strategy": "MustGather"}'), "gatherStrategy[0] has no layer"),
        (gather(rule("S", "MustGather"), rule("S", "Gather")), "gatherStrategy[1].strategy is neither MustGather nor"),
        (gather('{"layer": "S"}'), "gatherStrategy[0].strategy is neither"),
        (gather('{"layer": "S", "strategy": []}'), "gatherStrategy[0].strategy is neither"),
        (gather(rule("S", "MustGather", -2)), "gatherStrategy[0].podCountMultiple is no count"),
        (gather(rule("S", "MustGather", "true")), "gatherStrategy[0].podCountMultiple is no count"),
        (gather(rule("S", "MustGather", '"4"')), "gatherStrategy[0].podCountMultiple is no count"),
        (gather(rule("ClusterTopologyLayer", "MustGather", 4)), "is of a layer that is not divided"),
    ],
)
def test_what_a_gang_says_wrongly_is_a_problem_that_names_the_annotation(spec: str, problem: str | None) -> None:
    topology = source(gang(spec)).templates[0].sets[0].topology
    if problem is None:
        assert topology is None
        return
    assert topology is not None
    assert topology.problem.startswith(f"metadata.annotations[{SPEC}]: ")
    assert problem in topology.problem
    assert len(topology.problem) < 300
    assert not topology.required


def test_names_of_gangs_that_could_not_be_recorded_count_as_none() -> None:
    said = r"""["a/b", "a/\ud800"]"""
    text = gang("").replace(f"{SPEC}: ''", f"gang.scheduling.koordinator.sh/groups: '{said}'")
    assert source(text).together == ()
    assert source(text.replace(r"\ud800", "c")).together == ("a/b", "a/c")


def test_gang_by_annotations_says_the_same_with_its_pods() -> None:
    text = gather(rule("Spine", "MustGather"))
    world = World()
    words = f'gang.scheduling.koordinator.sh/name: g, gang.scheduling.koordinator.sh/min-available: "1", {SPEC}: '
    world.apply(pod("p", f"{words}'{text}'"))
    (root,) = world.group_of("p").sets
    (of_object,) = source(gang(text)).templates[0].sets
    assert (root.topology, root.rank) == (of_object.topology, of_object.rank)
    assert root.rank == INDEX


@pytest.mark.parametrize(
    ("version", "where"),
    [("v1alpha2", "PodGroup"), ("v1alpha3", "PodGroup"), ("v1beta1", "PodGroup"), ("v1beta1", "Workload")],
)
def test_native_constraint_is_of_labels_in_each_version(version: str, where: str) -> None:
    def read(topology: str) -> TopologyConstraint | None:
        said = f"{{schedulingConstraints: {{topology: {topology}}}}}"
        if where == "Workload":
            said = f"{{podGroupTemplates: [{{name: a, {said[1:-1]}}}]}}"
        text = f"apiVersion: scheduling.k8s.io/{version}\nkind: {where}\nmetadata: {{name: g}}\nspec: {said}"
        return source(text).templates[0].sets[0].topology

    field = "spec.podGroupTemplates[0]" if where == "Workload" else "spec"
    at = f"{field}.schedulingConstraints.topology"
    assert read("[{key: rack}]") == TopologyConstraint(required="rack", field=at)
    assert read("[{key: zone}, {key: rack}]") == TopologyConstraint(required="zone", field=at, required_also=("rack",))
    assert read("[]") is None
    assert read("[{key: rack}, {}]") == TopologyConstraint(problem=f"{at}[1].key: is empty")
