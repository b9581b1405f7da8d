"""Constraints of KAI, Koordinator and Kubernetes, placed; and one request in every dialect: manifests in, nodes out."""

import json
import re
from pathlib import Path

import pytest

from tests.given.cluster.fabric import hyper_nodes, label_topology, network_topology, nodes
from tests.given.logs.simulating import GPU, brief, document_of, placed, pod, world_of

KAI, KUEUE, GANG = "kai.scheduler", "kueue.x-k8s.io", "gang.scheduling.koordinator.sh"
SPEC, INDEX = f"{GANG}/network-topology-spec", f"{GANG}/network-topology-index"
SIGS = "pod-group.scheduling.sigs.k8s.io"
KAI_TOPOLOGY, KUEUE_TOPOLOGY = label_topology(f"{KAI}/v1alpha1"), label_topology(f"{KUEUE}/v1beta1")


def said(**metadata: dict[str, str]) -> str:
    """Labels or annotations, as fields of metadata in flow style."""
    return json.dumps(metadata)[1:-1]


def gather(*rules: tuple[str, str, int]) -> dict[str, str]:
    strategy = [{"layer": layer, "strategy": how, "podCountMultiple": multiple} for layer, how, multiple in rules]
    return {SPEC: json.dumps({"gatherStrategy": strategy})}


def sigs(name: str, least: int, annotations: dict[str, str]) -> str:
    return (
        f"apiVersion: scheduling.sigs.k8s.io/v1alpha1\nkind: PodGroup\n"
        f"metadata: {{name: {name}, {said(annotations=annotations)}}}\nspec: {{minMember: {least}}}\n"
    )


def pods(count: int, *, metadata: str = "", spec: str = "", name: str = "p") -> str:
    return "".join(pod(f"{name}{number}", metadata=metadata, spec=spec) for number in range(count))


def pod_group(api: str, spec: str) -> str:
    return f"apiVersion: {api}\nkind: PodGroup\nmetadata: {{name: g}}\nspec: {spec}\n"


#: Three pods in one rack, said in each way, with the objects and what stands on each pod.
IN_A_RACK = {
    "run.ai PodGroup": (
        KAI_TOPOLOGY,
        pod_group(
            "scheduling.run.ai/v2alpha2",
            "{minMember: 3, topologyConstraint: {topology: dc, requiredTopologyLevel: rack}}",
        ),
        said(annotations={"pod-group-name": "g"}),
        "",
    ),
    "KAI's annotations": (
        KAI_TOPOLOGY,
        sigs("g", 3, {f"{KAI}/topology": "dc", f"{KAI}/topology-required-placement": "rack"}),
        said(labels={SIGS: "g"}),
        "",
    ),
    "Koordinator": (
        network_topology(),
        sigs("g", 3, gather(("BlockLayer", "MustGather", 0))),
        said(labels={SIGS: "g"}),
        "",
    ),
    "Koordinator without an object": (
        network_topology(),
        "",
        said(
            annotations={f"{GANG}/name": "g", f"{GANG}/min-available": "3"} | gather(("BlockLayer", "MustGather", 0)),
        ),
        "",
    ),
    "Volcano": (
        hyper_nodes(),
        pod_group("scheduling.volcano.sh/v1beta1", "{minMember: 3, networkTopology: {highestTierName: rack}}"),
        said(annotations={"scheduling.k8s.io/group-name": "g"}),
        "",
    ),
    "Kueue": (
        KUEUE_TOPOLOGY,
        "",
        said(
            labels={f"{KUEUE}/pod-group-name": "g"},
            annotations={f"{KUEUE}/pod-group-total-count": "3", f"{KUEUE}/podset-required-topology": "rack"},
        ),
        "",
    ),
    "Kubernetes": (
        KUEUE_TOPOLOGY,
        pod_group(
            "scheduling.k8s.io/v1beta1",
            "{schedulingPolicy: {gang: {minCount: 3}}, schedulingConstraints: {topology: [{key: rack}]}}",
        ),
        "",
        "schedulingGroup: {podGroupName: g}",
    ),
    "Grove": (
        KAI_TOPOLOGY,
        "apiVersion: scheduler.grove.io/v1alpha1\nkind: PodGang\n"
        "metadata: {name: g, annotations: {grove.io/topology-name: dc}}\n"
        "spec: {podgroups: [{name: c, minReplicas: 3}], topologyConstraint: {packConstraint: {required: rack}}}\n",
        said(labels={"grove.io/podgang": "g", "grove.io/podclique": "c"}),
        "",
    ),
}


