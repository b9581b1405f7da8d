"""HyperJobs: Jobs of Volcano that start together, each in a HyperNode of its own."""

import json

import pytest
from kaicore.errors import InvalidObject
from kaicore.rules.model.group import TopologyConstraint
from kaicore.rules.model.node import HYPER_NODE

from tests.given.work.groups import World, shape, source

SEED, TRAINING = "topology.volcano.sh/v1alpha1", "training.volcano.sh/v1alpha1"
TASKS = "tasks: [{name: ps, replicas: 1}, {name: w, replicas: 2}]"
NEAR = "networkTopology: {mode: hard, highestTierAllowed: 2}"


def hyper_job(jobs: str, more: str = "", *, version: str = SEED) -> str:
    return f"apiVersion: {version}\nkind: HyperJob\nmetadata: {{name: h}}\nspec: {{replicatedJobs: [{jobs}], {more}}}\n"


def jobs(template: str = TASKS, *, replicas: int = 2, field: str = "template") -> str:
    return f"{{name: a, replicas: {replicas}, {field}: {{{template}}}}}"


def own(level: str = "1", tier: str = "highestTierAllowed", *, field: str = "template") -> TopologyConstraint:
    where = f"spec.replicatedJobs[0].{field}.networkTopology.{tier}"
    return TopologyConstraint(required=level, field=where, kind=HYPER_NODE, closest=True, exclusive=True)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (
            hyper_job(jobs()),
            "(a-0(a-0.ps>=1 a-0.w>=2 a-0.-)/all>=3 a-1(a-1.ps>=1 a-1.w>=2 a-1.-)/all>=3)/all",
        ),
        # So many of its Jobs are enough.
        (hyper_job(jobs("minAvailable: 1"), "minAvailable: 1"), "(a-0>=1 a-1>=1)/1"),
        (hyper_job(jobs("minAvailable: 1"), "minAvailable: 0"), "(a-0>=1 a-1>=1)/all"),
        (hyper_job("{name: a, template: {minAvailable: 2}}, {name: b, template: {}}"), "(a-0>=2 b-0)/all"),
        (
            hyper_job(
                jobs(
                    "tasks: [{name: w, replicas: 2, partitionPolicy: {totalPartitions: 2, partitionSize: 1}}]",
                    replicas=1,
                )
            ),
            "(a-0(a-0.w(a-0.w.0>=1 a-0.w.1>=1)/0>=2 a-0.-)/all>=2)/all",
        ),
    ],
)
def test_a_hyper_job_is_a_tree_of_its_jobs(text: str, tree: str) -> None:
    assert shape(source(text).templates[0].sets) == tree


@pytest.mark.parametrize(("version", "field"), [(SEED, "template"), (TRAINING, "templateSpec"), (TRAINING, "template")])
def test_it_is_read_of_both_groups(version: str, field: str) -> None:
    text = hyper_job(jobs("minAvailable: 1, queue: q", field=field), NEAR, version=version)
    parsed = source(text)
    assert (parsed.kind, parsed.queue) == (f"HyperJob.{version.partition('/')[0]}", "q")
    root, first, second = parsed.templates[0].sets
    assert root.topology == TopologyConstraint(
        required="2", field="spec.networkTopology.highestTierAllowed", kind=HYPER_NODE, closest=True
    )
    assert first.topology == second.topology == own(field=field)


CLOSE = TopologyConstraint(kind=HYPER_NODE, closest=True)


