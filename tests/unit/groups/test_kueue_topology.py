"""Places of pods in Kueue's words: on templates of every kind, on pods, and senseless ones."""

import json

import pytest
from kaicore.rules.groups.labels import NO_RANK, own_rank
from kaicore.rules.model.group import PodSet, RankSource, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import KUEUE_TOPOLOGY

from tests.given.work.groups import World, documents, read_pod, shape, source

K = "kueue.x-k8s.io"
RACK = {f"{K}/podset-required-topology": "rack"}
SLICES = {f"{K}/podset-slice-required-topology": "rack", f"{K}/podset-slice-size": "2"}
LAYERS = f"{K}/podset-slice-required-topology-constraints"
GROUP = f"{K}/podset-group-name"


def template(annotations: dict[str, str]) -> str:
    return f"{{metadata: {{annotations: {json.dumps(annotations)}}}}}"


def job(annotations: dict[str, str], spec: str = "parallelism: 4") -> str:
    return (
        f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{{spec}, template: {template(annotations)}}}\n"
    )


def constraint_of(annotations: dict[str, str], spec: str = "parallelism: 4") -> TopologyConstraint:
    constraint = source(job(annotations, spec)).templates[0].sets[0].topology
    assert constraint is not None
    return constraint


WHERE = "spec.template.metadata.annotations"


@pytest.mark.parametrize(
    ("annotations", "constraint"),
    [
        (RACK, TopologyConstraint(required="rack", field=f"{WHERE}[{K}/podset-required-topology]")),
        ({f"{K}/podset-preferred-topology": "rack"}, TopologyConstraint(preferred="rack")),
        ({f"{K}/podset-unconstrained-topology": "true"}, TopologyConstraint(unconstrained=True)),
        (
            RACK | SLICES | {f"{K}/podset-required-topology": "block"},
            TopologyConstraint(
                required="block",
                field=f"{WHERE}[{K}/podset-required-topology]",
                slices=(SliceLayer(2, required="rack"),),
            ),
        ),
        # Slices alone may be anywhere.
        (
            SLICES,
            TopologyConstraint(
                field=f"{WHERE}[{K}/podset-slice-required-topology]",
                unconstrained=True,
                slices=(SliceLayer(2, required="rack"),),
            ),
        ),
        (
            {LAYERS: '[{"topology": "block", "size": 4}, {"topology": "rack", "size": 2}]'},
            TopologyConstraint(
                field=f"{WHERE}[{LAYERS}]",
                unconstrained=True,
                slices=(SliceLayer(4, required="block"), SliceLayer(2, required="rack")),
            ),
        ),
    ],
)
def test_annotations_of_a_template_are_the_constraint_of_its_pod_set(
    annotations: dict[str, str], constraint: TopologyConstraint
) -> None:
    read = constraint_of(annotations)
    assert read.kind == KUEUE_TOPOLOGY
    assert read == TopologyConstraint(
        required=constraint.required,
        preferred=constraint.preferred,
        field=constraint.field,
        kind=KUEUE_TOPOLOGY,
        unconstrained=constraint.unconstrained,
        slices=constraint.slices,
    )


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        (RACK | {f"{K}/podset-preferred-topology": "rack"}, "podset-preferred-topology]: excludes podset-required-top"),
        (RACK | {f"{K}/podset-unconstrained-topology": "true"}, "excludes podset-required-topology: 'true'"),
        ({f"{K}/podset-required-topology": ""}, "podset-required-topology]: is empty: ''"),
        ({f"{K}/podset-unconstrained-topology": "yes"}, "is neither true nor false: 'yes'"),
        ({f"{K}/podset-slice-required-topology": "rack"}, "podset-slice-required-topology]: needs podset-slice-size"),
        ({f"{K}/podset-slice-size": "2"}, "podset-slice-size]: needs podset-slice-required-topology: '2'"),
        (SLICES | {f"{K}/podset-slice-size": "3"}, "4 pods are not divided by slices of 3: '3'"),
        (SLICES | {f"{K}/podset-slice-size": "8"}, "4 pods are not divided by slices of 8: '8'"),
        (SLICES | {f"{K}/podset-slice-size": "0"}, "podset-slice-size]: is no count of 1 or more: '0'"),
        (SLICES | {f"{K}/podset-slice-size": "9" * 5000}, "is no count of 1 or more: '9999"),
        ({LAYERS: "rack"}, "is no list in JSON: 'rack'"),
        ({LAYERS: "[" * 100_000}, "is no list in JSON"),
        ({LAYERS: "[]"}, "has 0 layers, and may have 1 to 3"),
        ({LAYERS: '["rack"]'}, "layer 1 has no topology"),
        ({LAYERS: '[{"topology": "rack", "size": true}]'}, "the size of layer 1 is no count of 1 or more"),
        ({LAYERS: '[{"topology": "r", "size": 4}, {"topology": "r", "size": 2}]'}, "has r twice"),
        ({LAYERS: '[{"topology": "b", "size": 4}, {"topology": "r", "size": 3}]'}, "size 3 of r does not divide the 4"),
        ({LAYERS: '[{"topology": "b", "size": 3}]'}, "4 pods are not divided by slices of 3"),
        ({LAYERS: json.dumps([{"topology": f"l{n}", "size": 1} for n in range(4)])}, "has 4 layers"),
        (SLICES | {LAYERS: "[]"}, "excludes podset-slice-required-topology"),
        (RACK | {GROUP: "7"}, "podset-group-name]: is a number: '7'"),
        (RACK | {GROUP: ""}, "podset-group-name]: is empty: ''"),
        ({GROUP: "g"}, "needs a required or a preferred topology"),
        (RACK | {GROUP: "g"}, "is the name of 1 pod sets that start together, and must be of 2: 'g'"),
    ],
)
def test_annotations_that_make_no_sense_are_named(annotations: dict[str, str], problem: str) -> None:
    constraint = constraint_of(annotations)
    assert problem in constraint.problem
    assert constraint.problem.startswith(f"{WHERE}[{K}/")
    assert len(constraint.problem) < 400
    assert (constraint.required, constraint.preferred, constraint.slices) == ("", "", ())