@pytest.mark.parametrize("dialect", IN_A_RACK)
@pytest.mark.parametrize("places", [("a01", "a01"), ("b10", "b10", "b11")])
def test_same_request_in_every_dialect_has_the_same_places(
    tmp_path: Path, dialect: str, places: tuple[str, ...]
) -> None:
    count = len(places)
    minimum = re.compile(r'(minMember: |minCount: |minReplicas: |min-available": "|total-count": ")3')
    topology, group, metadata, spec = (minimum.sub(rf"\g<1>{count}", text) for text in IN_A_RACK[dialect])
    # Each rack has four GPUs, and as many blocks of them have something that runs there already.
    running = "".join(
        pod(f"taken-{where}", gpus=2, spec=f"nodeName: {where}", status="{phase: Running}")
        for where in ("a00", "a10", "b00")
    )
    found = placed(
        tmp_path, nodes(), topology, *([group] if group else []), running + pods(count, metadata=metadata, spec=spec)
    )
    assert tuple(where for name, where in found.items() if name.startswith("p")) == places


def test_label_that_no_topology_tells_of_is_one_by_itself(tmp_path: Path) -> None:
    group = pod_group(
        "scheduling.k8s.io/v1alpha2",
        "{schedulingPolicy: {gang: {minCount: 6}}, schedulingConstraints: {topology: [{key: block}]}}",
    )
    found = placed(tmp_path, nodes(), group, pods(6, spec="schedulingGroup: {podGroupName: g}"))
    assert len({where[0] for where in found.values()}) == 1
    unknown = placed(
        tmp_path, nodes(), group.replace("key: block", "key: zone"), pods(6, spec="schedulingGroup: {podGroupName: g}")
    )
    assert set(unknown.values()) == {"Pending TopologyLevelNotFound"}


def native(kind: str, name: str, policy: str, key: str, parent: str = "") -> str:
    version = "v1alpha3" if kind == "CompositePodGroup" else "v1beta1"
    return (
        f"apiVersion: scheduling.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\n"
        f"spec: {{{parent}workloadRef: {{workloadName: w, templateName: t}}, "
        f"schedulingPolicy: {{gang: {{{policy}}}}}, schedulingConstraints: {{topology: [{{key: {key}}}]}}}}\n"
    )


@pytest.mark.parametrize("topology", [[KUEUE_TOPOLOGY], []], ids=["defined", "by labels alone"])
@pytest.mark.parametrize("taken", [0, 1])
def test_parts_of_a_composite_have_racks_in_one_block(tmp_path: Path, topology: list[str], taken: int) -> None:
    """The worked example of Kubernetes 1.37: a composite in a zone, its workers and its driver each in a rack of it."""
    above = "parentCompositePodGroupName: root, "
    objects = [
        native("CompositePodGroup", "root", "minGroupCount: 2", "block"),
        native("PodGroup", "workers", "minCount: 4", "rack", above),
        native("PodGroup", "driver", "minCount: 3", "rack", above),
    ]
    objects += [pods(4, name="w", spec="schedulingGroup: {podGroupName: workers}")]
    objects += [pods(3, name="d", spec="schedulingGroup: {podGroupName: driver}")]
    # A rack of block a lacks room for the driver.
    running = [pod("taken", gpus=2, spec="nodeName: a11", status="{phase: Running}")] if taken else []
    found = placed(tmp_path, nodes(), *topology, *objects, *running)
    found.pop("taken", None)
    assert {where[0] for where in found.values()} == {"b" if taken else "a"}
    racks = {letter: {where[:2] for name, where in found.items() if name[0] == letter} for letter in "wd"}
    assert len(racks["w"]) == len(racks["d"]) == 1
    assert racks["w"] != racks["d"]


def test_layer_in_the_wrong_case_is_said_with_those_that_there_are(tmp_path: Path) -> None:
    group = sigs("g", 2, gather(("spineLayer", "MustGather", 0)))
    text = "---\n".join([nodes(), network_topology(), group, pods(2, metadata=said(labels={SIGS: "g"}))])
    document = document_of(world_of(text, tmp_path))
    (message,) = {reason["message"] for one in document["pods"] for reason in one["reasons"]}
    assert message == (
        f"PodGroup.scheduling.sigs.k8s.io default/g: metadata.annotations[{SPEC}]: level spineLayer is not in "
        "ClusterNetworkTopology default: it has SpineLayer, BlockLayer, NodeTopologyLayer; did you mean 'SpineLayer'?"
    )


