"""Workloads with topology constraints in Kueue's and Volcano's words, placed: manifests in, nodes out."""

import json
from pathlib import Path

import pytest

from tests.given.cluster.fabric import hyper_nodes, label_topology, nodes
from tests.given.logs.simulating import GPU, placed

K = "kueue.x-k8s.io"
KUEUE = f"{K}/v1beta1"
NO_ROOM = "Pending TopologyHasNoRoom"
RACK = {f"{K}/podset-required-topology": "rack"}
BLOCK = {f"{K}/podset-required-topology": "block"}
TEMPLATE = f"{{containers: [{{name: c, resources: {{limits: {{cpu: 1, memory: 1Gi, {GPU}: 1}}}}}}]}}"


def template(annotations: dict[str, str]) -> str:
    return f"{{metadata: {{annotations: {json.dumps(annotations)}}}, spec: {TEMPLATE}}}"


def job(annotations: dict[str, str], pods: int, name: str = "j", labels: str = "") -> str:
    return (
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
        f"spec: {{parallelism: {pods}, completions: {pods}, completionMode: Indexed,"
        f" template: {template(annotations)}}}\n"
    )


def racks(found: dict[str, str]) -> set[str]:
    return {where[:2] for where in found.values()}


def test_a_job_is_in_one_rack_with_its_pods_in_order(tmp_path: Path) -> None:
    found = placed(tmp_path, nodes(), label_topology(KUEUE), job(RACK, 4))
    assert found == {"j-0": "a00", "j-1": "a00", "j-2": "a01", "j-3": "a01"}


def test_what_no_rack_has_room_for_waits_and_says_so(tmp_path: Path) -> None:
    assert set(placed(tmp_path, nodes(), label_topology(KUEUE), job(RACK, 5)).values()) == {NO_ROOM}


def test_a_preferred_rack_is_widened_to_a_block(tmp_path: Path) -> None:
    found = placed(tmp_path, nodes(), label_topology(KUEUE), job({f"{K}/podset-preferred-topology": "rack"}, 5))
    assert {where[0] for where in found.values()} == {"a"}


def test_slices_are_each_in_a_rack(tmp_path: Path) -> None:
    slices = {f"{K}/podset-slice-required-topology": "rack", f"{K}/podset-slice-size": "4"}
    found = placed(tmp_path, nodes(), label_topology(KUEUE), job(BLOCK | slices, 8))
    assert {name: where[:2] for name, where in found.items()} == {
        f"j-{rank}": "a0" if rank < 4 else "a1" for rank in range(8)
    }


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        (RACK | {f"{K}/podset-preferred-topology": "rack"}, "TopologyConstraintInvalid"),
        ({f"{K}/podset-required-topology": "Rack"}, "TopologyLevelNotFound"),
    ],
)
def test_what_makes_no_sense_waits_and_the_rest_goes_on(tmp_path: Path, annotations: dict[str, str], code: str) -> None:
    found = placed(tmp_path, nodes(), label_topology(KUEUE), job(annotations, 2), job({}, 1, "k"))
    assert found == {"j-0": f"Pending {code}", "j-1": f"Pending {code}", "k-0": "a00"}


def lws(leader: dict[str, str], worker: dict[str, str]) -> str:
    return (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\n"
        f"spec: {{replicas: 2, leaderWorkerTemplate: {{size: 4, leaderTemplate: {template(leader)},"
        f" workerTemplate: {template(worker)}}}}}\n"
    )


def test_a_leader_is_in_the_rack_of_its_workers(tmp_path: Path) -> None:
    together = RACK | {f"{K}/podset-group-name": "g"}
    found = placed(tmp_path, nodes(), label_topology(KUEUE), lws(together, together))
    by_group = [{where[:2] for name, where in found.items() if name.startswith(f"l-{group}")} for group in (0, 1)]
    assert [len(one) for one in by_group] == [1, 1]
    assert by_group[0] != by_group[1], "each fills a rack"


@pytest.mark.parametrize("first", ["", "runLauncherAsWorker: true,"])
def test_a_launcher_comes_before_its_workers_in_their_order(tmp_path: Path, first: str) -> None:
    together = template(RACK | {f"{K}/podset-group-name": "g"})
    found = placed(
        tmp_path,
        nodes(),
        label_topology(KUEUE),
        "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: m}\n"
        f"spec: {{{first} mpiReplicaSpecs: {{Launcher: {{template: {together}}},"
        f" Worker: {{replicas: 3, template: {together}}}}}}}\n",
    )
    assert found == {"m-launcher": "a00", "m-worker-0": "a00", "m-worker-1": "a01", "m-worker-2": "a01"}