def test_an_unconstrained_topology_that_is_not_asked_for_is_none() -> None:
    (root,) = source(job({f"{K}/podset-unconstrained-topology": "false"})).templates[0].sets
    assert root.topology is None


def test_a_job_that_is_to_be_in_one_place_starts_as_a_whole() -> None:
    assert shape(source(job(RACK)).templates[0].sets) == ">=4"
    assert shape(source(job({})).templates[0].sets) == ">=1"


JOBSET = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j}\nspec: "
PYTORCH = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: j}\nspec: "
MPI = "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {name: j}\nspec: "
RAY = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: j}\nspec: "
RAY_JOB = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: j}\nspec: "
LWS = "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: j}\nspec: "

ON_HEAD = {f"{K}/podset-preferred-topology": "block"}
INDEX = "batch.kubernetes.io/job-completion-index"
REPLICA = RankSource("training.kubeflow.org/replica-index")
WORKER = "leaderworkerset.sigs.k8s.io/worker-index"


def jobset(driver: dict[str, str], workers: dict[str, str], more: str = "") -> str:
    return (
        f"{JOBSET}{{replicatedJobs: [{{name: driver, template: {{spec: {{template: {template(driver)}}}}}}},"
        f" {{name: workers, replicas: 2, {more} template:"
        f" {{spec: {{parallelism: 4, template: {template(workers)}}}}}}}]}}"
    )


@pytest.mark.parametrize(
    ("text", "levels", "ranks"),
    [
        (
            jobset({}, RACK),
            {"workers": "rack"},
            {
                "driver": RankSource(INDEX, 0, "jobset.sigs.k8s.io/job-index", 1),
                "workers": RankSource(INDEX, 0, "jobset.sigs.k8s.io/job-index", 4),
            },
        ),
        (
            f"{PYTORCH}{{pytorchReplicaSpecs: {{Master: {{template: {template(ON_HEAD)}}},"
            f" Worker: {{replicas: 3, template: {template(RACK)}}}}}}}",
            {"master": "~block", "worker": "rack"},
            {"master": REPLICA, "worker": REPLICA},
        ),
        (
            f"{MPI}{{runLauncherAsWorker: true, mpiReplicaSpecs: {{Launcher: {{}},"
            f" Worker: {{replicas: 3, template: {template(RACK)}}}}}}}",
            {"worker": "rack"},
            {"launcher": REPLICA, "worker": RankSource(REPLICA.label, 1)},
        ),
        (
            f"{RAY}{{headGroupSpec: {{template: {template(ON_HEAD)}}},"
            f" workerGroupSpecs: [{{groupName: w, replicas: 2, template: {template(RACK)}}}]}}",
            {"headgroup": "~block", "w": "rack"},
            {},
        ),
        (
            f"{RAY_JOB}{{rayClusterSpec: {{workerGroupSpecs: [{{groupName: w, template: {template(RACK)}}}]}},"
            f" submitterPodTemplate: {template(ON_HEAD)}}}",
            {"submitter": "~block", "w": "rack"},
            {},
        ),
        (
            f"{LWS}{{leaderWorkerTemplate: {{size: 4, leaderTemplate: {template(ON_HEAD)},"
            f" workerTemplate: {template(RACK)}}}}}",
            {"leader": "~block", "workers": "rack"},
            {"workers": RankSource(WORKER, 1)},
        ),
        # Without a template of its own the leader is one of the workers.
        (
            f"{LWS}{{leaderWorkerTemplate: {{size: 4, workerTemplate: {template(RACK)}}}}}",
            {"": "rack"},
            {"workers": RankSource(WORKER, 1)},
        ),
        (
            f"{LWS}{{leaderWorkerTemplate: {{size: 4, workerTemplate: {template(SLICES)}}}}}",
            {"": "2 of rack"},
            {"": RankSource(WORKER)},
        ),
    ],
)
def test_the_templates_of_every_kind_reach_their_pod_sets(
    text: str, levels: dict[str, str], ranks: dict[str, RankSource]
) -> None:
    sets = source(text).templates[0].sets
    assert {one.name: shown(one) for one in sets if one.topology is not None} == levels
    assert {one.name: one.rank for one in sets if one.rank is not None} == ranks