def test_preferred_layers_are_widened_one_by_one(tmp_path: Path) -> None:
    layers = gather(*((layer, "PreferGather", 0) for layer in ("SpineLayer", "BlockLayer", "NodeTopologyLayer")))
    found = {}
    for count in (2, 4, 8, 9):
        text = pods(count, metadata=said(labels={SIGS: "g"}))
        where = placed(tmp_path, nodes(), network_topology(), sigs("g", count, layers), text)
        found[count] = [len({name[:width] for name in where.values()}) for width in (1, 2, 3)]
    assert found == {2: [1, 1, 1], 4: [1, 1, 2], 8: [1, 2, 4], 9: [2, 3, 5]}


def test_gangs_that_start_together_share_the_domain(tmp_path: Path) -> None:
    """Neither rack has room for both gangs; each by itself would fit into any."""
    groups = {f"{GANG}/groups": '["default/master", "default/worker"]'}

    def gangs(layer: str) -> str:
        spec = groups | gather((layer, "MustGather", 0))
        return "---\n".join(
            [
                sigs("master", 1, spec),
                sigs("worker", 4, spec),
                pods(1, metadata=said(labels={SIGS: "master"}), name="m")
                + pods(4, metadata=said(labels={SIGS: "worker"}), name="w"),
            ]
        )

    found = placed(tmp_path, nodes(), network_topology(), gangs("SpineLayer"))
    assert len({where[0] for where in found.values()}) == 1
    found = placed(tmp_path, nodes(), network_topology(), gangs("BlockLayer"))
    assert all(where.startswith("Pending") for where in found.values()), found


def test_multiple_of_a_layer_is_kept_in_each_of_its_domains(tmp_path: Path) -> None:
    taken = pod("taken", spec="nodeName: a00", status="{phase: Running}")
    group = sigs("g", 4, gather(("SpineLayer", "MustGather", 0), ("BlockLayer", "PreferGather", 2)))
    found = placed(
        tmp_path,
        nodes(blocks=1, racks=3, hosts=1),
        network_topology(),
        group,
        taken + pods(4, metadata=said(labels={SIGS: "g"})),
    )
    assert [found[f"p{number}"] for number in range(4)] == ["a10", "a10", "a20", "a20"]


def test_each_gang_of_several_keeps_the_multiple(tmp_path: Path) -> None:
    taken = pod("taken", spec="nodeName: a00", status="{phase: Running}")
    groups = {f"{GANG}/groups": '["default/g", "default/h"]'}
    spec = groups | gather(("SpineLayer", "MustGather", 0), ("BlockLayer", "PreferGather", 2))
    found = placed(
        tmp_path,
        nodes(blocks=1, racks=3, hosts=1),
        network_topology(),
        sigs("g", 2, spec),
        sigs("h", 2, spec),
        taken,
        pods(2, metadata=said(labels={SIGS: "g"}), name="g") + pods(2, metadata=said(labels={SIGS: "h"}), name="h"),
    )
    assert found["g0"] == found["g1"]
    assert found["h0"] == found["h1"] != "a00"


def test_order_of_indexes_counts_and_not_that_of_names(tmp_path: Path) -> None:
    group = sigs("g", 4, gather(("SpineLayer", "MustGather", 0), ("NodeTopologyLayer", "PreferGather", 2)))
    indexes = ("40", "7", "9", "8")
    text = "".join(
        pod(f"p{number}", metadata=said(labels={SIGS: "g"}, annotations={INDEX: index}))
        for number, index in enumerate(indexes)
    )
    found = placed(tmp_path, nodes(blocks=1), network_topology(), group, text)
    assert found["p1"] == found["p3"] != found["p0"] == found["p2"]