def test_each_job_of_a_jobset_is_a_slice_where_no_size_is_said(tmp_path: Path) -> None:
    slices = template({f"{K}/podset-slice-required-topology": "rack"})
    found = placed(
        tmp_path,
        nodes(),
        label_topology(KUEUE),
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: s}\nspec: {replicatedJobs: [{name: w,"
        f" replicas: 2, template: {{spec: {{parallelism: 4, completions: 4, template: {slices}}}}}}}]}}\n",
    )
    places = ["a00", "a00", "a01", "a01", "a10", "a10", "a11", "a11"]
    assert found == {f"s-w-{rank // 4}-{rank % 4}": place for rank, place in enumerate(places)}


def queues(*flavors: str) -> str:
    """A ClusterQueue of flavors `<name>:<topology>`, and its LocalQueue."""
    names = [one.split(":") for one in flavors]
    quotas = ", ".join(
        f"{{name: {name}, resources: [{{name: cpu, nominalQuota: 99}}, {{name: memory, nominalQuota: 99Gi}},"
        f" {{name: {GPU}, nominalQuota: 99}}]}}"
        for name, _ in names
    )
    group = f"{{coveredResources: [cpu, memory, {GPU}], flavors: [{quotas}]}}"
    found = [
        f"apiVersion: {K}/v1beta1\nkind: ClusterQueue\nmetadata: {{name: cq}}\n"
        f"spec: {{namespaceSelector: {{}}, resourceGroups: [{group}]}}\n",
        f"apiVersion: {K}/v1beta1\nkind: LocalQueue\nmetadata: {{name: lq}}\nspec: {{clusterQueue: cq}}\n",
    ]
    for name, named in names:
        found.append(
            f"apiVersion: {K}/v1beta1\nkind: ResourceFlavor\nmetadata: {{name: {name}}}\n"
            f"spec: {{topologyName: {named}}}\n"
        )
    return "---\n".join(found)


@pytest.mark.parametrize(("flavors", "fits"), [(("f:flat",), True), (("f:dc", "g:flat"), False)])
def test_the_topology_is_that_of_the_queues_flavor(tmp_path: Path, flavors: tuple[str, ...], fits: bool) -> None:
    """In the topology without blocks, racks of one name are one rack."""
    texts = (nodes(), label_topology(KUEUE), label_topology(KUEUE, "flat", ("rack",)), queues(*flavors))
    found = placed(tmp_path, *texts, job(RACK, 5, labels=f"{K}/queue-name: lq"))
    assert {where[1] if fits else where for where in found.values()} == ({"0"} if fits else {NO_ROOM})


def vcjob(spec: str) -> str:
    return f"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: v}}\nspec: {{{spec}}}\n"


def task(replicas: int, more: str = "") -> str:
    return f"tasks: [{{name: w, replicas: {replicas}, {more} template: {template({})}}}]"


@pytest.mark.parametrize("tier", ["highestTierAllowed: 1", "highestTierName: rack"])
def test_a_volcano_job_is_within_its_tier(tmp_path: Path, tier: str) -> None:
    found = placed(tmp_path, nodes(), hyper_nodes(), vcjob(f"networkTopology: {{{tier}}}, {task(4)}"))
    assert racks(found) == {"a0"}
    found = placed(tmp_path, nodes(), hyper_nodes(), vcjob(f"networkTopology: {{{tier}}}, {task(5)}"))
    assert set(found.values()) == {NO_ROOM}


def test_a_soft_volcano_job_is_as_close_as_can_be_and_not_held_up(tmp_path: Path) -> None:
    soft = vcjob(f"networkTopology: {{mode: soft}}, {task(5)}")
    assert {where[0] for where in placed(tmp_path, nodes(), hyper_nodes(), soft).values()} == {"a"}
    assert len(placed(tmp_path, nodes(), soft)) == 5, "without HyperNodes it is a gang and no more"


def test_each_partition_is_in_a_hyper_node(tmp_path: Path) -> None:
    policy = "partitionPolicy: {totalPartitions: 3, partitionSize: 3, networkTopology: {highestTierAllowed: 1}},"
    found = placed(tmp_path, nodes(), hyper_nodes(), vcjob(task(9, policy)))
    assert len(found) == 9
    for first in (0, 3, 6):
        assert len({found[f"v-w-{index}"][:2] for index in range(first, first + 3)}) == 1


@pytest.mark.parametrize("group", ["topology.volcano.sh", "training.volcano.sh"])
def test_jobs_of_a_hyper_job_have_hyper_nodes_of_their_own_within_a_tier(tmp_path: Path, group: str) -> None:
    text = (
        f"apiVersion: {group}/v1alpha1\nkind: HyperJob\nmetadata: {{name: h}}\n"
        "spec: {networkTopology: {highestTierAllowed: 2}, replicatedJobs:"
        f" [{{name: a, replicas: JOBS, template: {{networkTopology: {{highestTierAllowed: 1}}, {task(2)}}}}}]}}\n"
    )
    found = placed(tmp_path, nodes(), hyper_nodes(), text.replace("JOBS", "2"))
    by_job = [{where[:2] for name, where in found.items() if name.startswith(f"h-a-{job}")} for job in (0, 1)]
    assert sorted(map(len, by_job)) == [1, 1]
    assert by_job[0] != by_job[1], "though one HyperNode has room for both"
    assert {where[0] for where in found.values()} in ({"a"}, {"b"})
    found = placed(tmp_path, nodes(), hyper_nodes(), text.replace("JOBS", "3"))
    assert set(found.values()) == {NO_ROOM}, "of a block there are two"