def shown(one: PodSet) -> str:
    constraint = one.topology
    assert constraint is not None
    if constraint.problem:
        return constraint.problem
    return (
        constraint.required
        or (f"~{constraint.preferred}" if constraint.preferred else "")
        or " ".join(f"{layer.size} of {layer.required}" for layer in constraint.slices)
    )


def test_a_slice_of_a_jobset_is_a_job_where_no_size_is_said() -> None:
    by_job = {f"{K}/podset-slice-required-topology": "rack"}
    workers = source(jobset({}, by_job)).templates[0].sets[2]
    assert workers.topology is not None
    assert workers.topology.slices == (SliceLayer(4, required="rack"),)


def test_a_replicated_job_that_starts_later_has_its_own_constraint() -> None:
    parsed = source(jobset({}, RACK, more="dependsOn: [{name: driver}],"))
    (alone,) = parsed.templates[1].sets
    assert shown(alone) == "rack"


def test_slices_of_a_leader_that_starts_alone_are_refused() -> None:
    text = f"{LWS}{{startupPolicy: LeaderReady, leaderWorkerTemplate: {{size: 4, workerTemplate: {template(SLICES)}}}}}"
    sets = source(text).templates[0].sets
    assert shape(sets) == "(leader>=1 workers>=3)/1"
    assert "needs leader and workers that start together" in shown(sets[0])


def lws(leader: dict[str, str], worker: dict[str, str], startup: str = "LeaderCreated") -> str:
    return (
        f"{LWS}{{startupPolicy: {startup}, leaderWorkerTemplate: {{size: 4, leaderTemplate: {template(leader)},"
        f" workerTemplate: {template(worker)}}}}}"
    )


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (lws(RACK | {GROUP: "g"}, RACK | {GROUP: "g"}), "(podset-group.g(leader>=1 workers>=3)/all)/all"),
        # How many of the two there must be goes with them.
        (
            lws(RACK | {GROUP: "g"}, RACK | {GROUP: "g"}, "LeaderReady"),
            "(podset-group.g(leader>=1 workers>=3)/1)/all",
        ),
        (
            jobset(RACK | {GROUP: "g"}, RACK | {GROUP: "g"}),
            "(podset-group.g(driver>=1 workers>=8)/all)/all",
        ),
        (
            f"{PYTORCH}{{pytorchReplicaSpecs: {{Eval: {{}}, Master: {{template: {template(RACK | {GROUP: 'g'})}}},"
            f" Worker: {{replicas: 3, template: {template(RACK | {GROUP: 'g'})}}}}}}}",
            "(eval>=1 podset-group.g(master>=1 worker>=3)/all)/all",
        ),
    ],
)
def test_a_leader_and_its_workers_are_below_a_set_that_has_their_constraint(text: str, tree: str) -> None:
    sets = source(text).templates[0].sets
    assert shape(sets) == tree
    assert {one.name: shown(one) for one in sets if one.topology is not None} == {"podset-group.g": "rack"}