#: Four pods in slices of two, each in one rack, in the words of dialects with an index on pods.
IN_SLICES = {
    "Kueue": (
        (KUEUE_TOPOLOGY,),
        lambda index: {
            "labels": {f"{KUEUE}/pod-group-name": "g", f"{KUEUE}/pod-group-pod-index": index},
            "annotations": {
                f"{KUEUE}/pod-group-total-count": "4",
                f"{KUEUE}/podset-required-topology": "block",
                f"{KUEUE}/podset-slice-required-topology": "rack",
                f"{KUEUE}/podset-slice-size": "2",
            },
        },
    ),
    "Koordinator": (
        (network_topology(), sigs("g", 4, gather(("SpineLayer", "MustGather", 0), ("BlockLayer", "PreferGather", 2)))),
        lambda index: {"labels": {SIGS: "g"}, "annotations": {INDEX: index}},
    ),
    "what an earlier log wrote": (
        (KUEUE_TOPOLOGY,),
        lambda index: {
            "labels": {f"{KUEUE}/pod-group-name": "g"},
            "annotations": {
                f"{KUEUE}/pod-group-total-count": "4",
                f"{KUEUE}/podset-required-topology": "block",
                f"{KUEUE}/podset-slice-required-topology": "rack",
                f"{KUEUE}/podset-slice-size": "2",
                f"{KAI}/rank": index,
            },
        },
    ),
}


@pytest.mark.parametrize("dialect", IN_SLICES)
def test_a_successor_joins_the_slice_that_ran_before_this_log_began(tmp_path: Path, dialect: str) -> None:
    """Slice 0 is in the second rack, slice 1 in the first, where the place that is left is the tightest."""
    documents, shown = IN_SLICES[dialect]
    running = {"p0": "a10", "p2": "a00", "p3": "a00"}
    text = pod("taken", spec="nodeName: a01", status="{phase: Running}") + pod("p1", metadata=said(**shown("1")))
    for name, where in running.items():
        text += pod(name, metadata=said(**shown(name[1])), spec=f"nodeName: {where}", status="{phase: Running}")
    assert placed(tmp_path, nodes(), *documents, text)["p1"] == "a10"


def pytorch(owner: dict[str, str], worker: dict[str, str], workers: int) -> str:
    template = f"spec: {{containers: [{{name: c, resources: {{limits: {{cpu: 1, memory: 1Gi, {GPU}: 1}}}}}}]}}"
    return (
        f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: t, {said(annotations=owner)}}}\n"
        f"spec: {{pytorchReplicaSpecs: {{Master: {{replicas: 1, template: {{{template}}}}},"
        f" Worker: {{replicas: {workers}, template: {{metadata: {{{said(annotations=worker)}}}, {template}}}}}}}}}\n"
    )


def test_segments_are_each_in_a_rack_of_one_block(tmp_path: Path) -> None:
    job = pytorch(
        {f"{KAI}/topology": "dc", f"{KAI}/topology-required-placement": "block"},
        {f"{KAI}/segment-size": "3", f"{KAI}/segment-topology-required-placement": "rack"},
        6,
    )
    found = placed(tmp_path, nodes(), KAI_TOPOLOGY, job)
    racks = [found[f"t-worker-{index}"][:2] for index in range(6)]
    assert racks[:3] == [racks[0]] * 3
    assert racks[3:] == [racks[3]] * 3
    assert racks[0] != racks[3]
    assert len({where[0] for where in found.values()}) == 1


def test_spare_nodes_of_a_segment_stay_free(tmp_path: Path) -> None:
    worker = {
        f"{KAI}/topology": "dc",
        f"{KAI}/segment-size": "4",
        f"{KAI}/segment-topology-required-placement": "rack",
        f"{KAI}/segment-spare-nodes": "1",
    }
    found = placed(tmp_path, nodes(hosts=3), KAI_TOPOLOGY, pytorch({}, worker, 4))
    assert len({found[f"t-worker-{index}"] for index in range(4)}) == 2
    too_few = placed(tmp_path, nodes(hosts=2), KAI_TOPOLOGY, pytorch({}, worker, 4))
    assert set(too_few.values()) == {"Pending TopologyHasNoRoom"}


def test_each_sub_group_is_in_its_own_domain_within_that_of_the_group(tmp_path: Path) -> None:
    rack = "topologyConstraint: {topology: dc, requiredTopologyLevel: rack}"
    group = pod_group(
        "scheduling.run.ai/v2alpha2",
        f"{{topologyConstraint: {{topology: dc, requiredTopologyLevel: block}}, subGroups: ["
        f"{{name: a, minMember: 3, {rack}}}, {{name: b, minMember: 3, {rack}}}]}}",
    )
    text = "".join(
        pods(3, metadata=said(labels={f"{KAI}/subgroup-name": one}, annotations={"pod-group-name": "g"}), name=one)
        for one in "ab"
    )
    found = placed(tmp_path, nodes(), KAI_TOPOLOGY, group, text)
    of = {one: {where[:2] for name, where in found.items() if name.startswith(one)} for one in "ab"}
    assert [len(of[one]) for one in "ab"] == [1, 1]
    assert len({rack[0] for racks in of.values() for rack in racks}) == 1