@pytest.mark.parametrize(
    ("template", "more", "place"),
    [
        ("networkTopology: {mode: hard, highestTierAllowed: 0}", "", own("0")),
        ("networkTopology: {highestTierName: leaf}", "", own("leaf", "highestTierName")),
        # As the examples of the design have it.
        ("networkTopology: [{mode: hard, highestTierAllowed: 1}]", "", own()),
        ("networkTopology: {mode: hard}", "", own()),
        # Tier 1 is that of a Job's own HyperNode, once anything is said of the network.
        ("", NEAR, own()),
        ("", "networkTopology: {mode: soft}", own()),
        ("networkTopology: {mode: soft}", NEAR, CLOSE),
        ("", "", None),
        (
            "networkTopology: {mode: tight}",
            "",
            TopologyConstraint(
                kind=HYPER_NODE,
                problem="spec.replicatedJobs[0].template.networkTopology.mode: is neither hard nor soft: 'tight'",
            ),
        ),
    ],
)
def test_each_job_is_in_a_hyper_node_of_its_own(template: str, more: str, place: TopologyConstraint | None) -> None:
    _, job = source(hyper_job(jobs(template, replicas=1), more)).templates[0].sets
    assert job.topology == place


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (hyper_job(""), r"spec.replicatedJobs: needs jobs with names"),
        (hyper_job("{template: {}}"), r"spec.replicatedJobs: needs jobs with names"),
        (hyper_job("{name: a, template: {}}, {name: a, template: {}}"), r"needs jobs with names, each of them once"),
        (hyper_job("{name: a}"), r"spec.replicatedJobs\[0\].template: is missing"),
        (hyper_job(jobs(replicas=-1)), r"spec.replicatedJobs\[0\].replicas: must be a whole number of 0 or more: -1"),
        (hyper_job(jobs(replicas=10**6)), r"spec.replicatedJobs\[0\].replicas: are jobs of more than 20000 pod sets"),
        (hyper_job(jobs(), "minAvailable: 3"), r"spec.minAvailable: asks for 3 sub-groups and has 2"),
        (
            hyper_job(jobs("tasks: [{name: w, replicas: -1}]")),
            r"spec.replicatedJobs\[0\].template.tasks\[0\].replicas: must be a whole number of 0 or more: -1",
        ),
    ],
)
def test_what_a_hyper_job_cannot_be_is_named(text: str, problem: str) -> None:
    with pytest.raises(InvalidObject, match=problem):
        source(text)


def owner(kind: str, name: str, version: str) -> str:
    return json.dumps([{"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}])


JOB = (
    "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n"
    f"metadata: {{name: h-a-1, ownerReferences: {owner('HyperJob', 'h', SEED)}}}\nspec: {{{TASKS}}}\n"
)
GROUP = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: PodGroup\nmetadata: {name: h-a-1-uid}\nspec: {minMember: 3}\n"


def pod(task: str) -> str:
    annotations = json.dumps({"scheduling.k8s.io/group-name": "h-a-1-uid", "volcano.sh/task-spec": task})
    owners = owner("Job", "h-a-1", "batch.volcano.sh/v1alpha1")
    metadata = f"{{name: p, annotations: {annotations}, ownerReferences: {owners}}}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec: {{}}\n"


@pytest.mark.parametrize(
    "order", ["hyper job group pod", "pod group job hyper", "job pod hyper", "group pod hyper job"]
)
def test_the_pods_of_its_jobs_are_its_own(world: World, order: str) -> None:
    """Whatever comes first, and whether or not Volcano's controller has made a PodGroup of each Job."""
    for name in order.split():
        world.apply({"hyper": hyper_job(jobs()), "job": JOB, "group": GROUP, "pod": pod("w")}[name])
    entry = world.state.pods["uid-p"]
    assert (entry.group, entry.pod_set) == ("HyperJob.topology.volcano.sh/default/h", "a-1.w")


@pytest.mark.parametrize(("task", "pod_set"), [("other", "a-1.-"), ("", "a-1.-")])
def test_pods_of_no_task_are_of_the_rest_of_their_job(world: World, task: str, pod_set: str) -> None:
    for text in (hyper_job(jobs()), JOB, pod(task)):
        world.apply(text)
    assert world.state.pods["uid-p"].pod_set == pod_set


def test_pods_of_a_job_that_is_none_of_its_own_wait(world: World) -> None:
    for text in (hyper_job(jobs(replicas=1)), JOB, pod("w")):
        world.apply(text)
    assert world.problem_of("p") == "SubGroupNotFound"