def test_workers_beside_their_leader_keep_their_slices() -> None:
    """Kueue 0.20, TASGroupedPodSetSlicing: of a leader and three workers, one per rack, all in one block."""
    both = {f"{K}/podset-required-topology": "block", GROUP: "g"}
    sets = source(lws(both, both | SLICES | {f"{K}/podset-slice-size": "1"})).templates[0].sets
    found = {one.name: (one.topology.required, one.topology.slices) for one in sets if one.topology is not None}
    assert found == {"podset-group.g": ("block", ()), "workers": ("block", (SliceLayer(1, required="rack"),))}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (lws(RACK | {GROUP: "g"}, RACK | {GROUP: "h"}), "is the name of 1 pod sets"),
        (lws(RACK | {GROUP: "g"}, ON_HEAD | {GROUP: "g"}), "needs the same topology on both of its pod sets"),
        (
            f"{PYTORCH}{{pytorchReplicaSpecs: {{PS: {{replicas: 2, template: {template(RACK | {GROUP: 'g'})}}},"
            f" Worker: {{replicas: 3, template: {template(RACK | {GROUP: 'g'})}}}}}}}",
            "needs a pod set of one pod, the leader",
        ),
    ],
)
def test_a_group_of_pod_sets_that_is_none_is_named(text: str, problem: str) -> None:
    sets = source(text).templates[0].sets
    texts = [shown(one) for one in sets if one.topology is not None]
    assert len(texts) == 2
    assert all(problem in one for one in texts)


def kueue_pod(name: str, annotations: dict[str, str], labels: dict[str, str] | None = None) -> str:
    metadata = json.dumps({"name": name, "annotations": annotations, "labels": labels or {}})
    return f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec: {{}}\n"


def test_a_pod_says_itself_where_it_is_to_be(world: World) -> None:
    world.apply(kueue_pod("p", RACK))
    (root,) = world.group_of("p").sets
    assert root.topology is not None
    assert (root.topology.required, root.topology.kind) == ("rack", KUEUE_TOPOLOGY)


IN_GROUP = {f"{K}/pod-group-name": "g"}
OF_TWO = {f"{K}/pod-group-total-count": "2"}


def test_a_pod_group_starts_as_a_whole_where_its_pods_say(world: World) -> None:
    index = {f"{K}/pod-group-pod-index-label": "index", f"{K}/pod-index-offset": "1"}
    for name in ("a", "b"):
        world.apply(kueue_pod(name, RACK | OF_TWO | index, IN_GROUP))
    group = world.group_of("a")
    assert group.key == "Workload.kueue.x-k8s.io/default/g"
    assert shape(group.sets) == ">=2"
    assert shown(group.sets[0]) == "rack"
    assert group.sets[0].rank == RankSource("index", 1)
    assert world.group_of("b") is group


def test_pods_of_a_group_with_fast_admission_start_as_they_come(world: World) -> None:
    world.apply(kueue_pod("a", OF_TWO | {f"{K}/pod-group-fast-admission": "true"}, IN_GROUP))
    assert shape(world.group_of("a").sets) == ">=1"


@pytest.mark.parametrize("total", [None, "0", "many", "9" * 5000])
def test_a_pod_group_of_no_size_waits(world: World, total: str | None) -> None:
    world.apply(kueue_pod("a", {} if total is None else {f"{K}/pod-group-total-count": total}, IN_GROUP))
    assert world.problem_of("a") == "Malformed"


LABEL, JOB = f"{K}/index", f"{K}/job"


@pytest.mark.parametrize(
    ("said", "by", "rank"),
    [
        ({LABEL: "3"}, RankSource(LABEL), 3),
        ({LABEL: "3"}, RankSource(LABEL, 1), 2),
        ({LABEL: "0"}, RankSource(LABEL, 1), NO_RANK),
        ({LABEL: "-1"}, RankSource(LABEL), NO_RANK),
        ({LABEL: "9" * 5000}, RankSource(LABEL), NO_RANK),
        ({}, RankSource(LABEL), NO_RANK),
        ({LABEL: "3", JOB: "2"}, RankSource(LABEL, 0, JOB, 4), 11),
        ({LABEL: "3"}, RankSource(LABEL, 0, JOB, 4), NO_RANK),
    ],
)
@pytest.mark.parametrize("in_labels", [True, False])
def test_a_pods_rank_is_what_its_label_or_annotation_says(
    said: dict[str, str], by: RankSource, rank: int, in_labels: bool
) -> None:
    (document,) = documents(kueue_pod("p", {}, said) if in_labels else kueue_pod("p", said))
    assert own_rank(read_pod(document), by) == rank