def test_leader_shares_the_rack_of_the_first_segment(tmp_path: Path) -> None:
    annotations = {f"{KAI}/topology": "dc", f"{KAI}/segment-topology-required-placement": "rack"}
    template = f"spec: {{containers: [{{name: c, resources: {{limits: {{cpu: 1, memory: 1Gi, {GPU}: 1}}}}}}]}}"
    text = (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\n"
        "spec: {replicas: 1, leaderWorkerTemplate: {size: 5, subGroupPolicy: {subGroupSize: 2},"
        f" leaderTemplate: {{{template}}},"
        f" workerTemplate: {{metadata: {{{said(annotations=annotations)}}}, {template}}}}}}}\n"
    )
    found = placed(tmp_path, nodes(hosts=2), KAI_TOPOLOGY, text)
    assert len({found[name][:2] for name in ("l-0", "l-0-1", "l-0-2")}) == 1, found
    assert found["l-0-3"][:2] == found["l-0-4"][:2]


def test_elastic_workers_share_the_rack_of_their_segment(tmp_path: Path) -> None:
    worker = {f"{KAI}/topology": "dc", f"{KAI}/segment-size": "4", f"{KAI}/segment-topology-required-placement": "rack"}
    job = pytorch({}, worker, 8).replace("spec: {pytorch", "spec: {elasticPolicy: {minReplicas: 5}, pytorch", 1)
    found = placed(tmp_path, nodes(hosts=3), KAI_TOPOLOGY, job)
    for first in (0, 4):
        assert len({found[f"t-worker-{index}"][:2] for index in range(first, first + 4)}) == 1, found
    tight = placed(tmp_path, nodes(racks=3), KAI_TOPOLOGY, job)
    last = {tight[f"t-worker-{index}"][:2] for index in range(4, 8)}
    assert len(last - {"Pe"}) == 1, "one of them rather waits than goes to another rack"


PREFILL_AND_DECODE = """
apiVersion: grove.io/v1alpha1
kind: PodCliqueSet
metadata: {name: llm, namespace: default}
spec:
  replicas: 1
  template:
    topologyConstraint: {topologyName: dc, pack: {required: block}}
    cliques:
    - {name: decode, spec: {replicas: 1, podSpec: SPEC}}
    - {name: leader, spec: {replicas: 1, podSpec: SPEC}}
    - {name: worker, spec: {replicas: 3, minAvailable: 2, podSpec: SPEC}}
    podCliqueScalingGroups:
    - {name: prefill, cliqueNames: [leader, worker], replicas: 3, minAvailable: 1,
       topologyConstraint: {pack: {required: rack}}}
"""


@pytest.mark.parametrize(
    ("fabric", "racks", "waits"),
    [
        # A part of prefill is four pods: it takes a rack each, and decode is in the block of the first.
        ({"blocks": 2, "racks": 2}, {"decode": "a1", "prefill-0": "a0", "prefill-1": "b0", "prefill-2": "b1"}, 0),
        # The gang takes the least of its first part; the second part has a block of its own; the third waits whole.
        ({"blocks": 2, "racks": 1}, {"decode": "a0", "prefill-0": "a0", "prefill-1": "b0"}, 1 + 4),
        # No rack has room for the least of a part, so nothing of the gang starts.
        ({"blocks": 2, "racks": 2, "hosts": 1}, {}, 13),
    ],
)
def test_serving_gang_starts_with_its_least_parts_each_in_a_rack_and_grows_by_whole_parts(
    tmp_path: Path, fabric: dict[str, int], racks: dict[str, str], waits: int
) -> None:
    spec = "{containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}"
    text = "---\n".join((nodes(**fabric), KAI_TOPOLOGY, PREFILL_AND_DECODE.replace("SPEC", spec)))
    found = brief(document_of(world_of(text, tmp_path)))
    placed_in: dict[str, set[str]] = {}
    for name, where in found.items():
        if not where.startswith("Pending"):
            part = re.match("llm-0-(decode|prefill-.)", name)
            assert part is not None
            placed_in.setdefault(part[1], set()).add(where[:2])
    assert placed_in == {part: {rack} for part, rack in racks.items()}
    assert sum(where.startswith("Pending") for where in found.values()) == waits
